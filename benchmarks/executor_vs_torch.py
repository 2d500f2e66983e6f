"""Our executor beside torch's Schedule1F1B and ScheduleGPipe, and beside one plain process.

    python -m benchmarks.executor_vs_torch [--sizes 8x256,16x512] [--grids 1x4,1x2,2x2,2x4]
                                           [--rounds N] [--contenders off,stash,1f1b,gpipe,single]

A GPT of 8 blocks, width 256, and one of 16 blocks, width 512; 128 tokens, dropout 0.1, a global
batch of 8 microbatches of 4 sequences, so of 4 in each of two pipelines. One thread a process,
AdamW fused, decay for matrices alone. Everybody clips the global norm at 1: ours by float64 squares
per parameter that go to all slots, torch by its own norm of each stage and a number by Gloo. Ours
pays for the promise beside: keyed randomness, the loss record, contiguous boundaries, and in
`stash` (the default) the gradient to the shadow and the replica's step. Two pipelines of torch's
add their gradients in one bucket by Gloo, as DistributedDataParallel does.

All contenders of a case live at once and take turns (benchmarks/turns.py): wall time per step on
the cores that there are, and processor time per step of all processes, the store's included. Fewer
cores than processes have no bubbles, so what counts is the ratio of turns of one round: 1f1b / it,
above 1 it is faster than torch's Schedule1F1B.
"""

import argparse
import contextlib
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from bamboo.config.tree import (
    ClusterConfig,
    DataConfig,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from benchmarks.report import median_with_interval, paired_ratios, write_result
from benchmarks.stamped import ours
from benchmarks.torch_pipeline import SINGLE, torchs
from benchmarks.turns import Contender, Cost, take_turns

REFERENCE = "1f1b"
OURS = ("off", "stash")
CONTENDERS = (REFERENCE, *OURS, "gpipe", SINGLE)
CUTS = {
    ("8x256", 4): (0, 3, 5, 7, 10),
    ("8x256", 2): (0, 5, 10),
    ("16x512", 4): (0, 5, 9, 13, 18),
    ("16x512", 2): (0, 9, 18),
}
"""The embedding goes with the first blocks, the head with the last."""
STEPS = {"8x256": 2, "16x512": 1}
"""In a turn."""
WARM_UP_STEPS = 2
ENDLESS_STEPS = 100_000
PATIENCE_S = 3600.0
"""A contender stands still for most of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Who competes with which model on which grid, for how many rounds."""

    size: str
    pipelines: int
    stages: int
    rounds: int
    contenders: tuple[str, ...] = CONTENDERS

    @property
    def grid(self) -> str:
        return f"{self.pipelines}x{self.stages}"


PIPELINES = (REFERENCE, *OURS, "gpipe")
CASES = (
    Case(size="8x256", pipelines=1, stages=4, rounds=9),
    Case(size="8x256", pipelines=1, stages=2, rounds=5, contenders=PIPELINES),
    Case(size="8x256", pipelines=2, stages=2, rounds=5, contenders=PIPELINES),
    Case(size="8x256", pipelines=2, stages=4, rounds=5, contenders=PIPELINES),
    Case(size="16x512", pipelines=1, stages=4, rounds=5, contenders=(REFERENCE, *OURS)),
    Case(size="16x512", pipelines=1, stages=2, rounds=2, contenders=(REFERENCE, *OURS)),
)
"""What fits 12 minutes; the others of both sizes are there by name."""


def job(case: Case, mode: str) -> JobConfig:
    """The same job for every contender."""
    layers, width = map(int, case.size.split("x"))
    return JobConfig(
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


def played(case: Case) -> dict[str, list[Cost]]:
    """By contender, what a step cost in each round."""
    with contextlib.ExitStack() as stack:
        running = []
        for name in case.contenders:
            running.append(stack.enter_context(contender(case, name)))
            running[-1].run(WARM_UP_STEPS)
        return take_turns(running, rounds=case.rounds, steps=STEPS[case.size])


def rows_of(case: Case, found: dict[str, list[Cost]]) -> list[dict[str, Any]]:
    """One row of the table for each contender, with every value."""
    rows = []
    for name, each in found.items():
        row: dict[str, Any] = {"size": case.size, "grid": case.grid, "contender": name}
        for what in ("wall_s", "cpu_s"):
            values = [getattr(cost, what) for cost in each]
            reference = [getattr(cost, what) for cost in found[REFERENCE]]
            row[what] = median_with_interval(values)
            row[f"every_{what}"] = values
            row[f"1f1b_over_it_{what}"] = median_with_interval(paired_ratios(reference, values))
        rows.append(row)
    return rows


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    ratios = "  ".join(
        f"{middle:6.3f} ({low:.3f}-{high:.3f})"
        for middle, low, high in (row["1f1b_over_it_wall_s"], row["1f1b_over_it_cpu_s"])
    )
    ms = f"{1e3 * row['wall_s'][0]:8.0f} {1e3 * row['cpu_s'][0]:8.0f}"
    return f"{row['size']:7} {row['grid']:5} {row['contender']:7} {ms}  {ratios}"


def chosen(arguments: argparse.Namespace) -> list[Case]:
    """The cases of the defaults, or those that the arguments name."""
    sizes, grids = arguments.sizes.split(","), arguments.grids.split(",")
    named = arguments.contenders.split(",") if arguments.contenders else None
    out = []
    for case in CASES:
        if case.size in sizes and case.grid in grids:
            names = named or case.contenders
            ordered = (REFERENCE, *(n for n in CONTENDERS if n in names and n != REFERENCE))
            out.append(
                Case(
                    size=case.size,
                    pipelines=case.pipelines,
                    stages=case.stages,
                    rounds=arguments.rounds or case.rounds,
                    contenders=ordered,
                )
            )
    return out


def command_of(arguments: argparse.Namespace) -> str:
    """How to get the same again."""
    words = [f"--{k} {v}" for k, v in vars(arguments).items() if v]
    return " ".join(["python -m benchmarks.executor_vs_torch", *words])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=",".join(STEPS))
    parser.add_argument("--grids", default="1x4,1x2,2x2,2x4", help="pipelines x stages")
    parser.add_argument("--rounds", type=int, default=0, help="0: as each case has it")
    parser.add_argument("--contenders", default="", help=f"of {', '.join(CONTENDERS)}")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    head = f"{'model':7} {'grid':5} {'':7} {'wall ms':>8} {'cpu ms':>8}"
    head += f"  {'1f1b / it: wall (95 %)':>22}  {'cpu (95 %)':>22}"
    rows: list[dict[str, Any]] = []
    for case in chosen(arguments):
        print(f"{case.size} on {case.grid}: {case.rounds} rounds", flush=True)
        found = rows_of(case, played(case))
        print("\n".join([head, *map(line, found)]), f"\nload {os.getloadavg()[0]:.1f}", flush=True)
        rows += found
    print("\n".join(["", head, *map(line, rows)]))
    path = write_result("executor-vs-torch", command_of(arguments), {"rows": rows})
    print(f"written: {path.name}")


if __name__ == "__main__":
    main()
