"""The value of each plan that fits, best first, and why each other plan ranks lower.

Rule: value is samples per dollar less the time that losses cost, as `value.py` defines it. Times
are those of dry runs, losses those of `losses.py`, bytes those of `memory.py`. Equal values are
ordered by fewer nodes, the job's own bits, less redundancy, fewer pipelines, larger microbatches
and a simpler spread, in this order.

A plan is simulated only if it may be among the requested ones. Until then its value is bounded by a
step that no schedule can beat, and then by its own value without losses. The order is exact.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from bamboo.errors import InputError
from bamboo.planner.plans.candidates import Candidates, Choice, Room
from bamboo.planner.plans.losses import NO_LOSSES, Hazard, LossBook, Losses
from bamboo.planner.profiles.workload import Saving, WorkloadFigures
from bamboo.planner.risks.zones import USD_PER_GB
from bamboo.planner.step.step_time import DryRuns, StepTimes
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.strategy import AUTO, SPREADS, how_redundant
from bamboo.value import samples_per_s, samples_per_usd, usd_per_hour

WHOLE = 2
"""What is known of a plan: 0: its bound; 1: its calm step; 2: also what losses cost."""
DIGITS = 9
"""Digits of a value that count when two are compared; the rest is rounding."""
ROUNDING = 1e-8
SAME = 5e-3
"""Values that differ by no more count as equal in words and in the choice of a mode, because times
are not known more exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan that fits, with its predicted figures."""

    choice: Choice
    source: str
    """The source of the times."""
    nodes: int
    """Standbys included."""
    step_s: float
    samples_per_s: float
    """Throughput without losses."""
    busy: float
    """Share of the nodes' time in needed forwards and backwards; the rest is bubbles, messages and
    redundant work."""
    redundancy_overhead: float
    """Relative increase of a calm step over mode `off`, all else being equal."""
    losses: Losses
    sent_bytes: float
    """Bytes per step of the busiest node."""
    wire_share: float
    """Share of a step that sending them takes, at the rate of a node or, if only links have a rate,
    at that of one link; 0: sizes do not matter here."""
    usd_per_hour: float
    """The price of all nodes, and of traffic between zones."""
    spread: str = ""
    """How the nodes are spread over the zones."""
    why: str = ""
    """One sentence: why it is the first, or why it ranks below the first."""

    @property
    def value(self) -> float:
        """Samples per US dollar, less the time that losses cost."""
        return samples_per_usd(self.expected_samples_per_s, self.usd_per_hour)

    @property
    def expected_samples_per_s(self) -> float:
        """Throughput with the expected cost of losses."""
        return self.samples_per_s / (1 + self.losses.share)

    @property
    def overhead(self) -> float:
        """Expected overhead of redundancy in calm steps and of losses, per useful time."""
        return (1 + self.redundancy_overhead) * (1 + self.losses.share) - 1


T = TypeVar("T")
Played = dict[tuple[int, Saving, str, tuple[int, ...]], DryRuns]
"""Dry runs of one workload, by samples of a microbatch, saving, mode and cut."""


def least_redundant(
    found: Sequence[T], *, value: Callable[[T], float], mode: Callable[[T], str]
) -> T:
    """Among those whose value cannot be told from the best (to within SAME), those with the least
    redundancy; and of those, the one with the highest value."""
    best = max(map(value, found))
    alike = [one for one in found if value(one) >= best * (1 - SAME)]
    return min(alike, key=lambda one: (how_redundant(mode(one)), -value(one)))


def ranked(
    workload: WorkloadFigures,
    room: Room,
    hazard: Hazard,
    *,
    most: int = 0,
    spread: str = "one",
    standbys: int = 0,
    told: Callable[[int, int], None] | None = None,
    played: Played | None = None,
) -> tuple[Candidate, ...]:
    """The `most` best plans (0: all) of a job, best first, each with its sentence.

    `workload` is the job as written. `spread` says how the nodes are spread over the zones of
    `hazard.stakes`, and plans that it does not allow are left out; with `auto` each plan has its
    best spread. `standbys` are paid. `told` is called with (plans timed, of all); not every plan
    needs to be timed. `played`: dry runs of these layers, to use and add to. Raises JobFitsNowhere
    when no plan of the room fits, and InputError when it has none or the zones allow none.
    """
    judges: dict[str, Judge] = {}
    for name in SPREADS if spread == AUTO else (spread,):
        like = next(iter(judges.values()), None)
        judges[name] = Judge(
            workload, room, hazard, spread=name, standbys=standbys, like=like, played=played
        )
    judge = next(iter(judges.values()))
    fitting = list(judge.candidates.all())
    if not fitting:
        raise judge.candidates.nothing()
    plans = [
        (choice, name)
        for choice in fitting
        for name in judges
        if judges[name].book.zones(choice.grid)
    ]
    if not plans:
        raise InputError(
            f"none of the {len(fitting)} plans that fit can be spread as {spread!r} over "
            f"{len(hazard.stakes.zone_usd_per_hour)} zones with a price; name more zones, allow "
            "for more pipelines, or take 'one'"
        )
    # Among equal values, plans of which less is known come first, so none is missed.
    queue: list[tuple[float, int, tuple[float, ...], int, Candidate | None]] = [
        (-judges[name].bound(choice), 0, _order(choice, name), number, None)
        for number, (choice, name) in enumerate(plans)
    ]
    heapq.heapify(queue)
    found: dict[Choice, Candidate] = {}
    timed = 0
    while queue and (not most or len(found) < most):
        _, level, order, number, candidate = heapq.heappop(queue)
        choice, name = plans[number]
        if choice in found:
            continue  # it is worth more in another spread
        if level == WHOLE and candidate is not None:
            found[choice] = replace(candidate, spread=name)
            continue
        judge = judges[name]
        known = judge.calm(choice) if candidate is None else judge.with_losses(candidate)
        timed += level
        if told is not None:
            told(timed, len(plans))
        value = float(f"{known.value:.{DIGITS}g}")
        heapq.heappush(queue, (-value, level + 1, order, number, known))
    best, *behind = found.values()
    why = f"The most samples per dollar of the {len(fitting)} plans that fit."
    return (replace(best, why=why), *(replace(one, why=against(best, one)) for one in behind))


def _order(choice: Choice, spread: str) -> tuple[float, ...]:
    """The order among equal values."""
    return (
        choice.grid.size,
        not choice.same_bits,
        how_redundant(choice.mode),
        choice.grid.pipelines,
        -choice.microbatch,
        SPREADS.index(spread),
    )


class Judge:
    """Computes the figures of plans. Step times are shared between plans of one cut, and with
    another judge of the same workload and room, `like`. The total send rate of a node and the
    costs of checkpoints may differ between the two."""

    def __init__(
        self,
        workload: WorkloadFigures,
        room: Room,
        hazard: Hazard,
        *,
        spread: str,
        standbys: int,
        like: "Judge | None" = None,
        instants: dict[tuple[Grid, str], float] | None = None,
        played: Played | None = None,
    ) -> None:
        """`instants`: those of other judges of this spread over the same number of zones; `played`:
        dry runs of other judges of these layers, whatever their room."""
        self.candidates: Candidates = like.candidates if like else Candidates(workload, room)
        known = {} if instants is None else instants
        self.book = LossBook(hazard=hazard, spread=spread, standbys=standbys, instants=known)
        self._prices = hazard.stakes.zone_usd_per_hour
        self._workload = workload
        self._played: Played = {} if played is None else played
        self._times: dict[tuple[int, Saving, str, tuple[int, ...]], StepTimes] = {}
        if like:
            self._played = like._played
            if like._workload.node_bytes_per_s == workload.node_bytes_per_s:
                self._times = like._times

    def floor_s(self, choice: Choice) -> float:
        """A lower bound of the plan's calm step."""
        grid, times = choice.grid, self._times_of(choice, choice.mode)
        shares = equal_shares(self._workload.shape.virtual_nodes, grid.pipelines)
        return times.bound_s(grid, shares)

    def least_usd_per_hour(self, choice: Choice) -> float:
        """The plan's price with steps of the least time. No plan with longer steps gets more out of
        a dollar."""
        moved = self._moved_usd_per_hour(choice, self.floor_s(choice), least=True)
        return self._nodes_usd_per_hour(choice.grid) + moved

    def bound(self, choice: Choice) -> float:
        """An upper bound of the plan's value."""
        rate = samples_per_s(self._workload.batch, self.floor_s(choice))
        # Rounded up, because values are rounded to DIGITS digits.
        return samples_per_usd(rate, self.least_usd_per_hour(choice)) * (1 + ROUNDING)

    def with_losses(self, one: Candidate) -> Candidate:
        """All figures of a plan."""
        choice, work = one.choice, self._work(one.choice)
        times = self._times_of(choice, choice.mode)
        return replace(
            one,
            losses=self.book.of(work, times, choice.grid, choice.mode),
            redundancy_overhead=max(0.0, one.step_s / self._bare_s(choice) - 1),
        )

    def calm(self, choice: Choice) -> Candidate:
        """The figures of a plan without losses, and without redundancy's share of its step."""
        grid = choice.grid
        work = self._work(choice)
        times = self._times_of(choice, choice.mode)
        shares = equal_shares(work.shape.virtual_nodes, grid.pipelines)
        step_s = times.calm_s(grid, shares)
        sent = max(times.sent_bytes(grid, shares))
        rate = work.node_bytes_per_s or work.bytes_per_s
        needed_s = (sum(work.forward_s) + sum(work.backward_s)) * work.shape.total
        return Candidate(
            choice=choice,
            source=work.source,
            nodes=grid.size + self.book.standbys,
            step_s=step_s,
            samples_per_s=samples_per_s(work.batch, step_s),
            busy=needed_s / (grid.size * step_s),
            redundancy_overhead=0.0,
            losses=NO_LOSSES,
            sent_bytes=sent,
            wire_share=sent / rate / step_s if rate else 0.0,
            usd_per_hour=self._nodes_usd_per_hour(grid) + self._moved_usd_per_hour(choice, step_s),
        )

    def _bare_s(self, choice: Choice) -> float:
        """A calm step of the plan in mode `off`."""
        shares = equal_shares(self._workload.shape.virtual_nodes, choice.grid.pipelines)
        return self._times_of(choice, "off").calm_s(choice.grid, shares)

    def _nodes_usd_per_hour(self, grid: Grid) -> float:
        zones = self.book.zones(grid)
        return usd_per_hour(count * self._prices[zone] for zone, count in zones.items())

    def _moved_usd_per_hour(self, choice: Choice, step_s: float, *, least: bool = False) -> float:
        """The price of bytes between zones; `least`: a lower bound of it."""
        grid = choice.grid
        if len(self.book.zones(grid)) < 2:
            return 0.0
        assignment, zone_of = self.book.laid_out(grid, choice.mode)
        shares = equal_shares(self._workload.shape.virtual_nodes, grid.pipelines)
        times = self._times_of(choice, choice.mode)
        crossing = times.crossing_bytes(assignment, shares, zone_of, least=least)
        return crossing / 1e9 * USD_PER_GB * 3600 / step_s

    def _work(self, choice: Choice) -> WorkloadFigures:
        return replace(
            self.candidates.work(choice.microbatch, choice.saving),
            cuts={choice.grid.stages: choice.cut},
            node_bytes_per_s=self._workload.node_bytes_per_s,
        )

    def _times_of(self, choice: Choice, mode: str) -> StepTimes:
        key = (choice.microbatch, choice.saving, mode, choice.cut)
        if key not in self._times:
            known = self._played.setdefault(key, DryRuns())
            self._times[key] = StepTimes(self._work(choice), mode, known=known)
        return self._times[key]


