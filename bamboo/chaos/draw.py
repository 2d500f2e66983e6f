"""The draw of a swarm of faults: which faults, when, for how long, and on which nodes.

Rule: pure, and from the seed alone. The list is drawn before anything is started, and a longer list
of the same seed begins with the shorter one. A fault names its target by a random number, which
picks among the nodes that exist at its time.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum

from bamboo.errors import InputError


class Kind(StrEnum):
    """A fault that a run has promised to survive."""

    KILL_ONE = "kill-one"
    """SIGKILL of an instance: agent and worker."""
    KILL_NEIGHBOURS = "kill-neighbours"
    """SIGKILL of the owners of two or three neighbouring stages of a pipeline, at one instant."""
    KILL_ZONE = "kill-zone"
    """SIGKILL of all instances of a zone at one instant; the zone has no capacity for a while."""
    KILL_HALF = "kill-half"
    """SIGKILL of half of all instances, at one instant."""
    KILL_ALL = "kill-all"
    NOTICE_KEPT = "notice-kept"
    """A notice; the instance is taken at its deadline."""
    NOTICE_NOT_KEPT = "notice-not-kept"
    """A notice, and the instance is never taken."""
    NOTICE_CUT_SHORT = "notice-cut-short"
    """A notice; the instance is taken before its deadline."""
    NOTICE_TO_MANY = "notice-to-many"
    """Half of all instances get a notice at once, and are taken at its deadline."""
    ADVICE = "advice"
    """Rebalance advice for an instance; nothing follows."""
    STOP_WORKER = "stop-worker"
    """SIGSTOP of a worker for longer than its lease, then SIGCONT."""
    STALL_WORKER = "stall-worker"
    """SIGSTOP of a worker for less than its lease, then SIGCONT."""
    SLOW_WORKER = "slow-worker"
    """A worker gets half of the time: it is stopped and continued in turn, each for a moment."""
    KILL_WORKER = "kill-worker"
    """SIGKILL of a worker whose agent lives on."""
    KILL_AGENT = "kill-agent"
    """SIGKILL of an agent; its worker is left to its lease and the cloud."""
    STOP_STORE = "stop-store"
    """SIGSTOP of the store, then SIGCONT."""
    KILL_STORE = "kill-store"
    """SIGKILL of the store; the local cloud starts it again over its data."""
    WIPE_STORE = "wipe-store"
    """Everything in the store is deleted; the members refill it."""
    KILL_LAUNCHER = "kill-launcher"
    """SIGKILL of the launcher. A while later a client attaches, and another launcher takes over."""
    DISK_FULL = "disk-full"
    """No worker can write to a file for a while, so its checkpoints fail."""
    NO_CAPACITY = "no-capacity"
    """Half of all instances are taken, and there is no capacity for a while."""
    NOTHING_LEFT = "nothing-left"
    """All instances are taken and there is no capacity for a while: the run parks, and wakes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A closed range to draw from, in seconds."""

    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How faults of a kind are drawn."""

    rest: Range
    """Time until the next fault, unless that follows quickly."""
    lasts: Range | None = None
    """How long a stop or a shortage lasts, or a notice until its deadline."""
    weight: int = 1
    """How often it is in a deck."""
    most: int = 1_000_000
    """The most in one run."""
    alone: bool = False
    """The next fault comes after its rest, never before."""
    past_lease: bool = False
    """It lasts for the job's `cluster.gone_s` plus `lasts`."""


_LIGHT, _HEAVY = Range(least=3.0, most=8.0), Range(least=12.0, most=24.0)

