"""From how many rows on it no longer pays to send the factors of a weight's gradient.

    python -m benchmarks.break_even_k [--gbps 1] [--rounds 5]

A linear layer M x N with K rows of input in a pipeline's step has a gradient of 4MN bytes, which
two pipelines exchange whole (`tree`), or as its two factors, 4K(M+N) bytes, which the other one
multiplies. Two processes, one for each pipeline, exchange the gradient of one layer in both ways:
by the runtime's own exchange, mailbox and ZeroMQ transport, over the virtual link. They begin at
one instant; a time is that of the later one, from the first byte to the whole sum.

- *Measured*: several K in turn with `tree`, round by round; the K where the medians cross, on the
  line between the two next to it.
- *Modelled*: `bamboo.planner.sync.why.break_even`, from the link's rate and from two rates of this
  machine that are measured apart, of a product of other shape and of sums.
- *By bytes alone*: what the same function says without them.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count, pairwise
from multiprocessing.connection import Connection
from typing import Any

import torch

from bamboo.config.tree import ClusterConfig
from bamboo.ids import NodeId
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.situation import Situation
from bamboo.planner.sync.why import break_even
from bamboo.runtime.step.exchange import Exchange, Stand
from bamboo.runtime.step.exchange_plan import ExchangePlan
from bamboo.runtime.step.factors import Factors, summed
from bamboo.runtime.step.numerics import prepare
from bamboo.runtime.wire.link import VirtualLink
from bamboo.runtime.wire.messages import Mailbox
from bamboo.runtime.wire.operands import Operand
from bamboo.runtime.wire.transport import ZmqTransport
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from bamboo.topology.sync import FACTORS, TREE, SyncEntry
from bamboo.topology.virtual_nodes import blocks
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.options import at_least, more_than_zero, parsed
from benchmarks.measuring.report import command_of, in_turn, write_result

LAYERS = {"256 to 4096": (4096, 256), "4096 to 4096": (4096, 4096), "4096 to 734": (734, 4096)}
"""M x N of the three layers after the blocks in `examples/stdlib_files.toml`."""
SHARES = (0.0625, 0.125, 0.25, 0.5, 0.75, 1.0, 1.25)
"""The K that are measured, over the break-even by bytes."""
OF_RATES = (1024, 1536, 2048)
"""K, M and N of the product by which the machine's rate is measured."""
OF_FORMING = (1, 8, 32, 128, 512)
"""The K for which it is told how long a product takes."""
NEAR = 0.15
"""How far the measured K may be from the modelled one."""
PATIENCE_S = 120.0
GRID = Grid(pipelines=2, stages=1)
NODES = (NodeId("one"), NodeId("other"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One exchange: of a layer, in one way."""

    rows: int
    """M."""
    columns: int
    """N."""
    k: int = 0
    """Rows of the input; 0: by `tree`."""


def _node(me: int, folder: str, gbps: float, together: Any, said: Connection) -> None:
    """A process: the owner of one of the two slots."""
    prepare(ClusterConfig(threads=1))
    link = VirtualLink(gbps=gbps, latency_s=0.0)
    transport = ZmqTransport(me=NODES[me], bind=f"ipc://{folder}/{NODES[me]}", link=link)
    members = {node: f"ipc://{folder}/{node}" for node in NODES}
    together.wait(PATIENCE_S)  # the other one's socket is there, too
    transport.reconfigure(generation=1, members=members)
    mailbox = Mailbox(transport, NODES[me])
    mailbox.assign(Assignment(grid=GRID, owners=NODES, shadows=(None, None)))
    try:
        said.send(_rates(together))
        for step in count():
            asked = said.recv()
            if asked is None:
                return
            said.send(_exchanged_s(asked, me, step, mailbox, together))
    finally:
        transport.close()


def _rates(together: Any) -> dict[str, Any]:
    """What both processes reach at once: flops and sums in a second, and how long products take."""
    k, m, n = OF_RATES
    x, g = torch.randn(k, n), torch.randn(k, m)
    one, other = torch.randn(m, n), torch.randn(m, n)
    together.wait(PATIENCE_S)
    product_s = _median_s(lambda: g.t().mm(x))
    together.wait(PATIENCE_S)
    sum_s = _median_s(lambda: one + other)
    forming: dict[str, dict[int, float]] = {}
    for name, (rows, columns) in LAYERS.items():
        forming[name] = {}
        for few in OF_FORMING:
            found = _factors(rows, columns, few)
            forms = partial(summed, [found], torch.Size((rows, columns)))
            together.wait(PATIENCE_S)
            forming[name][few] = 1e3 * _median_s(forms)
    return {
        "flops_per_s": 2.0 * k * m * n / product_s,
        "added_per_s": m * n / sum_s,
        "forming_ms": forming,
    }


def _median_s(work: Callable[[], object], repeats: int = 7) -> float:
    seconds = []
    for _ in range(repeats):
        begin_s = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin_s)
    return statistics.median(seconds)


def _factors(rows: int, columns: int, k: int) -> Factors:
    return Factors(
        input=Operand.of(torch.randn(k, columns)), gradient=Operand.of(torch.randn(k, rows))
    )


def _exchanged_s(asked: Asked, me: int, step: int, mailbox: Mailbox, together: Any) -> float:
    """The time of an exchange, from the leaf to the whole sum."""
    slot = Slot(pipeline=me, stage=0)
    plan = ExchangePlan(
        slot=slot,
        grid=GRID,
        leaves=2,
        blocks=blocks(2, 2),
        shapes=(torch.Size((asked.rows, asked.columns)),),
        names=("0.weight",),
        counts_in_norm=(False,),
        ties=(),
        entries=(SyncEntry(exchange=FACTORS if asked.k else TREE),),
    )
    for of in GRID.slots():
        mailbox.safe[of] = step
    mailbox.prune({})
    exchange = Exchange(plan, step)
    gradient = torch.randn(asked.rows, asked.columns)
    if asked.k:
        exchange.shared.factors[0, me] = [_factors(asked.rows, asked.columns, asked.k)]
    together.wait(PATIENCE_S)
    begin_s = time.perf_counter()
    exchange.add_leaf(me, [gradient])
    while exchange.stand is not Stand.DONE:
        if exchange.can_advance(mailbox):
            exchange.advance(mailbox)
        elif not mailbox.collect(PATIENCE_S):
            raise RuntimeError(f"nothing came within {PATIENCE_S:g} s")
    return time.perf_counter() - begin_s


class Pair:
    """The two processes."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes
        found = [self._answer(pipe) for pipe in pipes]
        self.rates = {name: min(one[name] for one in found) for name in found[0] if "per_s" in name}
        self.forming_ms = found[0]["forming_ms"]

    @staticmethod
    def _answer(pipe: Connection) -> Any:
        if not pipe.poll(PATIENCE_S):
            raise RuntimeError(f"a process said nothing for {PATIENCE_S:g} s")
        return pipe.recv()

    def exchange_s(self, asked: Asked) -> float:
        """The time until both have the sum."""
        for pipe in self._pipes:
            pipe.send(asked)
        return max(float(self._answer(pipe)) for pipe in self._pipes)


@contextmanager
def two_processes(gbps: float) -> Iterator[Pair]:
    """They run until the block ends."""
    spawn = multiprocessing.get_context("spawn")
    together, ours, started = spawn.Barrier(2), [], []
    with tempfile.TemporaryDirectory(prefix="bt-") as folder:
        try:
            for me in range(2):
                here, there = spawn.Pipe()
                process = spawn.Process(
                    target=_node, args=(me, folder, gbps, together, there), daemon=True
                )
                process.start()
                ours.append(here)
                started.append(process)
            yield Pair(ours)
            for pipe in ours:
                pipe.send(None)
        finally:
            for process in started:
                process.join(5.0)
                process.kill()


def crossing(tree_s: float, factors_s: dict[int, float]) -> float:
    """The K from which on factors take longer than `tree`, between two that were measured. Raises
    RuntimeError where they do not cross."""
    for (low, low_s), (high, high_s) in pairwise(sorted(factors_s.items())):
        if low_s <= tree_s < high_s:
            return low + (high - low) * (tree_s - low_s) / (high_s - low_s)
    raise RuntimeError(f"tree takes {tree_s:.4g} s and factors {factors_s}; they do not cross")


def measured(pair: Pair, name: str, *, gbps: float, rounds: int) -> dict[str, Any]:
    """One layer: its break-even measured, modelled, and by bytes."""
    rows, columns = LAYERS[name]
    bytes_per_s = gbps * 1e9 / 8
    facts = ParameterFacts(name="0.weight", shape=(rows, columns), layer=0, rows_k=1)
    situation = Situation(
        cut=(0, 1), shares=(1, 1), microbatches=1, replica=False, bytes_per_s=bytes_per_s
    )
    by_bytes = rows * columns / (rows + columns)
    tried = [max(1, round(share * by_bytes)) for share in SHARES]
    ways = [Asked(rows=rows, columns=columns, k=k) for k in (0, *tried)]
    seconds: dict[int, list[float]] = {one.k: [] for one in ways}
    for one in ways:
        pair.exchange_s(one)  # the first one touches memory
    for number in range(rounds):
        for one in in_turn(ways, number):
            seconds[one.k].append(pair.exchange_s(one))
    medians = {k: statistics.median(values) for k, values in seconds.items()}
    found = crossing(medians.pop(0), medians)
    model = _modelled(facts, situation, pair.rates)
    return {
        "layer": [rows, columns],
        "measured": found,
        "modelled": model,
        "by_bytes": by_bytes,
        "over_modelled": found / model,
        "by_bytes_over": by_bytes / found,
        "seconds": {"tree" if k == 0 else str(k): values for k, values in seconds.items()},
    }


def _modelled(facts: ParameterFacts, situation: Situation, rates: dict[str, float]) -> float:
    even = break_even(facts, replace(situation, **rates))
    assert even is not None
    return even.timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gbps", type=more_than_zero, default=1.0)
    parser.add_argument("--rounds", type=at_least(1), default=5)
    arguments = parsed(parser)
    with two_processes(arguments.gbps) as pair:
        rates = pair.rates
        print(
            f"{rates['flops_per_s'] / 1e9:.1f} GFLOP/s of products, "
            f"{rates['added_per_s'] / 1e9:.2f} G sums/s, both processes at once"
        )
        for name, took in pair.forming_ms.items():
            said = ", ".join(f"K = {k}: {ms:.2f}" for k, ms in took.items())
            print(f"  {name:14} a product takes, in ms, {said}")
        found = {
            name: measured(pair, name, gbps=arguments.gbps, rounds=arguments.rounds)
            for name in LAYERS
        }
    print(f"break-even K at {arguments.gbps:g} Gbps, two pipelines")
    claims = []
    for name, one in found.items():
        print(
            f"  {name:14} measured {one['measured']:6.0f}  with flops {one['modelled']:6.0f}  "
            f"by bytes alone {one['by_bytes']:6.0f}"
        )
        off = abs(one["measured"] / one["modelled"] - 1)
        claims.append(Claim(about=f"{name}: off the model with flops", found=off, limit=NEAR))
    off = max(one["by_bytes"] / one["measured"] - 1 for one in found.values())
    claims.append(Claim(about="bytes alone, where most off", found=off, limit=NEAR, at_most=False))
    for claim in claims:
        print(claim.line())
    body = {
        "rates": rates,
        "forming_ms": pair.forming_ms,
        "break_even": found,
        "claims": [asdict(claim) for claim in claims],
    }
    print(write_result("break-even-k", command_of("break_even_k", arguments), body))


if __name__ == "__main__":
    main()
