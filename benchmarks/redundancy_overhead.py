"""What redundancy costs when nothing fails: all modes on the virtual device, interleaved.

    python -m benchmarks.redundancy_overhead [--rounds 5] [--steps 12]

Four stages, eight microbatches, a fast link. Equal stages take 20 ms forward and 40 ms backward;
later-heavier stages take 14, 18, 22, 26 ms and twice that. The model is tiny, so that an operation
computes in less than its figure; overruns are counted and printed. Every round runs each mode once.
"""

import argparse

from bamboo.config.tree import (
    ClusterConfig,
    DataConfig,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from bamboo.topology.strategy import REDUNDANCY_MODES
from benchmarks.local_run import step_times_s
from benchmarks.report import median_and_quartiles, paired_ratios, write_result

STAGES_MS = {
    "equal": ((20.0,) * 4, (40.0,) * 4),
    "later-heavier": ((14.0, 18.0, 22.0, 26.0), (28.0, 36.0, 44.0, 52.0)),
}


def job(shape: str, mode: str, steps: int) -> JobConfig:
    """The job of one variant."""
    forward, backward = STAGES_MS[shape]
    return JobConfig(
        model=ModelConfig(layers=4, width=32, heads=2, context=16),
        data=DataConfig(max_bytes=200_000),
        train=TrainConfig(steps=steps, batch=8, microbatch=1),
        cluster=ClusterConfig(
            stages=4,
            redundancy=mode,
            device="virtual",
            virtual_forward_ms=forward,
            virtual_backward_ms=backward,
        ),
    )


def bound_ms(shape: str) -> float:
    """What no 1F1B order can beat: the slowest stage busy, plus filling and draining the rest."""
    forward, backward = STAGES_MS[shape]
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    return 8 * max(both) + sum(both) - max(both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    body: dict[str, object] = {}
    for shape in STAGES_MS:
        medians: dict[str, list[float]] = {mode: [] for mode in REDUNDANCY_MODES}
        overruns = dict.fromkeys(REDUNDANCY_MODES, 0)
        for _ in range(arguments.rounds):
            for mode in REDUNDANCY_MODES:
                times, memory = step_times_s(job(shape, mode, arguments.steps))
                medians[mode].append(1e3 * median_and_quartiles(times)[0])
                overruns[mode] += sum(int(str(m["overruns"])) for m in memory)
        print(f"{shape} stages; 1F1B bound {bound_ms(shape):.0f} ms; {arguments.rounds} rounds")
        print(f"  {'mode':6} {'ms/step':>8} {'quartiles':>15} {'over off':>9} {'overruns':>9}")
        rows = {}
        for mode in REDUNDANCY_MODES:
            middle, low, high = median_and_quartiles(medians[mode])
            ratio = median_and_quartiles(paired_ratios(medians[mode], medians["off"]))
            print(
                f"  {mode:6} {middle:8.1f} {low:7.1f}-{high:7.1f} {ratio[0] - 1:+9.2%} "
                f"{overruns[mode]:9d}"
            )
            rows[mode] = {
                "ms_per_step": medians[mode],
                "ratio_to_off": ratio,
                "overruns": overruns[mode],
            }
        body[shape] = {"bound_ms": bound_ms(shape), "modes": rows}
    command = f"python -m benchmarks.redundancy_overhead --rounds {arguments.rounds}"
    print(f"written: {write_result('redundancy-overhead', command, body)}")


if __name__ == "__main__":
    main()