def against(taken: Candidate, other: Candidate) -> str:
    """Why `other` is not the plan taken, or by how much it would be better."""
    behind = 1 - other.value / taken.value
    if behind < -SAME:
        why = _reason(other, taken, "this one")
        return f"{_percent(-behind)} more samples per dollar than {taken.choice.name}, where {why}."
    if behind < SAME:
        near = "" if abs(behind) < ROUNDING else f" to within {_percent(SAME)}"
        return f"Worth as much as {taken.choice.name}{near}, and it {_tie(taken, other)}."
    why = _reason(taken, other, "that one")
    return f"{_percent(behind)} fewer samples per dollar than {taken.choice.name}: {why}."


def _reason(first: Candidate, one: Candidate, there: str) -> str:
    """The factor that causes most of the difference. Value is samples over node time, less what
    losses cost, over the price of a node. `there`: the name of `first` in sentences about `one`."""
    parts = {
        "time": first.busy / one.busy,
        "losses": (1 + one.losses.share) / (1 + first.losses.share),
        "price": _each(one) / _each(first),
    }
    reason = max(parts, key=lambda part: parts[part])
    return {"time": _slower, "losses": _loses_more, "price": _dearer}[reason](first, one, there)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _each(one: Candidate) -> float:
    """Dollars per hour for each node of the grid."""
    return one.usd_per_hour / one.choice.grid.size


