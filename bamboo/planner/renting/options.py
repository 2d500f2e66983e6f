"""All ways to rent for a job, best value first: instance type x market x zones x resilience.

Rule: the value of an option is that of its best plan by `ranking`, which quotes `value.py`; this
file only crosses the choices. A line of the table is computed no further than is needed to know
that it ranks below the requested ones; such lines show an upper bound of their value.

A mixed option has anchors on demand, which the cloud does not take: one whole pipeline or, with a
single pipeline, every second stage of the ring, so that each stage always has a live copy. It is
modelled this way.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from bamboo.errors import InputError
from bamboo.planner.plans.candidates import Candidates, Choice, Room, grids_of
from bamboo.planner.plans.losses import at_rate
from bamboo.planner.plans.ranking import DIGITS, ROUNDING, Candidate, Judge
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.renting.option import (
    HOUR_S,
    MIXED,
    ON_DEMAND,
    SPOT,
    Line,
    Misfits,
    Offer,
    Option,
    Options,
    Question,
)
from bamboo.ports import Told
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import SPREADS, can_have, how_redundant
from bamboo.value import samples_per_s, samples_per_usd, usd_per_hour

LEAST, FATAL, CALM, WHOLE = range(4)
"""What is known of a plan, in order: its least step; the least cost of fatal losses; its calm step;
all."""


def options(
    offers: Sequence[Offer],
    question: Question,
    *,
    most: int,
    told: Told = lambda _done, _of_all: None,
) -> Options:
    """The `most` best lines (0: all), best first, and in addition the best on demand, the best on
    spot without redundancy and the best on spot with it.

    Raises InputError without any offer. What does not fit is counted and is not an error here.
    """
    if not offers:
        raise InputError("no instance type to compare; name one that the catalogue has")
    return _Table(offers, question).played(most, told)


def together(tables: Sequence[Options], *, most: int) -> Options:
    """Merge the tables of parts of the offers, as if all had been searched at once: the best
    `most`, and one of each sort."""
    ordered = sorted((one for table in tables for one in table.found), key=lambda one: -one.value)
    kept, sorts = [], set[str]()
    behind = [(line, most_) for table in tables for line, most_ in table.behind]
    for number, one in enumerate(ordered):
        if number < most or not most or _sort(one.line) not in sorts:
            kept.append(one)
            sorts.add(_sort(one.line))
        else:
            behind.append((one.line, one.value))
    nearest = max((table.misfits for table in tables), key=lambda some: some.memory_bytes)
    return Options(
        found=tuple(kept),
        behind=tuple(behind),
        misfits=replace(nearest, lines=sum(table.misfits.lines for table in tables)),
        too_slow=tuple(line for table in tables for line in table.too_slow),
        least_hours=min(table.least_hours for table in tables),
        lines=sum(table.lines for table in tables),
    )


def shared_out(offers: Sequence[Offer], parts: int) -> list[list[Offer]]:
    """The offers in at most `parts` parts that may be searched separately. Offers of one GPU are in
    one part, because they share most of their work. The result is deterministic."""
    groups: dict[tuple[int, tuple[float, ...]], list[Offer]] = {}
    for offer in offers:
        groups.setdefault(_size(offer), []).append(offer)
    shared: list[list[Offer]] = [[] for _ in range(min(parts, len(groups)))]
    for group in sorted(groups.values(), key=len, reverse=True):
        min(shared, key=len).extend(group)
    return shared


def again(option: Option, offer: Offer, question: Question) -> Option:
    """The same plan on another offer, such as one with slower links."""
    table = _Table([offer], question)
    return table.of_plan(option.line, option.plan.choice)


def anchors(grid: Grid) -> int:
    """The number of on-demand nodes of a mixed option that keeps a live copy of every stage."""
    return grid.stages if grid.pipelines > 1 else -(-grid.stages // 2)


@dataclass(order=True, slots=True)
class _Entry:
    """An entry of the queue. Among equal values, the one of which less is known comes first."""

    key: tuple[float, int, int]
    """The negated value, how much is known, and a unique number."""
    line: Line = field(compare=False)
    judge: Judge = field(compare=False)
    choice: Choice = field(compare=False)
    candidate: Candidate | None = field(compare=False, default=None)


class _Table:
    """Searches the cross product, best first."""

    def __init__(self, offers: Sequence[Offer], question: Question) -> None:
        self._offers = {offer.name: offer for offer in offers}
        self._question = question
        self._least_s = inf
        self._instants: dict[tuple[str, str], dict[tuple[Grid, str], float]] = {}
        self._lines: list[Line] = []
        self._misfits: list[Line] = []
        self._queue: list[_Entry] = []
        self._fitting: dict[tuple[int, tuple[float, ...]], list[Choice]] = {}
        self._alike: list[tuple[Offer, Judge]] = []

    def played(self, most: int, told: Told) -> Options:
        """Examine all lines, and the best of them closely."""
        for done, offer in enumerate(self._offers.values()):
            told(done, 2 * len(self._offers))
            self._enter(offer)
        heapq.heapify(self._queue)
        goal = most or len(self._lines)
        if self._queue and -self._queue[0].key[0] < self._question.least_value:
            found, left = list[Option](), self._at_most()
        else:
            found, left = self._search(goal, told)
        known = {option.line for option in found} | left.keys() | {*self._misfits}
        return Options(
            found=tuple(found),
            behind=tuple(left.items()),
            misfits=self._nearest(),
            too_slow=tuple(line for line in self._lines if line not in known),
            least_hours=self._least_s * self._question.steps / HOUR_S,
            lines=len(self._lines),
        )

    def _search(self, goal: int, told: Told) -> tuple[list[Option], dict[Line, float]]:
        """Once there are enough options, only a sort that is still missing is examined closely."""
        found: list[Option] = []
        done: set[Line] = set()
        left: dict[Line, float] = {}
        while self._queue:
            entry = heapq.heappop(self._queue)
            line = entry.line
            if line in done or line in left:
                continue
            if len(found) >= goal and _sort(line) in {_sort(other) for other in done}:
                left[line] = -entry.key[0]
            elif entry.key[1] == WHOLE and entry.candidate is not None:
                found.append(self._option(line, entry.judge, entry.candidate))
                done.add(line)
                told(goal + min(len(found), goal), 2 * goal)
            else:
                self._look_closer(entry)
        return sorted(found, key=lambda one: -one.value), left

    def _at_most(self) -> dict[Line, float]:
        """Every line that fits, with an upper bound of the value of its plans."""
        left: dict[Line, float] = {}
        for entry in self._queue:
            left[entry.line] = max(left.get(entry.line, 0.0), -entry.key[0])
        return left

    # ---------------------------------------------------------------- lines and plans

    def of_plan(self, line: Line, choice: Choice) -> Option:
        """A line with this plan, whatever other plans it has."""
        judges = self._judges(self._offers[line.instance_type])
        judge = next(j for market, j in judges if (market, j.book.spread) == _place(line))
        known = judge.with_losses(judge.calm(choice))
        if line.market == MIXED:
            known = self._mixed(line, judge, known)
        return self._option(line, judge, known)

    def _enter(self, offer: Offer) -> None:
        """Enter every line of an offer, and every plan of it that fits, with its upper bound."""
        for market, judge in self._judges(offer):
            # One GPU comes in instances of several sizes.
            size = _size(offer)
            if size not in self._fitting:
                self._fitting[size] = list(judge.candidates.all())
            self._enter_lines(offer, market, judge, self._fitting[size])

    def _judges(self, offer: Offer) -> Iterator[tuple[str, Judge]]:
        """A judge for each market and spread. They all share their dry runs, also with those of
        offers with the same step times."""
        question, spot = self._question, offer.spot_usd_per_hour
        room, standbys = self._room(offer, question.modes), question.standbys
        fixed = question.hazard({"": offer.on_demand_usd_per_hour}, preemptible=False)
        like = next((judge for one, judge in self._alike if _same_steps(one, offer)), None)
        first = Judge(offer.workload, room, fixed, spread="one", standbys=standbys, like=like)
        if like is None:
            self._alike.append((offer, first))
        yield ON_DEMAND, first
        if not spot:
            return
        hazard = question.hazard(spot, preemptible=True, rate=offer.rate)
        alike = offer.name if offer.rate.by_zone else str(len(spot))
        for spread in SPREADS:
            judge = Judge(
                offer.workload,
                room,
                hazard,
                spread=spread,
                standbys=standbys,
                like=first,
                instants=self._instants.setdefault((spread, alike), {}),
            )
            yield SPOT, judge
            if spread == "one":
                yield MIXED, judge

    def _enter_lines(
        self, offer: Offer, market: str, judge: Judge, fitting: Sequence[Choice]
    ) -> None:
        for mode in _modes(market, self._question.modes):
            if not any(self._grids(offer.workload, mode)):
                continue
            line = Line(
                instance_type=offer.name, market=market, spread=judge.book.spread, mode=mode
            )
            of_mode = [choice for choice in fitting if choice.mode == mode]
            choices = [choice for choice in of_mode if judge.book.zones(choice.grid)]
            if of_mode and not choices:
                continue  # there are too few zones or pipelines for the spread
            self._lines.append(line)
            if not of_mode:
                self._misfits.append(line)
            for choice in choices:
                floor_s = judge.floor_s(choice)
                self._least_s = min(self._least_s, floor_s)
                if floor_s * self._question.steps / HOUR_S <= self._question.most_hours:
                    value = self._bound(line, judge, choice)
                    key = (-value, LEAST, len(self._queue))
                    self._queue.append(_Entry(key=key, line=line, judge=judge, choice=choice))

    def _grids(self, work: WorkloadFigures, mode: str) -> Iterator[Grid]:
        """The grids that a mode could have with enough memory."""
        return (g for g in grids_of(work, self._question.nodes) if can_have(mode, g))

    def _bound(self, line: Line, judge: Judge, choice: Choice, *, fatal: bool = False) -> float:
        """An upper bound of the plan's value: its least step and, with `fatal`, fatal losses."""
        grid, floor_s = choice.grid, judge.floor_s(choice)
        rate = samples_per_s(self._offers[line.instance_type].workload.batch, floor_s)
        if fatal and line.market == SPOT:
            often = judge.book.fatal_per_hour(grid, choice.mode)
            rate /= 1 + often * judge.book.hazard.stakes.least_lost_s(floor_s) / HOUR_S
        if line.market == MIXED:
            price = self._mixed_usd_per_hour(line, judge, grid)
        else:
            price = judge.least_usd_per_hour(choice)
        return samples_per_usd(rate, price) * (1 + ROUNDING)

    def _mixed_usd_per_hour(self, line: Line, judge: Judge, grid: Grid) -> float:
        """The price of all nodes, in one zone."""
        prices, zones = judge.book.hazard.stakes.zone_usd_per_hour, judge.book.zones(grid)
        each = [prices[zone] for zone, count in zones.items() for _ in range(count)]
        fixed = anchors(grid)
        each[:fixed] = [self._offers[line.instance_type].on_demand_usd_per_hour] * fixed
        return usd_per_hour(each)

    def _room(self, offer: Offer, modes: tuple[str, ...]) -> Room:
        return Room(
            memory_bytes=offer.memory_bytes,
            host_bytes=offer.host_bytes,
            nodes=self._question.nodes,
            modes=modes,
            microbatches=(offer.workload.microbatch,),
            savings=self._question.savings,
        )

    def _nearest(self) -> Misfits:
        """Of the lines that do not fit, the one with the most memory and the least redundancy."""
        if not self._misfits:
            return Misfits(lines=0, nearest="")

        def room(line: Line) -> tuple[int, bool, float]:
            bytes_ = self._offers[line.instance_type].memory_bytes
            return (bytes_, not line.redundant, -how_redundant(line.mode))

        line = max(self._misfits, key=room)
        offer = self._offers[line.instance_type]
        try:
            why = str(Candidates(offer.workload, self._room(offer, (line.mode,))).nothing())
        except InputError as none:  # the nodes do not make any grid
            why = str(none)
        return Misfits(
            lines=len(self._misfits),
            nearest=f"{offer.name} ({offer.gpu}): {why}",
            memory_bytes=offer.memory_bytes,
        )

    # ---------------------------------------------------------------- one plan

    def _look_closer(self, entry: _Entry) -> None:
        """Compute the entry one step further; drop it if it turns out to be too slow."""
        judge = entry.judge
        line = entry.line
        level = entry.key[1]
        known = entry.candidate
        if level == LEAST:
            value = self._bound(line, judge, entry.choice, fatal=True)
        else:
            known = judge.with_losses(known) if known else judge.calm(entry.choice)
            if line.market == MIXED:
                known = self._mixed(line, judge, known)
            if self._option(line, judge, known).hours > self._question.most_hours:
                return
            value = float(f"{known.value:.{DIGITS}g}")
        key = (-value, level + 1, entry.key[2])
        heapq.heappush(self._queue, replace(entry, key=key, candidate=known))

    def _mixed(self, line: Line, judge: Judge, plan: Candidate) -> Candidate:
        """The plan with anchors: it costs more, fewer nodes are lost, and no loss is fatal."""
        price = self._mixed_usd_per_hour(line, judge, plan.choice.grid)
        hazard = judge.book.hazard
        losses = plan.losses
        if losses.survived_per_hour or losses.fatal_per_hour:
            taken = plan.choice.grid.size - anchors(plan.choice.grid)
            losses = at_rate(
                replace(losses, survived_per_hour=float(taken), fatal_per_hour=0.0),
                hazard.rate.mean(judge.book.zones(plan.choice.grid)),
                replace_s=hazard.replace_s,
            )
        return replace(plan, losses=losses, usd_per_hour=price)

    def _option(self, line: Line, judge: Judge, plan: Candidate) -> Option:
        question, grid = self._question, plan.choice.grid
        fixed = anchors(grid) if line.market == MIXED else 0
        zones = judge.book.zones(grid)
        rate = 0.0 if line.market == ON_DEMAND else judge.book.hazard.rate.mean(zones)
        return Option(
            line=line,
            gpu=self._offers[line.instance_type].gpu,
            plan=plan,
            zones=zones,
            anchors=fixed,
            preemptions_per_node_hour=rate,
            steps=question.steps,
            batch=self._offers[line.instance_type].workload.batch,
        )


def _size(offer: Offer) -> tuple[int, tuple[float, ...]]:
    """The properties of an offer that decide which plans fit."""
    return offer.memory_bytes, offer.workload.both_s


def _same_steps(one: Offer, other: Offer) -> bool:
    """Whether fits and step times are the same on both, except for a node's total send rate."""
    if _size(one) != _size(other):
        return False
    works = (
        replace(offer.workload, store_bytes_per_s=0.0, node_bytes_per_s=0.0)
        for offer in (one, other)
    )
    return next(works) == next(works)


def _modes(market: str, modes: Sequence[str]) -> tuple[str, ...]:
    """The modes that make a difference on a market. Nodes on demand are not taken, and anchors are
    useless without a copy of every stage."""
    if market == ON_DEMAND:
        return ("off",)
    return tuple(mode for mode in modes if market == SPOT or mode != "off")


def _place(line: Line) -> tuple[str, str]:
    return line.market, line.spread


def _sort(line: Line) -> str:
    """The sort of a line; the best line of each sort is found for comparison."""
    return line.market if line.market != SPOT else f"{SPOT} {'with' if line.redundant else 'bare'}"
