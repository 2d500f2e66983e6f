"""What each way of synchronising sends, counted by the transport and beside its formula.

    python -m benchmarks.strategies.sent_bytes [--parts jobs,zones,mixed]

Real trainers in one process (`testbed.simulated`), two stages with shadows (`stash`); bytes are
those of tensors, by kind of message, without headers. `jobs`: three shapes of models, with 2 and 4
pipelines, under each builder, beside `planner.sync.resolved`. `zones`: what crosses from zone to
zone under `tree` and `zoned`, with 4 and 8 pipelines in two zones. `mixed`: the job of
`examples/stdlib_files.py` in its own size, 8,192 tokens a step, under `tree` and `auto`.

One step is played, and the share of rows with a bit set is counted in its gradients by a plain
backward, so the formula of `rows` is compared with its own inputs; what the preflight expects of
that share is shown beside it.
"""

import argparse
import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bamboo import wiring
from bamboo.config.tree import JobConfig
from bamboo.ids import RunId
from bamboo.models import build_layer
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.step.step_time import StepTimes
from bamboo.planner.step.synced import parameters_of
from bamboo.planner.sync.builders import BUILDERS, build
from bamboo.planner.sync.resolved import Resolved, resolve
from bamboo.planner.sync.situation import Situation
from bamboo.study.planning import plan_job
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.sync import ROWS, ZONED, Sync, SyncRule
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.options import chosen, parsed
from benchmarks.measuring.report import command_of, write_result
from examples import stdlib_files
from testbed import strategy_jobs
from testbed.simulated import World, builder_of

PARTS = ("jobs", "zones", "mixed")
SHAPES = ("GPT", "CNN", "mixed")
PIPELINES = (2, 4)
IN_ZONES = (4, 8)
STAGES = 2
WINDOWS = 128
"""Of a step of the mixed job: 8,192 tokens."""
EXCHANGE = ("partial", "shard", "merged", "relayed", "factors")
NEAR = 0.03
FEWER = 5.0
GBPS = 0.25
"""The link for which `auto` and the hybrids choose in the mixed job. A CPU's products, of some 20
Gflop/s, are as many flops for a byte of it as 0.8 Tflop/s are at 10 Gbps; a GPU has more."""
SLOW_GBPS = 0.01
"""The same for small sizes, of which each message is small."""
FORWARD_MS = 20.0
"""Of a microbatch in each stage; a backward takes twice that."""
MB = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """A job on a grid, with what the planner knows of it."""

    job: JobConfig
    workload: WorkloadFigures
    situation: Situation
    facts: tuple[ParameterFacts, ...]
    """As the preflight found them."""
    counted: tuple[ParameterFacts, ...]
    """With the densities of the step that is played."""

    def resolved(
        self, sync: Sync, facts: Sequence[ParameterFacts], situation: Situation
    ) -> Resolved:
        """The strategy on the grid."""
        layers = enumerate(self.workload.layers)
        statistics = {index: layer.statistics for index, layer in layers}
        return resolve(sync, facts, situation, statistics=statistics)


def laid(job: JobConfig, pipelines: int, gbps: float) -> Laid:
    """A job on so many pipelines of two stages."""
    cluster = replace(
        job.cluster,
        pipelines=pipelines,
        stages=STAGES,
        redundancy="stash",
        device="virtual",
        virtual_forward_ms=(FORWARD_MS,),
        virtual_backward_ms=(2 * FORWARD_MS,),
        virtual_link_gbps=gbps,
    )
    train = replace(job.train, steps=1, virtual_nodes=pipelines)
    job = replace(job, cluster=cluster, train=train)
    # Whatever machine plans: each node has its own cores.
    seen = {**wiring.run_preflight(job), "cores": 0}
    planned = plan_job(job, seen, run=RunId("bytes"), now_s=0.0)
    cut = planned.strategy.placement.cut
    played = replace(job, cluster=replace(cluster, device="cpu", cut=cut[:-1]))
    grid, shares = Grid(pipelines=pipelines, stages=STAGES), equal_shares(pipelines, pipelines)
    times = StepTimes(planned.workload, "stash")
    facts = parameters_of(planned.workload)
    return Laid(
        job=played,
        workload=planned.workload,
        situation=replace(times.situation(grid, shares), cut=cut),
        facts=facts,
        counted=counted(facts, played, cut),
    )


