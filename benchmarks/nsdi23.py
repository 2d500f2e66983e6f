"""The published simulator compared with its published figures (Thorpe et al., Bamboo, NSDI 2023).

    python -m benchmarks.nsdi23 --trace bamboo-p3.csv [--seeds 500]

First the recorded p3 trace, 12 h as it is; for three models nothing was published. Then random
markets: on the seeds of the published means, 1 to 100, and on more, to see how certain such means
are (each has half the width of its 95 % interval). Everything is simulated: only the time that a
run takes depends on the machine.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bamboo.sim.market.trace import read_trace
from bamboo.sim.report import spread
from benchmarks.measuring.options import at_least, parsed, trace_file
from benchmarks.measuring.report import command_of, write_result
from benchmarks.published.nsdi23 import MODELS, PublishedRun, play, play_random
from benchmarks.published.random_market import PUBLISHED_SEEDS

Figure = Callable[[PublishedRun], float]
COUNTED = ("preemptions", "fatal")
"""Compared by their difference; all others by their quotient."""
FIGURES: Mapping[str, Figure] = {
    "preemptions": lambda run: run.preemptions,
    "fatal": lambda run: run.fatal,
    "steps": lambda run: run.steps,
    "nodes": lambda run: run.mean_nodes,
    "samples/s": lambda run: run.samples_per_s,
    "$/h": lambda run: run.usd_per_hour,
    "value": lambda run: run.value,
}
ON_TRACE = {
    "bert": (167, 6, 11375, 24.07, 73.73, 21.90, 3.344),
    "gpt-2": (167, 6, 30143, 24.07, 23.68, 21.90, 1.144),
    "resnet-152": (167, 13, 13904, 23.29, 123.83, 21.19, 5.562),
}
RANDOM = {
    0.01: (4.41, 0.03, 22194, 43.59, 148.19, 39.67, 3.69),
    0.10: (54.32, 0.08, 22194, 40.42, 131.81, 36.78, 3.55),
    0.50: (343.95, 2.43, 22194, 26.84, 83.18, 24.43, 3.33),
}


def beside(name: str, ours: float, published: float | None) -> str:
    """`ours (published, deviation)`."""
    text = f"{ours:,.0f}" if name in (*COUNTED, "steps") and ours == int(ours) else f"{ours:,.2f}"
    if published is None:
        return text
    off = (
        f"{ours - published:+.2f}".rstrip("0").rstrip(".")
        if name == "fatal"
        else f"{100 * (ours / published - 1):+.1f} %"
    )
    return f"{text} ({published:,g}, {off})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=trace_file, required=True)
    parser.add_argument("--seeds", type=at_least(1), default=500)
    arguments = parsed(parser)
    print("figures are: simulated (published, deviation)\n")
    body = {
        "trace": on_trace(arguments.trace),
        "random, published seeds": on_random(PUBLISHED_SEEDS),
        "random": on_random(range(1, 1 + arguments.seeds)),
    }
    command = command_of("nsdi23", arguments)
    print(f"\nwritten: {write_result('nsdi23', command, body)}")


def on_trace(path: Path) -> dict[str, dict[str, float]]:
    """Every model on the recorded trace."""
    trace, out = read_trace(path), {}
    for name, model in MODELS.items():
        begin_s = time.process_time()
        run = play(model, trace)
        took_s = time.process_time() - begin_s
        published = ON_TRACE.get(name, (None,) * len(FIGURES))
        print(f"{name}, {run.hours:.2f} h, {took_s * 1e3:.0f} ms")
        out[name] = {"took_ms": took_s * 1e3}
        for (figure, of), known in zip(FIGURES.items(), published, strict=True):
            out[name][figure] = of(run)
            print(f"    {figure:12} {beside(figure, of(run), known)}")
    return out


def on_random(seeds: range) -> dict[str, dict[str, tuple[float, float]]]:
    """BERT on random markets: the mean and its confidence for each figure."""
    out: dict[str, dict[str, tuple[float, float]]] = {}
    for hazard, published in RANDOM.items():
        begin_s = time.process_time()
        runs = [play_random(hazard, seed) for seed in seeds]
        took_s = (time.process_time() - begin_s) / len(seeds)
        print(f"bert, hazard {hazard:g}, {len(seeds)} seeds, {took_s * 1e3:.0f} ms a seed")
        out[f"{hazard:g}"] = {"took_ms": (took_s * 1e3, 0.0)}
        for (figure, of), known in zip(FIGURES.items(), published, strict=True):
            found = spread([of(run) for run in runs])
            out[f"{hazard:g}"][figure] = (found.mean, found.confidence)
            told = beside(figure, found.mean, known)
            print(f"    {figure:12} {told:34} +- {found.confidence:.2f}")
    return out


if __name__ == "__main__":
    main()
