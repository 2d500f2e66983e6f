"""Decides when waiting for nodes has been long enough, and which event the launcher then reports.

Rule: the event only says that no node came; what follows from it is for `transition` to decide. The
memory of `Patience` is a function of the states that it was shown, and of their times.
"""

from bamboo.core.events import Event, Reconsider, RunFailed
from bamboo.core.reconfiguration import at_rest
from bamboo.core.rounds import answers
from bamboo.core.state import Outcome, Phase, State

_TRAINING = (Phase.RUNNING, Phase.DEGRADED)
AHEAD = 10
"""A prefetch is given so many times the patience, since all nodes train meanwhile."""
READING = 10
"""State that is being read or sent is given so many times the time limit of a step, since large
state takes its time."""


class Patience:
    """Is shown every state of a run, with the time.

    `patience_s`: how long lost nodes are waited for before the others reconfigure without them;
    `park_s`: how long a run without enough nodes waits before it ends. A prefetch is given AHEAD
    times the patience, since all nodes train meanwhile.
    """

    def __init__(self, *, patience_s: float, park_s: float) -> None:
        self._patience_s = patience_s
        self._park_s = park_s
        self._short_since_s: float | None = None
        self._parked_since_s: float | None = None
        self._prepares_since_s: float | None = None
        self._said_at: tuple[int, bool] | None = None
        """The generation in which Reconsider was reported last, and whether a prefetch was under
        way then: one that begins because of the report may be reported as too slow again."""

    def due(self, state: State, *, now_s: float) -> Event | None:
        """The event to report now, or None; the same again until `said` is called."""
        parked, prepares = self._parked(state, now_s), self._prepares(state, now_s)
        return parked or prepares or self._short(state, now_s)

    def said(self, event: Event, state: State) -> None:
        """Note that `event`, which was due in `state`, was reported; call it for every such
        event."""
        if isinstance(event, Reconsider):
            self._said_at = _moment(state)

    def due_at_s(self, state: State) -> float | None:
        """When an event will be due if `state`, which was shown last, stays as it is; None: never.
        An event that is due already and was not reported has a time that has passed."""
        times_s = []
        if self._parked_since_s is not None:
            times_s.append(self._parked_since_s + self._park_s)
        prepares_s = None if state.preparing is None else self._prepares_since_s
        if prepares_s is not None and self._said_at != _moment(state):
            times_s.append(prepares_s + AHEAD * self._patience_s)
        if self._short_since_s is not None and self._said_at != _moment(state):
            times_s.append(self._short_since_s + self._patience_s)
        return min(times_s, default=None)

    def _short(self, state: State, now_s: float) -> Event | None:
        here = len(state.roll.usable)
        waits = parked(state)
        trains = state.phase in _TRAINING and state.preparing is None
        if not waits and (not trains or here >= state.grid.size):
            self._short_since_s = None
            return None
        if self._short_since_s is None:
            self._short_since_s = now_s
        waited_s = now_s - self._short_since_s
        if here < 1 or waited_s < self._patience_s or self._said_at == _moment(state):
            return None
        return Reconsider(
            reporter="launcher",
            reason=f"no further node came within cluster.patience_s = {self._patience_s:g}",
        )

    def _prepares(self, state: State, now_s: float) -> Event | None:
        if state.preparing is None:
            # A prefetch that a loss ends and that begins again at rest is one wait.
            if state.reconfiguration is not None or at_rest(state):
                self._prepares_since_s = None
            return None
        if self._prepares_since_s is None:
            self._prepares_since_s = now_s
        waited_s = now_s - self._prepares_since_s
        if waited_s < AHEAD * self._patience_s or self._said_at == _moment(state):
            return None
        return Reconsider(
            reporter="launcher",
            reason=f"not everything was prefetched within {waited_s:.0f} s",
        )

    def _parked(self, state: State, now_s: float) -> Event | None:
        if not parked(state):
            self._parked_since_s = None
            return None
        if self._parked_since_s is None:
            self._parked_since_s = now_s
        if now_s - self._parked_since_s < self._park_s:
            return None
        return RunFailed(
            reporter="launcher",
            outcome=Outcome.PARKED if state.checkpoints else Outcome.UNRECOVERABLE,
            reason=f"too few nodes for cluster.park_s = {self._park_s:g} s; {_left_words(state)}",
        )


def _left_words(state: State) -> str:
    """Words for what a run that ends can go on from."""
    newest = max((made.step for made in state.checkpoints), default=0)
    again = f"`bamboo resume {state.run}`"
    return f"{again} goes on from step {newest}" if newest else f"{again} starts over"


def _moment(state: State) -> tuple[int, bool]:
    return state.generation, state.preparing is not None


def parked(state: State) -> bool:
    """Whether a run waits for nodes: all nodes that are left have reported what they hold, and none
    is storing any of it."""
    reconfiguration = state.reconfiguration
    if (
        reconfiguration is None
        or reconfiguration.base is not None
        or (reconfiguration.keep is not None and state.roll.live)
    ):
        return False
    return not answers(reconfiguration.reports).silent(reconfiguration.asked, state.roll.live)


def stands_for_s(state: State, *, step_timeout_s: float) -> float:
    """For how long a run may show neither a step nor a decision before it counts as hung."""
    reconfiguration = state.reconfiguration
    moves = reconfiguration is not None and (
        reconfiguration.base is not None or reconfiguration.keep is not None
    )
    # One more than the reader gives itself: its own report, which names the cause, comes first.
    return (READING + 1) * step_timeout_s if moves else step_timeout_s
