"""How long a step takes under each strategy, beside `auto` and beside what the planner says.

    python -m benchmarks.strategies.step_time [--cases mixed-2-1,GPT-2-10] [--rounds 5] [--steps 8]
        [--builders tree,factors-hybrid]

Real worker processes on the virtual device, over the virtual link, builders in turn, round by
round. A case is a job, a number of pipelines and the link's Gbps: `mixed-4-1`. With one pipeline a
job has two stages, whose gradients go to shadows; with more it has one stage. A builder that
takes `HOPELESS` times as long as the best single builder in two rounds is played no more.

*Early buckets*: where `auto` has several buckets, the same rules with one bucket a stage run too.
What buckets hide is the difference of the two steps, beside the difference that the dry run says.

Operations really compute, in less than their given time. For two cores to keep up, the mixed job
has 32 windows of 64 tokens a step here, operations take `SLOW` times as long, and links are as much
slower (by similarity, as in `benchmarks.redundancy_overhead`); overruns are counted. Optimizer and
sums take what they take.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bamboo import wiring
from bamboo.config.tree import JobConfig
from bamboo.ids import RunId
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.step.step_time import StepTimes
from bamboo.planner.step.synced import parameters_of
from bamboo.planner.sync.builders import build
from bamboo.study.planning import plan_job
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.sync import Sync
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.local_run import LEAST_STEPS, step_times_s
from benchmarks.measuring.options import at_least, chosen, parsed
from benchmarks.measuring.report import (
    command_of,
    in_turn,
    median_with_interval,
    paired_ratios,
    write_result,
)
from examples import stdlib_files
from testbed import strategy_jobs

SINGLE = ("tree", "owner", "balanced", "sparse-hybrid", "factors-hybrid")
AUTO = "auto"
ONE_BUCKET = "auto, one bucket"
FORWARD_MS: Mapping[str, float] = {"mixed": 60.0, "GPT": 20.0, "tied GPT": 20.0, "CNN": 20.0}
"""Of a microbatch in a stage; a backward takes twice that."""
SLOW: Mapping[int, float] = {1: 2.0, 2: 2.0, 4: 4.0}
"""By the number of pipelines."""
BATCH: Mapping[str, int] = {"mixed": 32, "GPT": 16, "tied GPT": 16, "CNN": 32}
MICROBATCHES = 2
"""Of each pipeline."""
CASES = (
    *("mixed-2-1", "mixed-4-1", "mixed-2-10", "mixed-4-10", "mixed-1-1"),
    *(f"{name}-{grid}" for name in ("GPT", "tied GPT", "CNN") for grid in ("1-1", "2-1", "2-10")),
)
FASTER, SLOWER, HIDDEN, PREDICTED = 1.2, 1.02, 0.8, 0.15
HOPELESS = 1.15
SEEN = 0.05
"""Share of a step that buckets hide at least where what they hide is more than the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job on its grid, with the planner's figures."""

    job: JobConfig
    workload: WorkloadFigures
    grid: Grid

    @property
    def shares(self) -> tuple[int, ...]:
        """Virtual nodes of each pipeline."""
        return equal_shares(self.job.train.virtual_nodes, self.grid.pipelines)

    def times(self, sync: Sync) -> StepTimes:
        """Those of the dry run under a strategy."""
        syncing = replace(self.workload.syncing, sync=sync)
        return StepTimes(replace(self.workload, syncing=syncing), self.job.cluster.redundancy)

    def built(self, name: str) -> Sync:
        """What a builder makes for it."""
        situation = self.times(Sync()).situation(self.grid, self.shares)
        return build(name, parameters_of(self.workload), situation)

    def planned_s(self, sync: Sync) -> float:
        """Of a calm step."""
        return self.times(sync).calm_s(self.grid, self.shares)


def case_of(name: str, folder: Path, steps: int) -> Case:
    """The case of this name."""
    kind, pipelines_said, gbps = name.rsplit("-", 2)
    pipelines = int(pipelines_said)
    stages, slow = 2 if pipelines == 1 else 1, SLOW[pipelines]
    microbatch = BATCH[kind] // pipelines // MICROBATCHES
    job = strategy_jobs.large(kind, folder, batch=BATCH[kind], microbatch=microbatch)
    cluster = replace(
        job.cluster,
        pipelines=pipelines,
        stages=stages,
        redundancy="stash" if stages > 1 else "peer",
        device="virtual",
        virtual_forward_ms=(slow * FORWARD_MS[kind],),
        virtual_backward_ms=(2 * slow * FORWARD_MS[kind],),
        virtual_link_gbps=float(gbps) / slow,
    )
    train = replace(job.train, steps=steps, virtual_nodes=pipelines)
    job = replace(job, cluster=cluster, train=train)
    seen = wiring.run_preflight(job)
    planned = plan_job(job, seen, run=RunId("time"), now_s=0.0)
    cut = planned.strategy.placement.cut
    return Case(
        job=replace(job, cluster=replace(cluster, cut=cut[:-1])),
        workload=planned.workload,
        grid=Grid(pipelines=pipelines, stages=stages),
    )


