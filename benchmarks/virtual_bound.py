"""Deep pipelines on the virtual device, compared with a bound that no 1F1B order can beat.

    python -m benchmarks.virtual_bound [--cases 1x8x16,2x16x16] [--rounds 3] [--steps 6]

A case is pipelines x stages x microbatches of each pipeline. An operation really computes a tiny
model and is done when its given time has passed: 20 ms forward and 40 ms backward, as in the other
benchmarks; also half and a quarter of it, and twice that where many processes share the cores (two
serve 32 nodes). As on a GPU, two operations are issued ahead of the device. Everything else is
real: the messages, the exchange, the norm, the optimizer. The bound is modelled: the slowest stage
is always busy, M (f + b), and the others fill and drain before and after, (P - 1)(f + b). The
difference to the bound is the cost of the executor, the wire and waking up, overruns included.
`us/op` is the processor time of the training threads for each operation, without the operation's
own work. The modes of a case take turns, round by round.
"""

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bamboo.config.tree import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from bamboo.planner.step.figures import bound_s
from bamboo.planner.step.layout import Costs, layout_of
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import REDUNDANCY_MODES
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.options import at_least, chosen, parsed, selected
from benchmarks.measuring.report import (
    command_of,
    in_turn,
    interval_name,
    median_with_interval,
    write_result,
)
from benchmarks.measuring.stamped import whole_run
from benchmarks.measuring.thin_layers import BUILD
from benchmarks.measuring.turns import Stamp, beside_us

SKIPPED_STEPS = 2
MODES = ("off", "stash")
CLAIMED = "1x8x16"
LIMITS = {20.0: 0.97, 10.0: 0.97, 5.0: 0.95}
"""By the ms of a forward, the least share of the bound that each mode has to reach there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A grid, its microbatches in each pipeline, and the times of an operation."""

    pipelines: int
    stages: int
    microbatches: int
    forward_ms: float = 20.0
    backward_ms: float = 40.0

    def __str__(self) -> str:
        return f"{self.pipelines}x{self.stages}x{self.microbatches}"

    @property
    def bound_s(self) -> float:
        """The bound of a step whose stages are equal."""
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
    Case(pipelines=1, stages=8, microbatches=16, forward_ms=5.0, backward_ms=10.0),
    Case(pipelines=1, stages=16, microbatches=16),
    Case(pipelines=1, stages=16, microbatches=16, forward_ms=40.0, backward_ms=80.0),
    Case(pipelines=2, stages=16, microbatches=16, forward_ms=40.0, backward_ms=80.0),
)


def job(case: Case, mode: str, steps: int) -> JobConfig:
    """A layer for each stage; the first and the last also have embedding and head. The model hardly
    computes, since stages in step would otherwise wait for each other's arithmetic."""
    batch = case.microbatches * case.pipelines
    return JobConfig(
        checkpoint=CheckpointConfig(every_steps=0),
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
    """Seconds per step after the first `skipped`, by the means of all processes' ends. Raises
    ValueError when the processes stamped different numbers of steps, or none is left."""
    counts = {len(found) for found in stamps}
    if len(counts) != 1 or min(counts) <= skipped:
        raise ValueError(f"{sorted(counts)} steps were stamped, of which {skipped} do not count")
    taken = [found[-1].at_s - found[skipped - 1].at_s for found in stamps]
    return sum(taken) / len(taken) / (counts.pop() - skipped)


@dataclass(slots=True, kw_only=True)
class Found:
    """The results of one mode's rounds."""

    step_s: list[float] = field(default_factory=list)
    beside_us: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    overruns: int = 0


def one_round(case: Case, mode: str, steps: int, found: Found) -> None:
    """Run it once and note the result."""
    ran = whole_run(job(case, mode, steps))
    found.step_s.append(per_step_s(ran.stamps, SKIPPED_STEPS))
    found.beside_us.append(beside_us(ran.stamps, SKIPPED_STEPS))
    found.overruns += sum(int(record["overruns"]) for record in ran.memory)
    found.load.append(os.getloadavg()[0])


def played(case: Case, modes: Sequence[str], *, rounds: int, steps: int) -> list[dict[str, Any]]:
    """A row for each mode: the share of the bound in each round, and the processors' load."""
    by_mode = {mode: Found() for mode in modes}
    for number in range(rounds):
        for mode in in_turn(modes, number):
            one_round(case, mode, steps, by_mode[mode])
    return [
        {
            "case": str(case),
            "mode": mode,
            "forward_ms": case.forward_ms,
            "backward_ms": case.backward_ms,
            "bound_ms": 1e3 * case.bound_s,
            "every_ms": [1e3 * s for s in found.step_s],
            "share_of_bound": median_with_interval([case.bound_s / s for s in found.step_s]),
            "beside_us_per_operation": median_with_interval(found.beside_us),
            "overruns": found.overruns,
            "load": found.load,
        }
        for mode, found in by_mode.items()
    ]


def claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """The claims, at every time of an operation that the case was played with."""
    return [
        Claim(
            about=f"{row['case']} at {row['forward_ms']:g} ms, {row['mode']}: of the bound",
            found=row["share_of_bound"][0],
            limit=LIMITS[row["forward_ms"]],
            at_most=False,
            interval=row["share_of_bound"][1:],
        )
        for row in rows
        if row["case"] == CLAIMED
    ]


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    middle, low, high = row["share_of_bound"]
    figures = f"{row['forward_ms']:.0f}/{row['backward_ms']:.0f}"
    ms = statistics.median(row["every_ms"])
    return (
        f"{row['case']:9} {row['mode']:6} {figures:>7} {row['bound_ms']:8.0f} {ms:8.0f} "
        f"{middle:18.3f} ({low:.3f}-{high:.3f}) "
        f"{row['beside_us_per_operation'][0]:7.0f} {row['overruns']:9d}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    every = list(dict.fromkeys(map(str, CASES)))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(every))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument(
        "--rounds", type=at_least(1), default=3, help=f"twice as many for {CLAIMED}"
    )
    parser.add_argument("--steps", type=at_least(SKIPPED_STEPS + 1), default=6)
    arguments = parsed(parser, argv)
    named = chosen(parser, "case", arguments.cases, every)
    modes = chosen(parser, "mode", arguments.modes, REDUNDANCY_MODES)
    head = f"{'D x P x M':9} {'mode':6} {'f/b ms':>7} {'bound':>8} {'ms/step':>8} "
    rows = []
    for case in (case for case in CASES if str(case) in named):
        rounds = arguments.rounds * (2 if str(case) == CLAIMED else 1)
        share = f"share of the bound ({interval_name(rounds)})"
        print(f"{head}{share:>32} {'us/op':>7} {'overruns':>9}")
        found = played(case, modes, rounds=rounds, steps=arguments.steps)
        print("\n".join(map(line, found)), flush=True)
        rows += found
    made = claims(rows)
    print("\n".join(claim.line() for claim in made))
    part = selected(parser, arguments, "cases", "modes")
    body = {"claims": [asdict(claim) for claim in made], "rows": rows}
    path = write_result("virtual-bound", command_of("virtual_bound", arguments), body, *part)
    print(f"written: {path.name}")


if __name__ == "__main__":
    main()
