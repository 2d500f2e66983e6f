"""How long the exact cut takes: 128 layers into 32 stages, with and without a memory limit.

    python -m benchmarks.partition [--layers 128] [--stages 32] [--rounds 5]

free       the plain partition, without a memory limit
easy       under a limit that is never reached
<mode>     under a limit that decides: 0.5 % above the least memory that any cut needs
heavy      in mode `eager`, one layer in eight much larger than the others

Layers of random times, parameters, outputs and activations, the same ones in every run. CPU seconds
of one process.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from bamboo.planner.layers.bounded import MOST_BYTES, Bounds, bounded_partition, tightest_cut
from bamboo.planner.layers.facts import LayerFacts
from bamboo.planner.layers.memory import memory_report
from bamboo.planner.layers.partition import partition
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import REDUNDANCY_MODES
from bamboo.topology.virtual_nodes import BatchShape
from benchmarks.measuring.options import at_least, parsed
from benchmarks.measuring.report import command_of, write_result

MARGIN = 1.005
LIMIT_S = 0.2


def drawn(layers: int, *, heavy: bool, seed: int = 1) -> tuple[list[LayerFacts], list[float]]:
    """Random layers and their times."""
    chance = random.Random(seed)
    facts, costs = [], []
    for number in range(layers):
        factor = 6 if heavy and number % 8 == 0 else 1
        facts.append(
            LayerFacts(
                name=f"layer {number}",
                parameters=factor * chance.randint(2_000_000, 6_000_000),
                forward_flops=1.0,
                output_bytes=chance.randint(4, 16) * 2**20,
                activation_bytes=factor * chance.randint(32, 128) * 2**20,
            )
        )
        costs.append(chance.uniform(0.5, 2.0))
    return facts, costs


def tight(facts: list[LayerFacts], costs: list[float], bounds: Bounds) -> Bounds:
    """With a limit just above the least memory that any cut needs."""
    cut = tightest_cut(facts, costs, bounds)
    report = memory_report(facts, cut=cut, grid=bounds.grid, shape=bounds.shape, mode=bounds.mode)
    return replace(bounds, limit_bytes=int(max(stage.total for stage in report) * MARGIN))


def cases(layers: int, stages: int) -> dict[str, Callable[[], tuple[int, ...]]]:
    facts, costs = drawn(layers, heavy=False)
    bounds = Bounds(
        grid=Grid(pipelines=2, stages=stages),
        shape=BatchShape(virtual_nodes=8, microbatches=4),
        mode="stash",
        limit_bytes=MOST_BYTES,
    )
    found: dict[str, Callable[[], tuple[int, ...]]] = {
        "free": partial(partition, costs, stages),
        "easy": partial(bounded_partition, facts, costs, bounds),
    }
    for mode in REDUNDANCY_MODES:
        near = tight(facts, costs, replace(bounds, mode=mode))
        found[mode] = partial(bounded_partition, facts, costs, near)
    uneven, times = drawn(layers, heavy=True)
    near = tight(uneven, times, replace(bounds, mode="eager"))
    found["heavy"] = partial(bounded_partition, uneven, times, near)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--layers", type=at_least(1), default=128)
    parser.add_argument("--stages", type=at_least(1), default=32)
    parser.add_argument("--rounds", type=at_least(1), default=5)
    arguments = parsed(parser)
    if arguments.stages > arguments.layers:
        parser.error(f"--stages {arguments.stages}: {arguments.layers} layers give no more stages")
    functions = cases(arguments.layers, arguments.stages)
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(arguments.rounds):
        for name, function in functions.items():
            begin_s = time.process_time()
            function()
            taken[name].append(time.process_time() - begin_s)
    print(f"{arguments.layers} layers into {arguments.stages} stages, CPU seconds of the median")
    for name, seconds in taken.items():
        within = "within" if max(seconds) <= LIMIT_S else "OVER"
        print(
            f"{name:>6}  {statistics.median(seconds):.3f}  "
            f"({min(seconds):.3f} to {max(seconds):.3f}; {within} {LIMIT_S} s)"
        )
    body: dict[str, Any] = {
        "layers": arguments.layers,
        "stages": arguments.stages,
        "limit_s": LIMIT_S,
        "cpu_s": taken,
    }
    print(write_result("partition", command_of("partition", arguments), body))


if __name__ == "__main__":
    main()
