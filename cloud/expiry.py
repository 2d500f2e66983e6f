"""Until when an instance of a run may exist: what its tag says, and when that is prolonged.

Rule: a live launcher moves the tag long before it is due; without a launcher the instance ends
itself by it. The tag is never later than the run's budget lasts, as far as that is known. So what a
launcher would end for its cost does not go on without one.
"""

import math
from collections.abc import Iterable

from bamboo.ids import InstanceId
from cloud.provider import CloudRefused, Observed, Provider

EXPIRY_S = 24 * 3600
"""An instance of a run is stale so long after its start, or after a launcher last prolonged it."""
PROLONGED_BEFORE_S = EXPIRY_S - 6 * 3600
"""A tag is prolonged once no more than this is left."""
AGAIN_S = 600.0
"""A change that was refused, or is not shown yet, is not repeated for so long. A tag that is too
late by no more than this is left alone."""
TO_STOP_S = 3600.0
"""A run in an account may still be stopping so long after the end of its budget."""


class Expiry:
    """The tags of one run's instances, none of which may exist after `until_s` (Unix)."""

    def __init__(self, provider: Provider, *, until_s: float = math.inf) -> None:
        self._provider = provider
        self.until_s = until_s
        self._ask_at_s = -math.inf
        self.lasts_until_s = math.inf
        """When the money of the run will be spent (Unix), as things stand."""

    def at_s(self, now_s: float) -> int:
        """The tag of an instance that is started or prolonged now."""
        return int(min(now_s + EXPIRY_S, self.until_s, self.lasts_until_s + TO_STOP_S))

    def move(self, observed: Iterable[Observed], *, now_s: float) -> tuple[str, ...]:
        """Prolong tags that are due at `now_s` (Unix), and shorten those that would outlast the
        money. Returns refusals of the cloud, as a sentence each. Raises CloudThrottled and
        CloudUnavailable."""
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
    """The live instances that should get the tag `at_s` (Unix): they have used a part of their
    time, or have too much of it. An instance without a tag is left alone."""
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
