"""Decides when the store counts as away, and how much of a wait counts: an outage makes no node
late.

Rule: a write that is refused, fails or is not answered is an outage of the store, like a reading
that fails. During an outage no node can show that it is alive, so a counter that stands still is no
evidence. An observer judges no node before one full lease has passed in which its own writes
succeeded. A store that is away again and again may never give one full lease. Then the pieces of
time between outages add up, and PIECES leases of them count as one.
"""

import math
from dataclasses import dataclass

AWAY_S = 1.0
"""A store that has neither answered nor refused for so long counts as away."""
PIECES = 3
"""With outages in between, so many times as much time is needed. So a store that comes and goes
makes no wait endless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """What one observer knows at this moment about its own writes to the store, in seconds."""

    for_s: float = 0.0
    """How long ago the first write succeeded since the last one that did not; 0: none has."""
    last_s: float = 0.0
    """How long ago the newest write succeeded; one that is not answered yet is no success."""
    in_all_s: float = 0.0
    """How much time all successful writes vouch for, at most one beat each; outages add nothing."""

    def succeeds(self, *, every_s: float) -> bool:
        """Whether the store takes what is written to it, as far as an observer knows that writes
        every `every_s` seconds and asks nothing in between."""
        return self.for_s > 0 and self.last_s <= every_s + AWAY_S

    def waited_s(self, since_s: float) -> float:
        """How much of the last `since_s` seconds counts: the time in which the observer's own
        writes are known to have succeeded, so that others could have written too."""
        return max(0.0, min(since_s, self.for_s) - self.last_s)


class WaitClock:
    """A clock for waits that only the store can end. It stands still while the store is away, and
    for one full lease after, in which each node can report what it could not report before. If
    outages follow each other so fast that the clock never moves, the lease after each outage is
    given up once the store was there for PIECES leases in all."""

    def __init__(self, *, lease_s: float) -> None:
        self._lease_s = lease_s
        self._began_s: float | None = None
        """When the clock was asked first."""
        self._asked_s = 0.0
        """The last time at which the clock moved."""
        self._until_s: float | None = None
        """The clock stands still until this time; None: it moves."""
        self._away_s = -math.inf
        """When the store was last seen away."""
        self._back_s: float | None = None
        """When the store was first seen again after the outage for which the clock stands still."""
        self._seen_s = 0.0
        """When the clock was asked last, while it stood still with the store there."""
        self._given_s = 0.0
        """How long the store was there between outages that came within a lease of each other."""
        self._stood: list[tuple[float, float]] = []
        """The former times of standing still, from and until, oldest first."""

    def away(self, now_s: float) -> bool:
        """Note that the store is away at `now_s`; call it again for as long as it is. Returns
        whether a lease is granted after the outage."""
        if self._began_s is None:
            self._began_s = self._asked_s = now_s
        if self._back_s is not None:
            self._given_s += self._seen_s - self._back_s
            self._back_s = None
        self._away_s = now_s
        given_up = self._given_s >= PIECES * self._lease_s
        self._until_s = now_s + (0.0 if given_up else self._lease_s)
        return not given_up

    def at(self, now_s: float) -> float:
        """The time of this clock at `now_s`."""
        began_s = self._began_s = now_s if self._began_s is None else self._began_s
        if now_s >= self._away_s + self._lease_s:
            self._back_s = None
            self._given_s = 0.0
        elif now_s > self._away_s:
            self._back_s = now_s if self._back_s is None else self._back_s
            self._seen_s = now_s
        if self._until_s is None or now_s >= self._until_s:
            if self._until_s is not None:
                self._stood.append((self._asked_s, self._until_s))
                self._until_s = None
            self._asked_s = now_s
        return self._asked_s - self._stood_since(began_s)

    def counted_s(self, since_s: float) -> float:
        """How much of the time since `since_s` had counted when the clock was asked last. Time
        after that, or from before the clock began, does not count: whether the store was there then
        is not known."""
        if self._began_s is None:
            return 0.0
        since_s = max(since_s, self._began_s)
        return max(0.0, self._asked_s - since_s - self._stood_since(since_s))

    def _stood_since(self, since_s: float) -> float:
        """For how long the clock has stood still since then."""
        return sum(
            until_s - max(from_s, since_s) for from_s, until_s in self._stood if until_s > since_s
        )
