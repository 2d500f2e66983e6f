"""What a plan's default checkpoints cost, compared with none, on the virtual device.

    python -m benchmarks.checkpoint_default [--rounds 5] [--interval 0] [--intervals 3]

A GPT of 0.8 M parameters (10 MB of state) on four stages in 20,000 steps: `plan_job` chooses its
interval, `--interval` another one. Real workers train so many intervals with and without
checkpoints, interleaved. The arithmetic is real, and each operation takes its given time. Every run
is compared bit by bit with the calm one.
"""

import argparse
import itertools
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

from bamboo.config.resolve import resolve
from bamboo.config.tree import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from bamboo.ids import RunId
from bamboo.study.intervals import Kept
from bamboo.study.modelled import look_at
from bamboo.study.planning import plan_job
from benchmarks.measuring.options import at_least, parsed
from benchmarks.measuring.report import (
    command_of,
    median_and_quartiles,
    paired_ratios,
    write_result,
)
from testbed.calm import difference
from testbed.cluster import cluster

LIMIT = 0.01
"""Share of the step time that the default may cost."""
SKIPPED_STEPS = 2
NONE, DEFAULT = "none", "as planned"


def job() -> JobConfig:
    """As in `elastic`, with an interval that is left to the plan."""
    return JobConfig(
        model=ModelConfig(layers=4, width=128, heads=4, context=16),
        data=DataConfig(max_bytes=200_000),
        train=TrainConfig(steps=20_000, batch=8, microbatch=1, virtual_nodes=4),
        cluster=ClusterConfig(
            stages=4,
            redundancy="stash",
            device="virtual",
            virtual_forward_ms=(10.0,),
            virtual_backward_ms=(20.0,),
        ),
    )


def planned() -> Kept:
    """The checkpoints as the plan has them."""
    asked = resolve(job())
    kept = plan_job(asked, look_at(asked, gpu=None), run=RunId("default"), now_s=0.0).kept()
    assert kept is not None, "the times of a virtual device are given"
    return kept


def played(every: int, steps: int) -> tuple[float, str | None]:
    """Mean seconds of a step, and where its bits differ from those of the calm run."""
    settings = replace(
        job(),
        checkpoint=CheckpointConfig(every_steps=every),
        train=replace(job().train, steps=steps),
    )
    with cluster(settings) as running:
        running.start(settings.cluster.stages)
        state = running.finish(timeout_s=600)
        if state.outcome != "done":
            raise RuntimeError(f"the run ended {state.outcome}: {state.sentence}")
        stamps = [record["t_s"] for record in running.metrics("step")]
        times = [b - a for a, b in itertools.pairwise(stamps)][SKIPPED_STEPS:]
        return statistics.fmean(times), difference(running)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--interval", type=at_least(0), default=0)
    parser.add_argument("--intervals", type=at_least(1), default=3)
    arguments = parsed(parser)
    start_s = time.time()
    kept = planned()
    every = arguments.interval or kept.every_steps
    steps = arguments.intervals * every + SKIPPED_STEPS + 1
    times: dict[str, list[float]] = {NONE: [], DEFAULT: []}
    wrong = []
    for number in range(arguments.rounds):
        for name, interval in ((NONE, 0), (DEFAULT, every)):
            mean_s, differs = played(interval, steps)
            times[name].append(mean_s)
            wrong.append(differs)
        print(f"round {number}: {times[NONE][-1]:.4f} s none, {times[DEFAULT][-1]:.4f} as planned")
    middle, low, high = median_and_quartiles(paired_ratios(times[DEFAULT], times[NONE]))
    equal = not any(wrong)
    print(
        f"every {every} steps: {middle - 1:+.2%} of step time (quartiles {low - 1:+.2%} to "
        f"{high - 1:+.2%}), planned {kept.share:.2%}; bits {'equal' if equal else 'DIFFER'}"
    )
    body: dict[str, Any] = {
        "plan": kept.body(),
        "every_steps": every,
        "times_s": times,
        "ratio": [middle, low, high],
        "equal_bits": equal,
        "took_s": round(time.time() - start_s),
    }
    part = f"every-{every}" if arguments.interval else ""
    print(
        write_result("checkpoint-default", command_of("checkpoint_default", arguments), body, part)
    )
    return int(not equal or middle - 1 > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
