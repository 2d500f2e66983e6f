"""Until when an instance of a run may be there: what its tag says, and when that is prolonged.

Rule: a launcher that lives moves the tag on long before it is due; without one the instance ends
itself by it. It never says more than the budget of the run lasts, as far as that is known: what a
launcher would end for its price is not to go on without one.
"""

import math
from collections.abc import Iterable

from bamboo.ids import InstanceId
from cloud.provider import CloudRefused, Observed, Provider

EXPIRY_S = 24 * 3600
"""An instance of a run is stale so long after its start, or after its launcher said so last."""
PROLONGED_BEFORE_S = EXPIRY_S - 6 * 3600
"""It is prolonged as soon as no more than this is left."""
AGAIN_S = 600.0
"""What was refused, or is not shown yet, is not asked for again for so long; a tag that is later
than it should be by no more is left alone."""
TO_STOP_S = 3600.0
"""So long after the end of its budget a run in an account may still be stopping."""


class Expiry:
    """The tags of one run's instances, of which none is to be there after `until_s` (Unix)."""

    def __init__(self, provider: Provider, *, until_s: float = math.inf) -> None:
        self._provider = provider
        self._until_s = until_s
        self._ask_at_s = -math.inf
        self.lasts_until_s = math.inf
        """When the money of the run is spent (Unix), as things stand."""

    def at_s(self, now_s: float) -> int:
        """What the tag of an instance says that is started or prolonged now."""
        return int(min(now_s + EXPIRY_S, self._until_s, self.lasts_until_s + TO_STOP_S))

    def move(self, observed: Iterable[Observed], *, now_s: float) -> tuple[str, ...]:
        """Prolong what is due at `now_s` (Unix), and shorten what would outlast the money; what the
        cloud refuses of it, as a sentence. Raises CloudThrottled and CloudUnavailable."""
        if now_s < self._ask_at_s:
            return ()
        at_s = self.at_s(now_s)
        due = to_move(observed, at_s=at_s, now_s=now_s)
        if not due:
            return ()
        self._ask_at_s = now_s + AGAIN_S
        try:
            self._provider.prolong(due, expires_at_s=at_s)
        except CloudRefused as error:
            return (f"its instances end by the tags of their start: {error}",)
        return ()


def to_move(observed: Iterable[Observed], *, at_s: float, now_s: float) -> tuple[InstanceId, ...]:
    """Those that live and are to have the tag `at_s` (Unix): they have had a part of their time, or
    have too much of it. What shows no tag has none to move."""
    return tuple(
        one.instance
        for one in observed
        if one.state.live
        and one.expires_at_s is not None
        and (
            one.expires_at_s - now_s <= PROLONGED_BEFORE_S
            if one.expires_at_s < at_s
            else one.expires_at_s > at_s + AGAIN_S
        )
    )
