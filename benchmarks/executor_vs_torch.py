"""Our executor compared with torch's Schedule1F1B and ScheduleGPipe, and with one plain process.

    python -m benchmarks.executor_vs_torch [--sizes 8x256,16x512] [--grids 1x4,1x2,2x2,2x4]
                                           [--rounds N] [--contenders off,stash,gpipe,single]

A GPT of 8 blocks, width 256, and one of 16 blocks, width 512; 128 tokens, dropout 0.1, a global
batch of 8 microbatches of 4 sequences, so of 4 in each of two pipelines. One thread a process,
AdamW fused, decay for matrices alone. Ours has one microbatch more in flight on each stage but the
last than Schedule1F1B has (bamboo/schedule/README.md). All clip the global norm at 1: ours by the
squares of each parameter, which go to all slots, torch by its own norm of each stage and one number
by Gloo. Ours also pays for the promise: keyed randomness, the loss record, contiguous boundaries,
and in `stash` (the default) the gradient to the shadow and the replica's step. Two pipelines of
torch's add their gradients in one bucket by Gloo, as DistributedDataParallel does.

All contenders of a case live at once (except in the largest, where each is alone with torch's
Schedule1F1B) and take turns (benchmarks/measuring/turns.py). Measured are wall time per step on the
existing cores, and processor time per step of all processes, the store's included. Each round has
new processes, because a process keeps an advantage or a disadvantage of some percent to its end.
Only the layout of addresses stays, which all forks of one parent share. With fewer cores than
processes there are no bubbles, so what counts is the ratio of costs in one round: 1f1b / contender;
above 1 the contender is faster than torch's Schedule1F1B. `us/op` is the processor time of our
training threads for each operation, without the operation's own work.
"""

import argparse
import contextlib
import os
import statistics
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from bamboo.config.tree import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.options import at_least, parsed, selected
from benchmarks.measuring.report import (
    command_of,
    in_turn,
    interval_name,
    median_with_interval,
    paired_ratios,
    write_result,
)
from benchmarks.measuring.stamped import ours
from benchmarks.measuring.torch_pipeline import SINGLE, torchs
from benchmarks.measuring.turns import Contender, Cost, beside_us, mean_of, read_stamps, take_turns

REFERENCE = "1f1b"
LIMITS = {"off": 1.0, "stash": 0.97}
"""Torch's time for a step divided by ours, at least."""
OURS = tuple(LIMITS)
CONTENDERS = (REFERENCE, *OURS, "gpipe", SINGLE)
CUTS = {
    ("8x256", 4): (0, 3, 5, 7, 10),
    ("8x256", 2): (0, 5, 10),
    ("16x512", 4): (0, 5, 9, 13, 18),
    ("16x512", 2): (0, 9, 18),
}
"""The embedding goes with the first blocks, the head with the last."""
STEPS = {"8x256": 6, "16x512": 1}
"""Steps in a turn of nine seconds or so: a shorter turn is mostly its begin, with cold caches."""
WARM_UP_STEPS = 2
"""They touch all memory that a step touches, and what two steps keep at once."""
TURNS = 2
"""Turns of each contender in a round, whose cost is their mean."""
ROUNDS = 6
"""The same in each case, and enough for an interval."""
ENDLESS_STEPS = 100_000
PATIENCE_S = 3600.0
"""A contender is stopped for most of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Which contenders run which model on which grid."""

    size: str
    pipelines: int
    stages: int
    contenders: tuple[str, ...] = CONTENDERS
    apart: bool = False
    """Whether each is alone with the reference: all at once would need more than 24 GB."""

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The contenders that live at once."""
        if not self.apart:
            return [self.contenders]
        return [(REFERENCE, name) for name in self.contenders if name != REFERENCE]

    @property
    def grid(self) -> str:
        return f"{self.pipelines}x{self.stages}"


GRIDS = ("1x2", "1x4", "2x2", "2x4")
PIPELINES = (REFERENCE, *OURS, "gpipe")
CASES = (
    Case(size="8x256", pipelines=1, stages=4),
    Case(size="8x256", pipelines=1, stages=2, contenders=PIPELINES),
    Case(size="8x256", pipelines=2, stages=2, contenders=PIPELINES),
    Case(size="8x256", pipelines=2, stages=4, contenders=PIPELINES),
    Case(size="16x512", pipelines=1, stages=4),
    Case(size="16x512", pipelines=1, stages=2, contenders=PIPELINES),
    Case(size="16x512", pipelines=2, stages=2, contenders=PIPELINES),
    Case(size="16x512", pipelines=2, stages=4, contenders=PIPELINES, apart=True),
)


def job(case: Case, mode: str) -> JobConfig:
    """The same job for every contender."""
    layers, width = map(int, case.size.split("x"))
    return JobConfig(
        checkpoint=CheckpointConfig(every_steps=0),
        model=ModelConfig(layers=layers, width=width, heads=8, context=128, dropout=0.1),
        data=DataConfig(max_bytes=2_000_000),
        train=TrainConfig(steps=ENDLESS_STEPS, batch=32, microbatch=4),
        cluster=ClusterConfig(
            pipelines=case.pipelines,
            stages=case.stages,
            cut=CUTS[case.size, case.stages][:-1],
            redundancy=mode,
            gone_s=PATIENCE_S,
            step_timeout_s=PATIENCE_S,
        ),
    )


def contender(case: Case, name: str) -> AbstractContextManager[Contender]:
    """A running contender."""
    if name in OURS:
        return ours(name, job(case, name))
    return torchs(name, job(case, "off"), CUTS[case.size, case.stages])


def played(
    case: Case, names: Sequence[str], rounds: int
) -> tuple[dict[str, list[Cost]], dict[str, float]]:
    """By contender, the cost of a step in each round, and the cost of an operation without its
    work, as the median of rounds."""
    found: dict[str, list[Cost]] = {name: [] for name in names}
    beside: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        with contextlib.ExitStack() as stack:
            running = []
            for name in in_turn(names, number):
                running.append(stack.enter_context(contender(case, name)))
                running[-1].run(WARM_UP_STEPS)
            costs = take_turns(running, rounds=TURNS, steps=STEPS[case.size])
            for one in running:
                found[one.name].append(mean_of(costs[one.name]))
                stamps = read_stamps(one.folder)
                beside[one.name].append(beside_us(stamps, WARM_UP_STEPS))
    return found, {name: statistics.median(each) for name, each in beside.items()}


def rows_of(case: Case, rounds: int) -> list[dict[str, Any]]:
    """Play a case. One row of the table for each contender, with every value; a row of the
    reference for each group."""
    return [row for names in case.groups for row in _rows_of(case, names, rounds)]


def _rows_of(case: Case, names: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    found, beside = played(case, names, rounds)
    rows = []
    for name, each in found.items():
        row: dict[str, Any] = {"size": case.size, "grid": case.grid, "contender": name}
        row["beside_us_per_operation"] = beside[name]
        for what in ("wall_s", "cpu_s"):
            values = [getattr(cost, what) for cost in each]
            reference = [getattr(cost, what) for cost in found[REFERENCE]]
            row[what] = median_with_interval(values)
            row[f"every_{what}"] = values
            row[f"1f1b_over_it_{what}"] = median_with_interval(paired_ratios(reference, values))
        rows.append(row)
    return rows


def claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """The claims on ours, by the median of the wall times' ratios."""
    return [
        Claim(
            about=f"{row['size']} on {row['grid']}, {row['contender']}: 1f1b / it, wall",
            found=row["1f1b_over_it_wall_s"][0],
            limit=LIMITS[row["contender"]],
            at_most=False,
            interval=row["1f1b_over_it_wall_s"][1:],
        )
        for row in rows
        if row["contender"] in LIMITS
    ]


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    ratios = "  ".join(
        f"{middle:6.3f} ({low:.3f}-{high:.3f})"
        for middle, low, high in (row["1f1b_over_it_wall_s"], row["1f1b_over_it_cpu_s"])
    )
    ms = f"{1e3 * row['wall_s'][0]:8.0f} {1e3 * row['cpu_s'][0]:8.0f}"
    beside_us = row["beside_us_per_operation"]
    beside = f"{beside_us:6.0f}" if beside_us else ""
    return f"{row['size']:7} {row['grid']:5} {row['contender']:7} {ms}  {ratios} {beside}"


