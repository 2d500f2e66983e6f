"""The end of a run's fleet: everything is ended, and seen to have ended.

Rule: the cloud's list proves an end, not its answer to the call. What was started and is not shown
yet counts as there for as long as it may still show up, and so does a launch without an answer.
"""

from collections.abc import Callable

from bamboo.errors import BambooError
from bamboo.ids import RunId
from cloud.backoff import Backoff
from cloud.provider import CloudRefused, CloudThrottled, CloudUnavailable, Provider
from cloud.sight import SHOWN_WITHIN_S, Sight

TERMINATE_DEADLINE_S = 60.0
_LOOK_S = 0.1
_MOST_LOOK_S = 2.0


class StillLive(BambooError):
    """Instances that were to end may still live; `names` lists them, as far as the cloud showed."""

    def __init__(self, run: RunId, names: str) -> None:
        super().__init__(
            f"instances of run {run} may still be running and cost money ({names}); end them in "
            f"the cloud's console by the tag bamboo:run={run}"
        )
        self.names = names


def end_all(
    provider: Provider,
    sight: Sight,
    backoff: Backoff,
    *,
    run: RunId,
    deadline_s: float,
    waiting: Callable[[str], None],
    to_the_last: bool,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """End all instances of the run, its requests and the volumes that it leaves behind, and see
    that none is left. `to_the_last`: wait also for volumes that go with their instance. `waiting`
    is called once when that takes more than a first answer. A call under way at the deadline is the
    last, since expired credentials may be renewed until then. Raises StillLive, which names those
    that still live; calling again does no harm. Raises CloudRefused at once where the run's
    instances could never be listed, and none is known to have been started."""
    start_s = now()
    names = sight.names() or "unknown"
    told = False
    pause_s = _LOOK_S
    error: BambooError | None = None
    look_for_s: float | None = None
    while True:
        try:
            left = sight.left()
            # Instances first: they cost most, and for the others a permission may be missing.
            rest = () if left else sight.rest(to_the_last=to_the_last)
            names, error = ", ".join([*left, *(one.id for one in rest)]) or "none is shown", None
            if look_for_s is None:
                # A launch without an answer that is not shown may still show up: look for longer
                # then.
                look_for_s = SHOWN_WITHIN_S if sight.open else 0.0
            passed_s = now() - start_s
            if left and passed_s < deadline_s:
                sight.asked_to_end(left, unknown=provider.terminate(left))
            elif rest and passed_s < deadline_s:
                provider.release(rest)
            elif not left and not rest and passed_s >= look_for_s:
                return
        except CloudThrottled as trouble:
            error, pause_s = trouble, backoff.refused(now_s=now())
        except CloudUnavailable as trouble:
            error = trouble
        except CloudRefused as trouble:
            if not sight.knows_any:
                raise
            error = trouble
        left_s = deadline_s - (now() - start_s)
        if left_s <= 0:
            break
        if error is not None and not told:
            told = True
            waiting(f"ending the instances, for up to {deadline_s:g} s: {error}")
        sleep(min(pause_s, max(left_s, _LOOK_S)))
        pause_s = min(2 * pause_s, _MOST_LOOK_S)
    raise StillLive(run, names) from error
