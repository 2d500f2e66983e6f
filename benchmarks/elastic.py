"""What elastic membership costs: stalls, bytes and shares of reconfigurations, and checkpoints.

    python -m benchmarks.elastic [--parts grow,cut,shares,checkpoints] [--rounds 5]

All on the virtual device: the arithmetic is real, and each operation takes its given time. `grow`:
D 1 -> 2 -> 3 -> 1, four virtual nodes. `cut`: stages 4 -> 2 -> 4.
`benchmarks.measuring.commit_gaps` defines a stall. `shares`: two pipelines, one of half the speed,
with equal and with uneven shares. `checkpoints`: one every five steps compared with none,
interleaved.
"""

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bamboo.config.tree import (
    CheckpointConfig,
    CloudConfig,
    ClusterConfig,
    DataConfig,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from bamboo.core.events import Pace, PaceMeasured, Reconsider
from bamboo.core.state import State
from bamboo.ids import NodeId
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from benchmarks.measuring.commit_gaps import layout_gaps
from benchmarks.measuring.local_run import step_times_s
from benchmarks.measuring.options import at_least, chosen, parsed
from benchmarks.measuring.report import (
    command_of,
    median_and_quartiles,
    paired_ratios,
    write_result,
)
from testbed.calm import difference
from testbed.cluster import Cluster, cluster

FAST, SLOW = "us-east-1a", "us-east-1b"
BASED = "all go on from step"
"""In the log's sentence when the old layout has had its last step."""


def job(**cluster_keys: Any) -> JobConfig:
    """GPT of 0.8 M parameters (10 MB of state); 30 ms a microbatch and stage of four."""
    settings: dict[str, Any] = {
        "stages": 4,
        "redundancy": "stash",
        "device": "virtual",
        "virtual_forward_ms": (10.0,),
        "virtual_backward_ms": (20.0,),
    } | cluster_keys
    return JobConfig(
        checkpoint=CheckpointConfig(every_steps=0),
        model=ModelConfig(layers=4, width=128, heads=4, context=16),
        data=DataConfig(max_bytes=200_000),
        train=TrainConfig(steps=200, batch=16, microbatch=1, virtual_nodes=4),
        cluster=ClusterConfig(**settings),
        cloud=CloudConfig(zones=(FAST, SLOW)),
    )


def on_grid(run: Cluster, grid: Grid) -> State:
    """Wait until the run trains on a grid, and a few steps more."""
    state = run.wait(lambda s: s.grid == grid and s.reconfiguration is None, 60, f"{grid}")
    run.wait_step(max(run.losses()) + 6)
    return state


def stalls(run: Cluster) -> list[float]:
    """Stalls of each reconfiguration, in steps, measured among the commits of its two layouts."""
    times_s: dict[int, float] = {}
    for record in run.metrics("step"):
        times_s.setdefault(record["step"], record["t_s"])
    spans: list[tuple[float, float]] = []  # from the decision until its last step
    begun_s: float | None = None
    for decision in run.decisions():
        if begun_s is None and decision.state.reconfiguration is not None:
            begun_s = decision.now_s
        if begun_s is not None and BASED in decision.reason:
            spans.append((begun_s, decision.now_s))
        if decision.state.reconfiguration is None:
            begun_s = None
    since = [0.0, *(last_s for _, last_s in spans)]
    until = [*(begun_s for begun_s, _ in spans[1:]), math.inf]
    return [
        layout_gaps(
            [t for t in times_s.values() if after_s < t <= before_s], begun_s=at_s, last_s=last_s
        ).stall_steps
        for (at_s, last_s), after_s, before_s in zip(spans, since, until, strict=False)
    ]


def told(run: Cluster, name: str, body: dict[str, Any]) -> None:
    """Print and keep the result of a run of reconfigurations."""
    sent = [d.reason for d in run.decisions() if BASED in d.reason]
    found = [round(stall, 2) for stall in stalls(run)]
    wrong = difference(run)
    for reason, stall in zip(sent, found, strict=True):
        print(f"{name}: {reason}; stall {stall:.2f} steps")
    print(f"{name}: {wrong or 'bitwise equal to the calm run'}")
    body[name] = {"decisions": sent, "stall_steps": found, "equal": not wrong}


def stop(run: Cluster) -> None:
    """Let the run finish its last steps."""
    run.finish(timeout_s=300)


def grow(body: dict[str, Any]) -> None:
    """Pipelines 1 -> 2 -> 3 -> 1."""
    settings = job(stages=2, pipelines=1, max_pipelines=3)
    settings = replace(settings, train=replace(settings.train, steps=60))
    with cluster(settings) as run:
        run.start(2)
        run.wait_step(5)
        for pipelines in (2, 3):
            run.start(2)
            state = on_grid(run, Grid(pipelines=pipelines, stages=2))
        assert state.assignment is not None
        for slot in [s for s in state.grid.slots() if s.pipeline > 0]:
            run.kill(state.assignment.owner(slot))
        on_grid(run, Grid(pipelines=1, stages=2))
        stop(run)
        told(run, "grow", body)


def cut(body: dict[str, Any]) -> None:
    """Stages 4 -> 2 -> 4."""
    settings = job()
    settings = replace(settings, train=replace(settings.train, steps=60))
    with cluster(settings) as run:
        run.start()
        run.wait_step(5)
        for stage in (1, 3):
            run.kill(run.owner(Slot(pipeline=0, stage=stage)))
            run.wait_step(max(run.losses()) + 5)
        run.append(Reconsider(reporter="fleet", reason="no node came"))
        on_grid(run, Grid(pipelines=1, stages=2))
        run.start(2)
        on_grid(run, Grid(pipelines=1, stages=4))
        stop(run)
        told(run, "cut", body)


def shares(body: dict[str, Any], rounds: int) -> None:
    """Two pipelines, the second of half the speed."""
    times: dict[str, list[float]] = {"equal": [], "uneven": []}
    wrong = []
    for number in range(rounds):
        for name, found_s in times.items():
            settings = job(stages=2, pipelines=2, virtual_speeds=(1.0, 0.5))
            train = replace(settings.train, steps=16, batch=24, microbatch=1, virtual_nodes=12)
            with cluster(replace(settings, train=train)) as run:
                run.start(2, zone=FAST)
                run.start(2, zone=SLOW)
                run.wait_step(2)
                if name == "uneven":
                    state = run.state()
                    assert state.assignment is not None
                    zones = {n.id: n.zone for n in state.nodes}
                    pace = {FAST: 0.06, SLOW: 0.12}
                    paces = tuple(
                        Pace(node=NodeId(n), microbatch_s=pace[zones[n]])
                        for n in state.assignment.owners
                    )
                    run.append(PaceMeasured(reporter="bench", era=state.era, paces=paces))
                    run.wait(
                        lambda s: s.shares == (8, 4) and s.reconfiguration is None, 30, "shares"
                    )
                    run.wait_step(max(run.losses()) + 2)
                stop(run)
                found = {r["step"]: r["t_s"] for r in reversed(run.metrics("step"))}
                stamps = [found[step] for step in sorted(found)][-8:]
                found_s.append(statistics.median(b - a for a, b in itertools.pairwise(stamps)))
                wrong.append(difference(run))
        print(f"round {number}: {times['equal'][-1]:.3f} s equal, {times['uneven'][-1]:.3f} uneven")
    middle, low, high = median_and_quartiles(paired_ratios(times["equal"], times["uneven"]))
    print(f"uneven shares are {middle:.2f} x as fast (quartiles {low:.2f} to {high:.2f})")
    body["shares"] = {"times_s": times, "ratio": [middle, low, high], "equal_bits": not any(wrong)}


def checkpoints(body: dict[str, Any], rounds: int) -> None:
    """A checkpoint every five steps compared with none."""
    times: dict[str, list[float]] = {"none": [], "every 5": []}
    for number in range(rounds):
        for name, every in (("none", 0), ("every 5", 5)):
            settings = replace(job(), checkpoint=CheckpointConfig(every_steps=every))
            settings = replace(settings, train=replace(settings.train, steps=27, batch=8))
            found, _ = step_times_s(settings)
            times[name].append(statistics.fmean(found))
        print(f"round {number}: {times['none'][-1]:.4f} s none, {times['every 5'][-1]:.4f} every 5")
    ratios = paired_ratios(times["every 5"], times["none"])
    middle, low, high = median_and_quartiles(ratios)
    spread = f"quartiles {low - 1:+.2%} to {high - 1:+.2%}"
    print(f"checkpoints every 5 steps: {middle - 1:+.2%} ({spread})")
    body["checkpoints"] = {"times_s": times, "ratio": [middle, low, high]}


PARTS = "grow,cut,shares,checkpoints"
EQUAL = (("grow", "equal"), ("cut", "equal"), ("shares", "equal_bits"))
"""Where a part says whether its bits are those of the calm run."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=PARTS)
    parser.add_argument("--rounds", type=at_least(1), default=5)
    arguments = parsed(parser)
    body: dict[str, Any] = {}
    parts: dict[str, Callable[[], None]] = {
        "grow": lambda: grow(body),
        "cut": lambda: cut(body),
        "shares": lambda: shares(body, arguments.rounds),
        "checkpoints": lambda: checkpoints(body, arguments.rounds),
    }
    start_s = time.time()
    for name in chosen(parser, "part", arguments.parts, parts):
        parts[name]()
    body["took_s"] = round(time.time() - start_s)
    part = "" if arguments.parts == PARTS else arguments.parts
    print(write_result("elastic", command_of("elastic", arguments), body, part))
    equal = (body.get(name, {}).get(key, True) for name, key in EQUAL)
    return int(not all(equal))


if __name__ == "__main__":
    sys.exit(main())
