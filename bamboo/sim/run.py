"""The figures of one simulated run, and of many runs from seeds.

Rule: a run is a function of the question and of one seed. The number of processes that play the
seeds changes nothing.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bamboo.core.state import initial_state
from bamboo.ids import ZoneId, run_id
from bamboo.planner.fleet.autoscale import Resize
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.risks.zones import USD_PER_GB
from bamboo.planner.step.step_time import StepTimes
from bamboo.sim.asked import Asked
from bamboo.sim.market.prices import Prices, constant
from bamboo.sim.market.trace import Trace
from bamboo.sim.members import Run
from bamboo.sim.ours import Ours
from bamboo.sim.processes import cores, in_order
from bamboo.sim.sizing import Sizes, Sizing
from bamboo.sim.ways import ON_DEMAND, OURS, always_there, every_of, renting, rival, store_usd
from bamboo.sim.world import (
    FAILOVER,
    HAND_OVER,
    PREEMPTION,
    RECONFIGURATION,
    RESIZE,
    RESTORE,
    Moment,
    Rental,
    System,
    World,
)
from bamboo.value import (
    MINIMUM_BILLED_S,
    bill_micro_usd,
    samples_per_s,
    samples_per_usd,
)

HOUR_S = 3600.0
MICRO = 1_000_000
DOLLAR_POINTS = 200
PORTION = 4
"""Seeds that a process gets at once; small, so that the last ones do not take long."""


class TimesBook:
    """Step times of one workload, by redundancy mode."""

    def __init__(self, workload: WorkloadFigures) -> None:
        self._workload = workload
        self._by_mode: dict[str, StepTimes] = {}

    def of(self, mode: str) -> StepTimes:
        if mode not in self._by_mode:
            self._by_mode[mode] = StepTimes(self._workload, mode)
        return self._by_mode[mode]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The results of one run. Times are in seconds of the world."""

    steps: int
    samples_per_s: float
    """Over the whole time, including waits."""
    preemptions: int
    failovers: int
    hand_overs: int
    reconfigurations: int
    restores: int
    lost_steps: int
    resizes: int
    """Resizes that an autoscaled run chose."""
    ended: str
    """Why it was over before the horizon; "" if it was not."""
    seconds: float
    trained_s: float
    mean_nodes: float
    usd: float
    """Price of instances, and of bytes between zones."""
    transfer_usd: float
    """The part of the bytes between zones."""
    store_usd: float
    """Price of checkpoints in the object store. `usd` does not include it."""
    minimum_usd: float
    """The part of `usd` for seconds that no instance ran, because a least time is billed."""
    instance_usd_per_hour: float
    """The mean price of an instance over all running time; 0 if none ever ran."""
    usd_per_hour: float
    samples_per_usd: float
    events: int
    transitions: int
    moments: tuple[Moment, ...]
    resized: tuple[Resize, ...]
    dollars: tuple[tuple[float, float], ...]
    """Dollars paid by each time, for the picture."""


def simulate(
    asked: Asked,
    trace: Trace,
    *,
    times: TimesBook | None = None,
    system: str = OURS,
    keep_moments: bool = True,
) -> Figures:
    """Play one market with one of SYSTEMS. Runs of one workload may share `times`."""
    times = times or TimesBook(asked.workload)
    if system == ON_DEMAND:
        trace = always_there(asked)
    world = World(
        trace=trace,
        terms=asked.terms,
        horizon_s=asked.horizon_s,
        last_step=asked.last_step,
        renting=renting(system, asked, trace),
        keep_moments=keep_moments,
    )
    player = _system(system, asked, world, times)
    world.play(player)
    on_demand = constant(asked.on_demand_usd_per_hour)
    prices = on_demand if system == ON_DEMAND else asked.prices
    ours = player if isinstance(player, Ours) else None
    every = every_of(system, asked, trace)
    spot = system != ON_DEMAND
    return figures_of(world, asked, prices=prices, spot=spot, ours=ours, every=every)


def _system(name: str, asked: Asked, world: World, times: TimesBook) -> System:
    """A system that plays in `world`."""
    if name == OURS:
        run = run_id("simulated")
        return Ours(
            world,
            asked.workload,
            times.of(asked.redundancy),
            state=initial_state(run=run, grid=asked.grid, redundancy=asked.redundancy),
            policy=asked.policy,
            standbys=asked.standbys,
            patience_s=asked.patience_s,
            park_s=asked.park_s,
            surplus_s=asked.surplus_s,
            pauses=asked.pauses,
            sizing=None if asked.sizes is None else partial(_sizing, asked, asked.sizes),
        )
    return rival(name, asked, world, bare=times.of("off"), ahead=times.of("eager"))


def _sizing(asked: Asked, sizes: Sizes, run: Run) -> Sizing:
    """The object that chooses a run's size, by present prices and, under a limit, the bill."""
    kernel = run.world.kernel

    def price(zone: ZoneId) -> float:
        return asked.prices.mean_usd_per_hour(zone, kernel.now_s, kernel.now_s)

    def spent() -> float:
        if not sizes.terms.max_usd:
            return 0.0
        free = asked.free_first_hour
        so_far = (
            one if one.until_s is not None else replace(one, until_s=kernel.now_s)
            for one in run.world.rentals
        )
        return sum(_bill(one, asked.prices, free=free) for one in so_far) / MICRO

    return Sizing(run, sizes, price=price, spent=spent)


