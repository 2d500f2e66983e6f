"""When the store is away, and what of a wait counts: an outage makes nobody late.

Rule: a write that is refused, that fails or that is not answered is an outage of the store, as a
reading that fails is. While it lasts nobody can show that it is there, so what stands still then is
no evidence. An observer judges nobody before one full lease has passed in which its own writes
succeeded. A store that is away again and again may never give one: then pieces between outages add
up, and so many leases of them (PIECES) are as good as one.
"""

import math
from dataclasses import dataclass

AWAY_S = 1.0
"""A store that has neither answered nor refused for so long is away."""
PIECES = 3
"""Where outages come between, so many times as much time is asked for: no store that comes and goes
makes anybody wait for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """What one observer knows at this moment of its own writes to the store, in seconds."""

    for_s: float = 0.0
    """How long ago the first one succeeded since the last one that did not; 0: none has."""
    last_s: float = 0.0
    """How long ago the newest one succeeded: what is asked and not answered yet is no success."""
    in_all_s: float = 0.0
    """How much time all that ever succeeded vouch for, at most a beat each; outages add nothing."""

    def succeeds(self, *, every_s: float) -> bool:
        """Whether the store takes what is written to it, as far as is known to one who writes
        every `every_s` seconds: nothing is asked of the store in between."""
        return self.for_s > 0 and self.last_s <= every_s + AWAY_S

    def waited_s(self, since_s: float) -> float:
        """How much of the last `since_s` seconds others could have written in, and did not: those
        in which own writes are known to succeed."""
        return max(0.0, min(since_s, self.for_s) - self.last_s)


class WaitClock:
    """A clock for waits that a store is needed to end: it stands still while the store is away, and
    for one full lease after, in which each node says what it could not say. When outages follow
    each other so fast that it does not go between them, a lease after each is given up once nodes
    had PIECES of them in all."""

    def __init__(self, *, lease_s: float) -> None:
        self._lease_s = lease_s
        self._began_s: float | None = None
        """When it was asked first."""
        self._asked_s = 0.0
        """When it went last."""
        self._until_s: float | None = None
        """It stands still until then."""
        self._away_s = -math.inf
        """When the store was away last."""
        self._back_s: float | None = None
        """When the store was seen to be there again, of the outage that it stands still for."""
        self._seen_s = 0.0
        """When it was asked last."""
        self._given_s = 0.0
        """How long it was there between outages that came within a lease of each other."""
        self._stood: list[tuple[float, float]] = []
        """From when to when it stood still before, oldest first."""

    def away(self, now_s: float) -> bool:
        """The store is away at `now_s`; to be called again as long as it is. Whether a lease after
        it is granted, and with it all the time that anybody else has."""
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
        """The time that has counted by `now_s`."""
        began_s = self._began_s = now_s if self._began_s is None else self._began_s
        if now_s >= self._away_s + self._lease_s:
            self._back_s, self._given_s = None, 0.0
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
        """How much of the time since `since_s` has counted when it was asked last: of what came
        since then nobody knows yet whether the store was there, nor of what was before it began."""
        if self._began_s is None:
            return 0.0
        since_s = max(since_s, self._began_s)
        return max(0.0, self._asked_s - since_s - self._stood_since(since_s))

    def _stood_since(self, since_s: float) -> float:
        """For how long it has stood still since then."""
        return sum(
            until_s - max(from_s, since_s) for from_s, until_s in self._stood if until_s > since_s
        )