@dataclass(slots=True, kw_only=True)
class Found:
    """The rounds of one strategy."""

    planned_ms: float
    sync: Sync
    step_ms: list[float] = field(default_factory=list)
    overruns: int = 0

    def play(self, job: JobConfig) -> None:
        """One round."""
        times, memory = step_times_s(job, self.sync)
        self.step_ms.append(1e3 * statistics.median(times))
        last = {record["node"]: record["overruns"] for record in memory}
        self.overruns += sum(last.values())

    @property
    def median_ms(self) -> float:
        return statistics.median(self.step_ms)

    def hopeless(self, best: "Found") -> bool:
        """Whether two rounds have shown that it is far slower than the best single builder."""
        rounds = list(zip(self.step_ms, best.step_ms, strict=False))
        return len(rounds) >= 2 and all(own > HOPELESS * other for own, other in rounds)


def compare(name: str, case: Case, singles: Sequence[str], rounds: int) -> dict[str, Any]:
    """These single builders and `auto` on a case, in turn."""
    syncs = {builder: case.built(builder) for builder in (*singles, AUTO)}
    if case.grid.pipelines > 1 and syncs[AUTO].bucket is not None:
        syncs[ONE_BUCKET] = replace(syncs[AUTO], bucket=None)
    found: dict[str, Found] = {}
    alike: dict[Sync, str] = {}
    for builder, sync in syncs.items():
        # What two builders make alike is played once.
        first = alike.setdefault(sync, builder)
        found[builder] = found.get(first) or Found(planned_ms=1e3 * case.planned_s(sync), sync=sync)
    for number in range(rounds):
        best = min((found[one] for one in singles), key=lambda one: min(one.step_ms, default=0))
        left = [one for one in alike.values() if not found[one].hopeless(best)]
        for builder in in_turn(left, number):
            found[builder].play(case.job)
        said = ", ".join(f"{b} {found[b].step_ms[-1]:.0f}" for b in left)
        print(f"{name}, round {number}: {said} ms", flush=True)
    return summed_up(name, found)


def summed_up(name: str, found: Mapping[str, Found]) -> dict[str, Any]:
    """Print a case's table. Returns what the result keeps of it."""
    auto = found[AUTO]
    rows = {}
    print(f"\n{name}\n  {'strategy':16} {'ms/step':>8} {'planned':>8} {'over auto':>9}  overruns")
    for builder, one in found.items():
        beside = auto.step_ms[: len(one.step_ms)]
        ratio, low, high = median_with_interval(paired_ratios(one.step_ms, beside))
        print(
            f"  {builder:16} {one.median_ms:8.1f} {one.planned_ms:8.1f} {ratio:9.3f}"
            f"  ({low:.3f}-{high:.3f}) {one.overruns}"
        )
        rows[builder] = {
            "step_ms": one.step_ms,
            "planned_ms": one.planned_ms,
            "over_auto": [ratio, low, high],
            "overruns": one.overruns,
            "sync": one.sync.body(),
        }
    out: dict[str, Any] = {"strategies": rows}
    best = min((row["over_auto"][0], builder) for builder, row in rows.items() if builder in SINGLE)
    out["best_single"] = {"builder": best[1], "over_auto": best[0]}
    if ONE_BUCKET in found:
        one = found[ONE_BUCKET]
        can_ms = one.planned_ms - auto.planned_ms
        hidden = [a - b for a, b in zip(one.step_ms, auto.step_ms, strict=True)]
        share = statistics.median(hidden) / can_ms if can_ms > 0 else None
        out["buckets"] = {"can_ms": can_ms, "hidden_ms": hidden, "share": share}
        print(f"  buckets hide {statistics.median(hidden):.0f} ms of {can_ms:.0f} that they can")
    return out


def claims(name: str, body: Mapping[str, Any]) -> list[Claim]:
    """On the case of this name."""
    best, auto = body["best_single"], body["strategies"][AUTO]
    about = f"{name}: best single builder ({best['builder']}) over auto"
    limit = FASTER if name in ("mixed-2-1", "mixed-4-1") else 1 / SLOWER
    out = [Claim(about=about, found=best["over_auto"], limit=limit, at_most=False)]
    apart = abs(auto["planned_ms"] / statistics.median(auto["step_ms"]) - 1)
    out.append(Claim(about=f"{name}: auto as planned", found=apart, limit=PREDICTED))
    buckets = body.get("buckets")
    if buckets is not None and buckets["can_ms"] > SEEN * auto["planned_ms"]:
        share = buckets["share"]
        about = f"{name}: hidden of what buckets can hide"
        out.append(Claim(about=about, found=share, limit=HIDDEN, at_most=False))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--steps", type=at_least(LEAST_STEPS), default=8)
    parser.add_argument("--builders", default=",".join(SINGLE), help="beside auto")
    arguments = parsed(parser)
    singles = chosen(parser, "builder", arguments.builders, SINGLE)
    names = chosen(parser, "case", arguments.cases, CASES)
    command = command_of("strategies.step_time", arguments)
    made = []
    with tempfile.TemporaryDirectory() as folder:
        if any(name.startswith("mixed") for name in names):
            stdlib_files.write(Path(folder), 10_000)
        for name in names:
            case = case_of(name, Path(folder), arguments.steps)
            body = compare(name, case, singles, arguments.rounds)
            found = claims(name, body)
            said = {"claims": [asdict(claim) for claim in found], **body}
            path = write_result("strategy-step-time", command, said, name.replace(" ", "-"))
            print(f"written: {path.name}")
            made += found
    print("\n".join(["", *(claim.line() for claim in made)]))


if __name__ == "__main__":
    main()