def counted(
    facts: Sequence[ParameterFacts], job: JobConfig, cut: tuple[int, ...]
) -> tuple[ParameterFacts, ...]:
    """The facts with the densities of the first step: of the gradient of a pipeline's virtual node,
    on average, and of the whole step's, by a plain backward of the whole model."""
    builder = builder_of(job, cut)
    seed, workload = job.train.seed, builder.workload
    layers = [build_layer(workload, n, seed) for n in range(len(workload.layers))]
    model = nn.Sequential(*layers)
    total = job.train.batch // job.train.microbatch
    own = total // job.train.virtual_nodes
    parts: dict[str, list[Tensor]] = {}
    for first in range(0, total, own):
        model.zero_grad()
        for microbatch in range(first, first + own):
            inputs, targets = builder.dataset.microbatch(0, microbatch)
            outputs = model(*inputs)
            workload.loss(outputs, targets[0] if len(targets) == 1 else targets).backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and parameter.ndim > 1:
                parts.setdefault(name, []).append(parameter.grad.flatten(1).ne(0).any(1))
    return tuple(_with_densities(one, parts.get(one.name, []), own, total) for one in facts)


def _with_densities(
    facts: ParameterFacts, touched: Sequence[Tensor], own: int, total: int
) -> ParameterFacts:
    """With what `density_after` needs to give the mean of these for `own` microbatches."""
    if not touched:
        return facts
    mean = float(torch.stack(list(touched)).float().mean())
    whole = float(torch.stack(list(touched)).any(0).float().mean())
    share = math.log(own) / math.log(total)
    density = math.exp((math.log(mean) - share * math.log(whole)) / (1 - share))
    return replace(facts, density=density, step_density=whole)


def play(job: JobConfig, sync: Sync, cut: tuple[int, ...] = ()) -> World:
    """One step."""
    world = World(job, random.Random(1), sync=sync, cut=cut)
    world.run_in_order()
    return world


def sent_by(world: World) -> tuple[int, int]:
    """Bytes of the exchange and of the ships, as the transports counted them."""
    sent = world.sent_bytes()
    return sum(sent.get(kind, 0) for kind in EXCHANGE), sent["ship"]