MANNERS: dict[Kind, Manner] = {
    Kind.KILL_ONE: Manner(rest=_LIGHT, weight=2),
    Kind.KILL_NEIGHBOURS: Manner(rest=_HEAVY),
    Kind.KILL_ZONE: Manner(rest=_HEAVY, lasts=Range(least=5.0, most=30.0)),
    Kind.KILL_HALF: Manner(rest=_HEAVY),
    Kind.KILL_ALL: Manner(rest=_HEAVY),
    Kind.NOTICE_KEPT: Manner(rest=_LIGHT, lasts=Range(least=1.5, most=6.0)),
    Kind.NOTICE_NOT_KEPT: Manner(rest=_LIGHT, lasts=Range(least=1.5, most=5.0)),
    Kind.NOTICE_CUT_SHORT: Manner(rest=_LIGHT, lasts=Range(least=3.0, most=8.0)),
    Kind.NOTICE_TO_MANY: Manner(rest=_HEAVY, lasts=Range(least=1.5, most=6.0)),
    Kind.ADVICE: Manner(rest=_LIGHT),
    Kind.STOP_WORKER: Manner(rest=_LIGHT, lasts=Range(least=1.5, most=5.0), past_lease=True),
    Kind.STALL_WORKER: Manner(rest=_LIGHT, lasts=Range(least=0.1, most=1.0)),
    Kind.SLOW_WORKER: Manner(rest=_LIGHT, lasts=Range(least=8.0, most=20.0)),
    Kind.KILL_WORKER: Manner(rest=_LIGHT),
    Kind.KILL_AGENT: Manner(rest=_LIGHT),
    Kind.STOP_STORE: Manner(rest=_LIGHT, lasts=Range(least=2.0, most=30.0)),
    # The local cloud restarts a store three times, helpers of its own included.
    Kind.KILL_STORE: Manner(rest=_LIGHT, most=2),
    # Live members report within a lease again what only the store had. More is impossible.
    Kind.WIPE_STORE: Manner(rest=_HEAVY, alone=True),
    Kind.KILL_LAUNCHER: Manner(rest=_LIGHT, lasts=Range(least=0.5, most=8.0)),
    Kind.DISK_FULL: Manner(rest=_LIGHT, lasts=Range(least=2.0, most=8.0)),
    Kind.NO_CAPACITY: Manner(rest=_HEAVY, lasts=Range(least=5.0, most=12.0)),
    Kind.NOTHING_LEFT: Manner(rest=_HEAVY, lasts=Range(least=4.0, most=10.0)),
}
QUICK_SHARE = 0.3
"""Share of the faults that come while the run still handles the one before."""
_QUICK = Range(least=0.05, most=1.5)
FIRST_AFTER = Range(least=1.0, most=3.0)
MOST_MINUTES = 24 * 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. Times are seconds from the swarm's begin."""

    number: int
    """Counted from 1."""
    at_s: float
    kind: Kind
    where: float
    """In [0, 1): picks the target."""
    lasts_s: float = 0.0
    cut_s: float = 0.0
    """NOTICE_CUT_SHORT: the instance is taken so long after the notice."""

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @property
    def over_s(self) -> float:
        """When its cause is gone: the fault no longer acts on the run."""
        return self.at_s + (self.cut_s or self.lasts_s)


def draw(seed: int, *, minutes: float, lease_s: float) -> tuple[Fault, ...]:
    """All faults of a swarm of so many minutes, in the order of their times. All are over by its
    end. `lease_s`: the job's `cluster.gone_s`.

    Raises InputError unless 0 < minutes <= MOST_MINUTES, and where no fault would be over by then.
    """
    if not (math.isfinite(minutes) and 0 < minutes <= MOST_MINUTES):
        why = "is longer than a swarm may go on" if minutes > 0 else "leaves no time for a fault"
        raise InputError(
            f"--minutes {minutes:g} {why}; take more than 0 and at most {MOST_MINUTES:g}"
        )
    drawn: list[Fault] = []
    for fault in _faults(random.Random(seed), lease_s):
        if fault.over_s > 60 * minutes:
            if not drawn:
                least = math.ceil(fault.over_s / 0.6) / 100
                raise InputError(
                    f"--minutes {minutes:g} leaves no time for a fault: the first of seed {seed} "
                    f"is over after {fault.over_s:g} s; take {least:g} or more, or another --seed"
                )
            break
        drawn.append(fault)
    return tuple(drawn)


def _faults(chance: random.Random, lease_s: float) -> Iterator[Fault]:
    """Faults without end. The kinds come like cards, deck after deck, so that none is left out."""
    at_s, number = _of(FIRST_AFTER, chance), 0
    left = {kind: manner.most for kind, manner in MANNERS.items()}
    while True:
        deck = [k for k, manner in MANNERS.items() for _ in range(min(manner.weight, left[k]))]
        chance.shuffle(deck)
        for kind in deck:
            left[kind] -= 1
            number += 1
            fault = _fault(number, at_s, kind, chance, lease_s)
            yield fault
            quick, rest_s = chance.random() < QUICK_SHARE, _of(MANNERS[kind].rest, chance)
            quick = quick and not MANNERS[kind].alone
            at_s = at_s + _of(_QUICK, chance) if quick else fault.over_s + rest_s


def _fault(number: int, at_s: float, kind: Kind, chance: random.Random, lease_s: float) -> Fault:
    manner, where = MANNERS[kind], chance.random()
    lasts_s = 0.0 if manner.lasts is None else _of(manner.lasts, chance)
    if manner.past_lease:
        lasts_s = round(lasts_s + lease_s, 3)
    return Fault(
        number=number,
        at_s=round(at_s, 3),
        kind=kind,
        where=where,
        lasts_s=lasts_s,
        cut_s=round(lasts_s * chance.uniform(0.1, 0.8), 3)
        if kind is Kind.NOTICE_CUT_SHORT
        else 0.0,
    )


def _of(span: Range, chance: random.Random) -> float:
    return round(chance.uniform(span.least, span.most), 3)
