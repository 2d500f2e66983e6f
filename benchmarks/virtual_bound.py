"""Deep pipelines on the virtual device, beside what no 1F1B order can beat.

    python -m benchmarks.virtual_bound [--cases 1x8x16,2x16x16] [--rounds 3] [--steps 6]

A case is pipelines x stages x microbatches of each pipeline. An operation computes a tiny model for
real and then sleeps to its figure: 20 ms forward and 40 ms backward, as in the other benchmarks;
also half of it, and twice that where many processes share the cores (two serve 32 nodes). All else
is real: the messages, the exchange, the norm, the optimizer. The bound is modelled: the slowest
stage is always busy, M (f + b), and the others fill and drain before and after, (P - 1)(f + b).
What is short of it is what the executor, the wire and waking up cost, overruns included. `us/op` is
the processor time of the training threads beside the operations' own work, for each operation.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bamboo.config.tree import (
    ClusterConfig,
    DataConfig,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from bamboo.schedule.figures import bound_s
from bamboo.schedule.layout import Costs, layout_of
from bamboo.topology.grid import Grid
from benchmarks.report import median_with_interval, write_result
from benchmarks.stamped import whole_run
from benchmarks.thin_layers import BUILD
from benchmarks.turns import Stamp, beside_us

SKIPPED_STEPS = 2
MODES = ("off", "stash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A grid, its microbatches in each pipeline, and the figures of an operation."""

    pipelines: int
    stages: int
    microbatches: int
    forward_ms: float = 20.0
    backward_ms: float = 40.0

    def __str__(self) -> str:
        return f"{self.pipelines}x{self.stages}x{self.microbatches}"

    @property
    def bound_s(self) -> float:
        """Of a step whose stages are equal."""
        grid = Grid(pipelines=self.pipelines, stages=self.stages)
        costs = Costs.of(
            self.stages, forward_s=[self.forward_ms / 1e3], backward_s=[self.backward_ms / 1e3]
        )
        each = [self.microbatches] * self.pipelines
        return bound_s(layout_of(grid, microbatches=each, mode="off"), costs)


CASES = (
    Case(pipelines=1, stages=4, microbatches=8),
    Case(pipelines=1, stages=8, microbatches=16),
    Case(pipelines=1, stages=8, microbatches=16, forward_ms=10.0, backward_ms=20.0),
    Case(pipelines=1, stages=16, microbatches=16),
    Case(pipelines=1, stages=16, microbatches=16, forward_ms=40.0, backward_ms=80.0),
    Case(pipelines=2, stages=16, microbatches=16, forward_ms=40.0, backward_ms=80.0),
)


def job(case: Case, mode: str, steps: int) -> JobConfig:
    """A layer for each stage but the two ends, which have the embedding and the head too; a model
    that hardly computes, as stages in step would else wait for each other's arithmetic."""
    batch = case.microbatches * case.pipelines
    return JobConfig(
        model=ModelConfig(model=BUILD, layers=max(case.stages, 4), width=32, context=16),
        data=DataConfig(max_bytes=200_000),
        train=TrainConfig(steps=steps, batch=batch, microbatch=1),
        cluster=ClusterConfig(
            pipelines=case.pipelines,
            stages=case.stages,
            redundancy=mode,
            device="virtual",
            virtual_forward_ms=(case.forward_ms,),
            virtual_backward_ms=(case.backward_ms,),
        ),
    )


def per_step_s(stamps: Sequence[Sequence[Stamp]], skipped: int) -> float:
    """Seconds a step after the first `skipped`, by the means of all processes' ends. Raises
    ValueError when the processes stamped other numbers of steps, or none is left."""
    counts = {len(found) for found in stamps}
    if len(counts) != 1 or min(counts) <= skipped:
        raise ValueError(f"{sorted(counts)} steps were stamped, of which {skipped} do not count")
    taken = [found[-1].at_s - found[skipped - 1].at_s for found in stamps]
    return sum(taken) / len(taken) / (counts.pop() - skipped)


def played(case: Case, mode: str, rounds: int, steps: int) -> dict[str, Any]:
    """One row: the share of the bound in each round, and what the processors did."""
    found, beside, load = [], [], []
    overruns = 0
    for _ in range(rounds):
        ran = whole_run(job(case, mode, steps))
        found.append(per_step_s(ran.stamps, SKIPPED_STEPS))
        beside.append(beside_us(ran.stamps, SKIPPED_STEPS))
        overruns += sum(int(record["overruns"]) for record in ran.memory)
        load.append(os.getloadavg()[0])
    return {
        "case": str(case),
        "mode": mode,
        "forward_ms": case.forward_ms,
        "backward_ms": case.backward_ms,
        "bound_ms": 1e3 * case.bound_s,
        "every_ms": [1e3 * s for s in found],
        "share_of_bound": median_with_interval([case.bound_s / s for s in found]),
        "beside_us_per_operation": median_with_interval(beside),
        "overruns": overruns,
        "load": load,
    }


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    middle, low, high = row["share_of_bound"]
    figures = f"{row['forward_ms']:.0f}/{row['backward_ms']:.0f}"
    ms = sorted(row["every_ms"])[len(row["every_ms"]) // 2]
    return (
        f"{row['case']:9} {row['mode']:6} {figures:>7} {row['bound_ms']:8.0f} {ms:8.0f} "
        f"{middle:9.3f} ({low:.3f}-{high:.3f}) "
        f"{row['beside_us_per_operation'][0]:7.0f} {row['overruns']:9d}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="", help="such as 1x8x16; empty: all")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args(argv)
    named = arguments.cases.split(",") if arguments.cases else [str(case) for case in CASES]
    head = f"{'D x P x M':9} {'mode':6} {'f/b ms':>7} {'bound':>8} {'ms/step':>8} "
    head += f"{'share of the bound (95 %)':>25} {'us/op':>7} {'overruns':>9}"
    print(head, flush=True)
    rows = []
    for case in CASES:
        for mode in arguments.modes.split(",") if str(case) in named else ():
            rows.append(played(case, mode, arguments.rounds, arguments.steps))
            print(line(rows[-1]), flush=True)
    words = " ".join(f"--{name} {value}" for name, value in vars(arguments).items() if value)
    path = write_result(
        "virtual-bound", f"python -m benchmarks.virtual_bound {words}", {"rows": rows}
    )
    print(f"written: {path.name}")


if __name__ == "__main__":
    main()
