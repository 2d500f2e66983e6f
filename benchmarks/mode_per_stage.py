"""What a redundancy mode for each stage is worth over the best one for all (modelled by dry runs).

    python -m benchmarks.mode_per_stage [--jobs 40] [--whole 6]

Random jobs like those of the trace: steps of seconds, different layers, 4 to 10 stages, 1 to 3
pipelines, links that matter or do not, and a node's memory between what `stash` and what `gap`
needs. Each is planned with one mode for all and as `auto` plans it, at three rates of preemption.
For a few jobs of four stages all 256 mixtures are valued, with that memory and with memory for all
of them: no search over stages could do better.
"""

import argparse
import itertools
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bamboo.planner.layers.facts import LayerFacts
from bamboo.planner.plans.candidates import Candidates, Room
from bamboo.planner.plans.losses import Hazard
from bamboo.planner.plans.ranking import SAME, Candidate, Judge, Played, ranked
from bamboo.planner.plans.stage_modes import by_stage
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.risks.hazards import LOSSES_PER_NODE_HOUR, said
from bamboo.planner.risks.zones import Stakes
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import REPLICA_MODES, redundancy_of
from bamboo.topology.virtual_nodes import BatchShape
from benchmarks.measuring.options import at_least, parsed
from benchmarks.measuring.report import command_of, write_result

RATES = {"the p3 trace's": 1.0, "three times the trace's": 3.0, "ten times the trace's": 10.0}
STAKES = Stakes(zone_usd_per_hour={"a": 1.0}, preemptible=True, steps=20_000, checkpoint_every=20)
SEED = 7
ROOMY_BYTES = 2**45


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A workload, its grid, and the memory of a node."""

    work: WorkloadFigures
    grid: Grid
    memory_bytes: int
    played: Played = field(default_factory=dict)
    """Its dry runs, which do not depend on how often nodes are lost."""

    def room(self, memory_bytes: int) -> Room:
        nodes = range(self.grid.size, self.grid.size + 1)
        return Room(
            memory_bytes=memory_bytes, nodes=nodes, grids=(self.grid,), modes=REPLICA_MODES,
            microbatches=(1,),
        )  # fmt: skip


def random_job(chance: random.Random, *, stages: int, most_microbatches: int) -> Job:
    """Steps of 1 to 20 s, as large models have on GPUs of the trace's kind."""
    pipelines, layers = chance.randint(1, 3), chance.randint(stages, 4 * stages)
    microbatches, step_s = chance.randint(4, most_microbatches), chance.uniform(1.0, 20.0)
    weights = [chance.uniform(1.0, chance.choice((1.1, 3.0))) for _ in range(layers)]
    unit_s = step_s * stages / (3 * microbatches * sum(weights))
    work = WorkloadFigures(
        name="random",
        source="drawn",
        layers=tuple(
            LayerFacts(
                name=f"layer {number}",
                parameters=parameters,
                moment_bytes=8 * parameters,
                forward_flops=1.0,
                output_bytes=chance.randint(1, 16) << 20,
                activation_bytes=chance.randint(16, 128) << 20,
            )
            for number, parameters in enumerate(
                chance.randint(1, 30) * 1_000_000 for _ in range(layers)
            )
        ),
        forward_s=tuple(unit_s * weight for weight in weights),
        backward_s=tuple(2 * unit_s * weight for weight in weights),
        shape=BatchShape(virtual_nodes=pipelines, microbatches=microbatches),
        batch=pipelines * microbatches,
        bytes_per_s=chance.choice((0.0, 3e8, 1.25e9)),
    )
    job = Job(work=work, grid=Grid(pipelines=pipelines, stages=stages), memory_bytes=ROOMY_BYTES)
    candidates = Candidates(work, job.room(ROOMY_BYTES))
    least, most = (candidates.asked(job.grid, mode).most_bytes for mode in ("stash", "gap"))
    return replace(job, memory_bytes=least + int((most - least) * chance.random()))


def best_for_all(job: Job, hazard: Hazard, memory_bytes: int) -> Candidate:
    """With one mode for all stages and the cut of `stash`; other cuts are not compared here."""
    found = ranked(job.work, job.room(memory_bytes), hazard, standbys=1, played=job.played)
    cut = next(one.choice.cut for one in found if one.choice.mode == "stash")
    return next(one for one in found if one.choice.cut == cut)


def planned_gain(job: Job, hazard: Hazard) -> float:
    """Gain in samples per dollar of what `auto` takes; 0: it takes one mode for all."""
    alike, room = best_for_all(job, hazard, job.memory_bytes), job.room(job.memory_bytes)
    mixed = by_stage(
        job.work, alike, room, hazard, standbys=1, cut=alike.choice.cut, played=job.played
    )
    return mixed.value / alike.value - 1


def most_gains(job: Job, hazard: Hazard) -> tuple[float, float]:
    """Gain of the best of all mixtures: with the job's memory, and with memory for all of them."""
    judge = Judge(
        job.work, job.room(ROOMY_BYTES), hazard, spread="one", standbys=1, played=job.played
    )
    values = []
    for modes in itertools.product(REPLICA_MODES, repeat=job.grid.stages):
        choice = judge.candidates.asked(job.grid, redundancy_of(modes))
        value = judge.with_losses(judge.calm(choice)).value
        values.append((value, choice.most_bytes))
    out = []
    for memory in (job.memory_bytes, ROOMY_BYTES):
        best = max(value for value, needs in values if needs <= memory)
        out.append(best / best_for_all(job, hazard, memory).value - 1)
    return out[0], out[1]


def told(what: str, gains: Sequence[float]) -> dict[str, Any]:
    """Print them in a line; the result has all of them."""
    spread = {
        "median": statistics.median(gains),
        "p90": statistics.quantiles(gains, n=10)[-1],
        "most": max(gains),
        "could be told": sum(gain > SAME for gain in gains) / len(gains),
    }
    print(f"{what}: " + ", ".join(f"{n} {x:.2%}" for n, x in spread.items()), flush=True)
    return {**spread, "gains": [round(gain, 6) for gain in gains]}


def main() -> None:
    parser = argparse.ArgumentParser(description="What a mode for each stage is worth.")
    parser.add_argument("--jobs", type=at_least(1), default=40)
    parser.add_argument("--whole", type=at_least(1), default=6)
    options = parsed(parser)
    chance = random.Random(SEED)
    jobs = [
        random_job(chance, stages=chance.randint(4, 10), most_microbatches=12)
        for _ in range(options.jobs)
    ]
    whole = [random_job(chance, stages=4, most_microbatches=8) for _ in range(options.whole)]
    hazards = {
        name: Hazard(stakes=STAKES, rate=said(LOSSES_PER_NODE_HOUR * rate))
        for name, rate in RATES.items()
    }
    gains: dict[str, dict[str, list[float]]] = {name: {} for name in RATES}
    for name, hazard in hazards.items():
        gains[name]["as planned"] = [planned_gain(job, hazard) for job in jobs]
        most = [most_gains(job, hazard) for job in whole]
        gains[name]["best of all mixtures, tight memory"] = [tight for tight, _ in most]
        gains[name]["best of all mixtures, memory for all"] = [roomy for _, roomy in most]
        gains[name]["as planned, of these jobs"] = [planned_gain(job, hazard) for job in whole]
    body = {
        name: {what: told(f"preemptions at {name} rate, {what}", g) for what, g in found.items()}
        for name, found in gains.items()
    }
    command = command_of("mode_per_stage", options)
    print(write_result("mode-per-stage", command, body))


if __name__ == "__main__":
    main()
