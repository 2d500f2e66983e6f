"""One simulated run as figures, and many of them from seeds.

Rule: a run is a function of what was asked and of one seed; how many processes play the seeds
changes nothing.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from bamboo.core.policy import Policy
from bamboo.core.state import initial_state
from bamboo.ids import run_id
from bamboo.planner.step_time import StepTimes
from bamboo.planner.value import bill_micro_usd, samples_per_s, samples_per_usd
from bamboo.planner.workload import Workload
from bamboo.sim.ours import Ours, Pauses
from bamboo.sim.trace import Trace
from bamboo.sim.world import Moment, Rental, Terms, World
from bamboo.topology.grid import Grid

HOUR_S = 3600.0
MICRO = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be simulated."""

    workload: Workload
    policy: Policy
    grid: Grid
    """To begin with."""
    redundancy: str
    standbys: int
    patience_s: float
    park_s: float
    terms: Terms
    pauses: Pauses
    usd_per_hour: float
    """Of an instance."""
    horizon_s: float
    last_step: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What became of one run. Times in seconds of the world."""

    steps: int
    samples_per_s: float
    """Over the whole time, waiting included."""
    tokens: float
    preemptions: int
    failovers: int
    hand_overs: int
    reconfigurations: int
    restores: int
    lost_steps: int
    ended: str
    """Why it was over before the horizon; "": it was not."""
    seconds: float
    trained_s: float
    mean_nodes: float
    usd: float
    usd_per_hour: float
    samples_per_usd: float
    events: int
    transitions: int
    moments: tuple[Moment, ...]


def simulate(asked: Asked, trace: Trace, *, times: StepTimes, keep_moments: bool = True) -> Figures:
    """Play one market. `times` may be shared by runs of the same workload and mode."""
    world = World(
        trace=trace,
        terms=asked.terms,
        horizon_s=asked.horizon_s,
        last_step=asked.last_step,
        keep_moments=keep_moments,
    )
    state = initial_state(run=run_id("simulated"), grid=asked.grid, redundancy=asked.redundancy)
    ours = Ours(
        world,
        asked.workload,
        times,
        state=state,
        policy=asked.policy,
        standbys=asked.standbys,
        patience_s=asked.patience_s,
        park_s=asked.park_s,
        pauses=asked.pauses,
    )
    world.play(ours)
    return figures_of(world, asked, transitions=ours.transitions)


def figures_of(world: World, asked: Asked, *, transitions: int) -> Figures:
    """The figures of a world that has been played."""
    seconds = max(world.kernel.now_s, 1e-9)
    steps = world.progress.whole
    usd = sum(_bill(rental, asked.usd_per_hour) for rental in world.rentals) / MICRO
    rate = samples_per_s(steps * asked.workload.batch, seconds)
    per_hour = usd / seconds * HOUR_S
    return Figures(
        steps=steps,
        samples_per_s=rate,
        tokens=0.0,
        preemptions=world.counts["preemptions"],
        failovers=world.counts["failovers"],
        hand_overs=world.counts["hand_overs"],
        reconfigurations=world.counts["reconfigurations"],
        restores=world.counts["restores"],
        lost_steps=round(world.progress.lost_steps),
        ended=world.ended,
        seconds=seconds,
        trained_s=world.progress.trained_s,
        mean_nodes=world.node_seconds() / seconds,
        usd=usd,
        usd_per_hour=per_hour,
        samples_per_usd=samples_per_usd(rate, per_hour) if per_hour > 0 else 0.0,
        events=world.kernel.events,
        transitions=transitions,
        moments=tuple(world.moments),
    )


def _bill(rental: Rental, usd_per_hour: float) -> int:
    assert rental.until_s is not None, "a world that was played has ended all its rentals"
    used_s = rental.until_s - rental.from_s
    return bill_micro_usd(
        used_s, usd_per_hour=usd_per_hour, spot=True, interrupted=rental.interrupted
    )


def _one_seed(asked: Asked, market: Callable[[int], Trace], seed: int) -> Figures:
    times = _shared_times(asked.workload, asked.redundancy)
    return simulate(asked, market(seed), times=times, keep_moments=False)


_TIMES: dict[tuple[str, str], StepTimes] = {}
"""Of this process, by workload and mode: dry runs are the same for every seed."""


def _shared_times(workload: Workload, mode: str) -> StepTimes:
    key = (repr(workload), mode)
    if key not in _TIMES:
        _TIMES[key] = StepTimes(workload, mode)
    return _TIMES[key]


def simulate_seeds(
    asked: Asked, market: Callable[[int], Trace], seeds: Sequence[int], *, processes: int = 0
) -> Iterator[Figures]:
    """One run for each seed, in their order, on all cores (or so many processes).

    `market` makes the trace of a seed; it must be picklable.
    """
    workers = min(processes or os.cpu_count() or 1, len(seeds))
    if workers <= 1:
        for seed in seeds:
            yield _one_seed(asked, market, seed)
        return
    with ProcessPoolExecutor(max_workers=workers) as pool:
        chunk = max(1, min(16, len(seeds) // (4 * workers)))
        one = partial(_one_seed, asked, market)
        yield from pool.map(one, seeds, chunksize=chunk)