def figures_of(
    world: World,
    asked: Asked,
    *,
    prices: Prices,
    spot: bool,
    ours: Ours | None = None,
    every: int = 0,
) -> Figures:
    """The figures of a finished world. `prices`: of an instance; `ours`: the system, if the core
    decided; `every`: steps between two of its checkpoints."""
    seconds = max(world.kernel.now_s, 1e-9)
    steps = world.progress.whole
    free = spot and asked.free_first_hour
    transfer_usd = world.crossed_bytes / 1e9 * USD_PER_GB
    bills = [_bill(rental, prices, free=free) for rental in world.rentals]
    usd = sum(bills) / MICRO + transfer_usd
    listed = [_listed_usd(rental, prices) for rental in world.rentals]
    minimum_usd = sum(
        bill / MICRO - used
        for rental, bill, used in zip(world.rentals, bills, listed, strict=True)
        if bill and _used_s(rental) < MINIMUM_BILLED_S
    )
    rate = samples_per_s(steps * asked.workload.batch, seconds)
    per_hour = usd / seconds * HOUR_S
    return Figures(
        steps=steps,
        samples_per_s=rate,
        preemptions=world.counts[PREEMPTION],
        failovers=world.counts[FAILOVER],
        hand_overs=world.counts[HAND_OVER],
        reconfigurations=world.counts[RECONFIGURATION],
        restores=world.counts[RESTORE],
        lost_steps=round(world.progress.lost_steps),
        resizes=world.counts[RESIZE],
        ended=world.ended,
        seconds=seconds,
        trained_s=world.progress.trained_s,
        mean_nodes=world.node_seconds() / seconds,
        usd=usd,
        transfer_usd=transfer_usd,
        store_usd=store_usd(
            asked,
            every=every,
            steps=world.progress.steps + world.progress.lost_steps,
            seconds=seconds,
        ),
        minimum_usd=minimum_usd,
        instance_usd_per_hour=sum(listed) / max(world.node_seconds(), 1e-9) * HOUR_S,
        usd_per_hour=per_hour,
        samples_per_usd=samples_per_usd(rate, per_hour) if per_hour > 0 else 0.0,
        events=world.kernel.events,
        transitions=0 if ours is None else ours.transitions,
        moments=tuple(world.moments),
        resized=() if ours is None else ours.resizes,
        dollars=_dollars(world, prices, free=free) if world.keep_moments else (),
    )


def _dollars(world: World, prices: Prices, *, free: bool) -> tuple[tuple[float, float], ...]:
    """As the final bill says: an instance that turns out to be free never costs anything."""
    out = []
    bills = [_bill(rental, prices, free=free) for rental in world.rentals]
    crossed = world.crossed_by
    for point in range(DOLLAR_POINTS + 1):
        at_s = world.kernel.now_s * point / DOLLAR_POINTS
        micro = 0
        for rental, bill in zip(world.rentals, bills, strict=True):
            assert rental.until_s is not None, "a world that was played has ended all its rentals"
            if rental.until_s <= at_s:
                micro += bill
            elif rental.from_s < at_s and bill:
                price = prices.mean_usd_per_hour(rental.zone, rental.from_s, at_s)
                used_s = at_s - rental.from_s
                micro += bill_micro_usd(used_s, usd_per_hour=price)
        out.append((at_s, micro / MICRO + _crossed_by(crossed, at_s) / 1e9 * USD_PER_GB))
    return tuple(out)


def _crossed_by(known: Sequence[tuple[float, float]], at_s: float) -> float:
    """Bytes between zones until then, linear between two known times."""
    after = bisect_left(known, (at_s, 0.0))
    if after == len(known):
        return known[-1][1] if known else 0.0
    (from_s, before), (until_s, more) = known[max(0, after - 1)], known[after]
    part = (at_s - from_s) / (until_s - from_s) if until_s > from_s else 1.0
    return before + max(0.0, part) * (more - before)


def _bill(rental: Rental, prices: Prices, *, free: bool) -> int:
    used_s, price = _used_s(rental), _price(rental, prices)
    return bill_micro_usd(used_s, usd_per_hour=price, free_first_hour=free and rental.interrupted)


def _listed_usd(rental: Rental, prices: Prices) -> float:
    """The price of its running time, whatever is billed."""
    return _used_s(rental) / HOUR_S * _price(rental, prices)


def _price(rental: Rental, prices: Prices) -> float:
    return prices.mean_usd_per_hour(rental.zone, rental.from_s, rental.from_s + _used_s(rental))


def _used_s(rental: Rental) -> float:
    assert rental.until_s is not None, "a world that was played has ended all its rentals"
    return rental.until_s - rental.from_s


def _some_seeds(
    asked: Asked,
    market: Callable[[int], Trace],
    systems: Sequence[str],
    times: TimesBook,
    seeds: Sequence[int],
) -> list[dict[str, Figures]]:
    """`times`: dry runs are the same for every seed, and each process makes them once."""
    found = []
    for trace in map(market, seeds):
        runs = (simulate(asked, trace, times=times, system=s, keep_moments=False) for s in systems)
        found.append(dict(zip(systems, runs, strict=True)))
    return found


def simulate_seeds(
    asked: Asked,
    market: Callable[[int], Trace],
    seeds: Sequence[int],
    *,
    systems: Sequence[str] = (OURS,),
    processes: int = 0,
) -> Iterator[dict[str, Figures]]:
    """For each seed, in order, a run of every system; on all cores, or `processes` processes.

    `market` makes the trace of a seed. Raises ProcessLost.
    """
    workers = max(1, min(processes or cores(), len(seeds)))
    portion = max(1, min(PORTION, len(seeds) // (4 * workers)))
    portions = (seeds[at : at + portion] for at in range(0, len(seeds), portion))
    some = partial(_some_seeds, asked, market, tuple(systems), TimesBook(asked.workload))
    for found in in_order(some, portions, processes=workers):
        yield from found