def head_of(rounds: int) -> str:
    """The head of the table."""
    between = interval_name(rounds)
    return (
        f"{'model':7} {'grid':5} {'':7} {'wall ms':>8} {'cpu ms':>8}  "
        f"{f'1f1b / it: wall ({between})':>22}  {f'cpu ({between})':>22}  us/op"
    )


def chosen(sizes: str, grids: str, contenders: str) -> list[Case]:
    """The cases of these sizes and grids, with all contenders or those that are named. The
    reference comes first. An empty text means the default."""
    cases = [
        _case(size, *map(int, grid.split("x")))
        for size in (sizes or ",".join(STEPS)).split(",")
        for grid in (grids or ",".join(_grids(size))).split(",")
    ]
    named = [name for name in contenders.split(",") if name]
    out = []
    for case in cases:
        others = [n for n in CONTENDERS if n in (named or case.contenders) and n != REFERENCE]
        changed = replace(case, contenders=(REFERENCE, *others))
        out.append(changed)
    return out


def _grids(size: str) -> list[str]:
    return [case.grid for case in CASES if case.size == size]


def _case(size: str, pipelines: int, stages: int) -> Case:
    own = Case(size=size, pipelines=pipelines, stages=stages)
    return next(case for case in CASES if (case.size, case.grid) == (size, own.grid))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--grids", default="", help=f"pipelines x stages, of {', '.join(GRIDS)}")
    parser.add_argument("--rounds", type=at_least(1), default=ROUNDS)
    parser.add_argument("--contenders", default="", help=f"of {', '.join(CONTENDERS)}")
    arguments = parsed(parser, argv)
    for option, known in (("sizes", STEPS), ("grids", GRIDS), ("contenders", CONTENDERS)):
        given = getattr(arguments, option)
        if unknown := [word for word in given.split(",") if given and word not in known]:
            parser.error(f"--{option} {unknown[0]!r}: there are {', '.join(known)}")
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    head = head_of(arguments.rounds)
    parts = selected(parser, arguments, "sizes", "grids", "contenders")
    command = command_of("executor_vs_torch", arguments)
    for case in chosen(arguments.sizes, arguments.grids, arguments.contenders):
        print(f"{case.size} on {case.grid}: {arguments.rounds} rounds", flush=True)
        found = rows_of(case, arguments.rounds)
        print("\n".join([head, *map(line, found)]), f"\nload {os.getloadavg()[0]:.1f}", flush=True)
        rows += found
        # Write after each case, in case a later one does not finish.
        path = write_result("executor-vs-torch", command, _body(rows), *parts)
    print("\n".join(["", head, *map(line, rows)]))
    print("\n".join(claim.line() for claim in claims(rows)))
    print(f"written: {path.name}")


def _body(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"claims": [asdict(claim) for claim in claims(rows)], "rows": rows}


if __name__ == "__main__":
    main()
