"""The plan's step time and memory, compared with those of real processes.

    python -m benchmarks.plan_vs_real [--rounds 3] [--jobs deep,wide,linked,cpu]

Three jobs on the virtual device, where a few cores suffice for the nodes, and one that computes on
the CPU with more processes than cores. The plan of that one takes longer wherever more nodes
compute at once than there are cores. Steps: the median of a run against the prediction. Bytes: of
the node that holds most of what the plan gives it, its tensors at their peak.
"""

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bamboo import wiring
from bamboo.config.load import load_job
from bamboo.config.tree import JobConfig
from bamboo.ids import RunId
from bamboo.study.planning import plan_job
from benchmarks.measuring.local_run import step_times_s
from benchmarks.measuring.options import at_least, chosen, parsed, selected
from benchmarks.measuring.report import command_of, median_and_quartiles, write_result

JOB = Path(__file__).parents[1] / "examples" / "gpt-local.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job by its differences from the example, and how far its step may be from the plan's."""

    keys: tuple[str, ...]
    limit: float


COMMON = ("cluster.standbys=0", "chaos.kill=[]", "train.steps=24")
SMALL = ("model.width=64", "model.heads=4", "model.context=32")
"""So small that a step's time is the virtual device's sleep, not its work."""
CASES = {
    "deep": Case(
        keys=(
            *SMALL,
            "model.layers=6",
            "cluster.stages=8",
            "cluster.redundancy=stash",
            "cluster.device=virtual",
            "cluster.virtual_forward_ms=[20.0]",
            "cluster.virtual_backward_ms=[40.0]",
        ),
        limit=0.15,
    ),
    "wide": Case(
        keys=(
            *SMALL,
            "train.virtual_nodes=2",
            "cluster.pipelines=2",
            "cluster.stages=3",
            "cluster.redundancy=eager",
            "cluster.device=virtual",
            "cluster.virtual_forward_ms=[20.0, 25.0, 30.0]",
            "cluster.virtual_backward_ms=[40.0, 50.0, 60.0]",
        ),
        limit=0.15,
    ),
    "linked": Case(
        keys=(
            *SMALL,
            "cluster.stages=4",
            "cluster.redundancy=stash",
            "cluster.device=virtual",
            "cluster.virtual_forward_ms=[20.0]",
            "cluster.virtual_backward_ms=[40.0]",
            "cluster.virtual_link_gbps=0.02",
            "cluster.virtual_link_latency_ms=2.0",
        ),
        limit=0.15,
    ),
    "cpu": Case(keys=("cluster.stages=4", "cluster.redundancy=stash"), limit=0.25),
}
BYTES_LIMIT = 0.15


def job_of(case: Case) -> JobConfig:
    """The example with this case's keys."""
    return load_job(JOB, (*COMMON, *case.keys))


def predicted(job: JobConfig) -> tuple[float, int]:
    """Seconds of a step on this machine, and bytes of the fullest node."""
    planned = plan_job(job, wiring.run_preflight(job), run=RunId("plan"), now_s=0.0)
    expected = planned.plan.expected
    assert expected is not None, "both devices have times"
    return expected.step_s, max(one.calm for one in planned.plan.memory)


def measured(job: JobConfig) -> tuple[float, int]:
    """The median step of a run of real processes, and the most bytes that one of its nodes held."""
    times, records = step_times_s(job)
    return statistics.median(times), max(int(str(r["peak_tensor_bytes"])) for r in records)


def compare(name: str, case: Case, rounds: int) -> dict[str, Any]:
    """One case, with a new prediction for each run."""
    job = job_of(case)
    ratios, fullest, plans, runs = [], [], [], []
    for _ in range(rounds):
        step_s, planned_bytes = predicted(job)
        real_s, real_bytes = measured(job)
        plans.append(step_s)
        runs.append(real_s)
        ratios.append(step_s / real_s)
        fullest.append(planned_bytes / real_bytes)
    middle, low, high = median_and_quartiles(ratios)
    bytes_ratio = statistics.median(fullest)
    met = abs(middle - 1) <= case.limit and abs(bytes_ratio - 1) <= BYTES_LIMIT
    print(
        f"{name}: step {statistics.median(plans):.3f} s planned, {statistics.median(runs):.3f} s "
        f"real, {middle:.3f} ({low:.3f} to {high:.3f}), limit {case.limit:.0%}; bytes of the "
        f"fullest node {bytes_ratio:.3f}, limit {BYTES_LIMIT:.0%}: {'met' if met else 'NOT MET'}",
        flush=True,
    )
    return {
        "planned_s": plans,
        "real_s": runs,
        "ratios": ratios,
        "bytes_ratios": fullest,
        "limit": case.limit,
        "met": met,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Steps and bytes, planned and real.")
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument("--jobs", default=",".join(CASES))
    options = parsed(parser)
    names = chosen(parser, "job", options.jobs, CASES)
    body = {name: compare(name, CASES[name], options.rounds) for name in names}
    command = command_of("plan_vs_real", options)
    print(write_result("plan-vs-real", command, body, *selected(parser, options, "jobs")))


if __name__ == "__main__":
    main()