def compare(name: str, builder: str, on: Laid) -> dict[str, Any]:
    """One strategy of one job: counted, by formula, and expected by the preflight's densities."""
    situation, pipelines = on.situation, on.job.cluster.pipelines
    if builder == ZONED:
        zones = tuple(2 * pipeline // pipelines for pipeline in range(pipelines))
        situation = replace(situation, zones=zones)
    sync = build(builder, on.facts, situation)
    exchanged, shipped = sent_by(play(on.job, sync, situation.cut))
    formula = on.resolved(sync, on.counted, situation)
    planned = on.resolved(sync, on.facts, situation)
    found = {
        "exchange": exchanged,
        "exchange_formula": formula.exchanged_bytes,
        "exchange_planned": planned.exchanged_bytes,
        "ship": shipped,
        "ship_formula": formula.shipped_bytes,
        "ship_planned": planned.shipped_bytes,
        "kinds": formula.sent_by_kind()
        | {f"ship {k}": v for k, v in formula.shipped_by_kind().items()},
    }
    apart = [found[kind] / found[f"{kind}_formula"] - 1 for kind in ("exchange", "ship")]
    found["apart"] = apart
    by_rows = any(ROWS in (rule.exchange, rule.ship) for rule in sync.rules)
    expected = (found["exchange_planned"] + found["ship_planned"]) / (exchanged + shipped)
    print(
        f"{name:6} D={pipelines} {builder:15} exchange {exchanged / MB:9.3f} MB {apart[0]:+7.2%}  "
        f"ship {shipped / MB:9.3f} MB {apart[1]:+7.2%}"
        + (f"  planned {expected - 1:+.1%}" if by_rows else ""),
        flush=True,
    )
    return found


def of_jobs(folder: Path) -> dict[str, Any]:
    """Every builder on three shapes."""
    strategy_jobs.write_small(folder)
    out: dict[str, Any] = {}
    for name in SHAPES:
        for pipelines in PIPELINES:
            on = laid(strategy_jobs.medium(name, folder), pipelines, SLOW_GBPS)
            for builder in BUILDERS:
                if builder == ZONED and pipelines == 2:
                    continue  # two pipelines in two zones have nothing to add before
                out[f"{name}, D = {pipelines}, {builder}"] = compare(name, builder, on)
    return out


def of_zones(folder: Path) -> dict[str, Any]:
    """Bytes between two zones."""
    out: dict[str, Any] = {}
    job = strategy_jobs.small("CNN", folder)
    for pipelines in IN_ZONES:
        cluster = replace(job.cluster, pipelines=pipelines, stages=1, redundancy="peer")
        laid_out = replace(job, cluster=cluster, train=replace(job.train, steps=1))
        zones = tuple(2 * pipeline // pipelines for pipeline in range(pipelines))
        rule = SyncRule(match="*", exchange=ZONED)
        ways = {"tree": Sync(), ZONED: Sync(rules=(rule,), zones=zones)}
        found = {name: play(laid_out, sync).between(EXCHANGE, zones) for name, sync in ways.items()}
        found["share"] = found[ZONED] / found["tree"]
        print(f"CNN    D={pipelines} between two zones {found}")
        out[f"D = {pipelines}"] = found
    return out


def of_mixed(folder: Path) -> dict[str, Any]:
    """`tree` and `auto` in the job's own size."""
    stdlib_files.write(folder, 10_000)
    out: dict[str, Any] = {}
    for pipelines in PIPELINES:
        job = strategy_jobs.large("mixed", folder, batch=WINDOWS, microbatch=16)
        on = laid(job, pipelines, GBPS)
        for builder in ("tree", "auto"):
            out[f"D = {pipelines}, {builder}"] = compare("mixed", builder, on)
        tree, auto = (out[f"D = {pipelines}, {builder}"] for builder in ("tree", "auto"))
        whole = {kind: tree[kind] / auto[kind] for kind in ("exchange", "ship")}
        sums = [one["exchange"] + one["ship"] for one in (tree, auto)]
        whole["both"] = sums[0] / sums[1]
        print(f"mixed  D={pipelines} fewer by", {k: round(v, 2) for k, v in whole.items()})
        out[f"D = {pipelines}, fewer"] = whole
    return out


def claims(body: dict[str, Any]) -> list[Claim]:
    """On what was played."""
    out = []
    rows = [
        (f"{part}: {name}", one)
        for part, found in body.items()
        for name, one in found.items()
        if "apart" in one
    ]
    for place, what in enumerate(("exchange", "ship")):
        name, worst = max(rows, key=lambda row: abs(row[1]["apart"][place]))
        about = f"{what} beside its formula, at worst ({name})"
        out.append(Claim(about=about, found=abs(worst["apart"][place]), limit=NEAR))
    for name, one in body.get("mixed", {}).items():
        if name.endswith("fewer"):
            about = f"mixed job, {name.partition(',')[0]}: bytes of tree over auto"
            out.append(Claim(about=about, found=one["both"], limit=FEWER, at_most=False))
    for name, one in body.get("zones", {}).items():
        about = f"two zones, {name}: bytes of zoned over tree"
        wanted = 2 / int(name.rpartition(" ")[2])
        out.append(Claim(about=about, found=one["share"], limit=wanted * (1 + NEAR)))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS))
    arguments = parsed(parser)
    parts = chosen(parser, "part", arguments.parts, PARTS)
    body: dict[str, Any] = {}
    for part, played in (("jobs", of_jobs), ("zones", of_zones), ("mixed", of_mixed)):
        if part in parts:
            with tempfile.TemporaryDirectory() as folder:
                body[part] = played(Path(folder))
    made = claims(body)
    print("\n".join(["", *(claim.line() for claim in made)]))
    said = {"claims": [asdict(claim) for claim in made], **body}
    part = "" if parts == list(PARTS) else arguments.parts
    command = command_of("strategies.sent_bytes", arguments)
    print(f"written: {write_result('strategy-bytes', command, said, part).name}")


if __name__ == "__main__":
    main()