def _tie(first: Candidate, one: Candidate) -> str:
    a, b = first.choice, one.choice
    if b.grid.size != a.grid.size:
        return f"needs {b.grid.size} nodes in place of {a.grid.size}"
    if b.same_bits != a.same_bits:
        return "does not give the bits of the job as it is written"
    if b.mode != a.mode:
        more = how_redundant(b.mode) > how_redundant(a.mode)
        return f"has {'more' if more else 'another'} redundancy ({b.mode})"
    return "has more pipelines or smaller microbatches"


def _slower(first: Candidate, one: Candidate, there: str) -> str:
    busy = f"needed work fills {_percent(one.busy)} of its nodes' time, and "
    busy += f"{_percent(first.busy)} in {there}"
    if one.redundancy_overhead > max(first.redundancy_overhead, 1e-6):
        return f"{busy}, and redundancy makes a step {_percent(one.redundancy_overhead)} longer"
    if one.wire_share > max(first.wire_share, 0.5):
        return f"{busy}, and what its busiest node sends fills {_percent(one.wire_share)} of a step"
    return f"{busy}; it has more bubbles and waits"


def _loses_more(first: Candidate, one: Candidate, there: str) -> str:
    lost = f"losses cost it {_percent(one.losses.share)} of its useful time, and {there} "
    lost += _percent(first.losses.share)
    if one.losses.fatal_share > one.losses.survived_share:
        return f"{lost}, most of it restores and the work since the newest checkpoint"
    return f"{lost}, most of it slower steps until lost nodes are replaced"


def _dearer(first: Candidate, one: Candidate, there: str) -> str:
    return (
        f"it costs ${_each(one):.4f}/h for each node of its grid, and {there} "
        f"${_each(first):.4f}/h, standbys and bytes between zones included"
    )
