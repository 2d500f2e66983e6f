"""When waiting for nodes has been long enough: what whoever keeps the fleet then says to the run.

Rule: it is only said that nobody came; what follows from it `transition` decides. What is
remembered is a function of the states that were shown, and of their times.
"""

from bamboo.core.answers import answers
from bamboo.core.events import Event, Reconsider, RunFailed
from bamboo.core.reconfiguration import at_rest
from bamboo.core.state import Outcome, Phase, State

_TRAINING = (Phase.RUNNING, Phase.DEGRADED)
AHEAD = 10
"""Times the patience, which is about standing still: all train while state is sent ahead."""
READING = 10
"""Times the time limit of a step: large state takes its time to be read, or to be sent to whoever
lacks it."""


class Patience:
    """Told every state of a run, with the time.

    `patience_s`: so long lost nodes are waited for before those who are left are laid out anew;
    `park_s`: so long a run without enough nodes waits before it ends. For what is sent ahead of a
    new layout AHEAD times the patience: all train on meanwhile.
    """

    def __init__(self, *, patience_s: float, park_s: float) -> None:
        self._patience_s, self._park_s = patience_s, park_s
        self._short_since_s: float | None = None
        self._parked_since_s: float | None = None
        self._prepares_since_s: float | None = None
        self._said_at: tuple[int, bool] | None = None
        """The generation in which it was said last, and whether something was sent ahead then: of
        what is begun on its word it may be said that it takes too long."""

    def due(self, state: State, *, now_s: float) -> Event | None:
        """What is to be said now, if anything; again and again until `said`."""
        parked, prepares = self._parked(state, now_s), self._prepares(state, now_s)
        return parked or prepares or self._short(state, now_s)

    def said(self, event: Event, state: State) -> None:
        """The run has heard it; to be told of every `event` that was due in `state`."""
        if isinstance(event, Reconsider):
            self._said_at = _moment(state)

    def due_at_s(self, state: State) -> float | None:
        """When something will be due if `state`, which was shown last, stays as it is; None:
        nothing will. What is due already and was not said has a time that has passed."""
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
            # What is dropped for a loss and prepared again at rest is one wait: the bytes are not.
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
            reason=f"not all was sent ahead within {waited_s:.0f} s",
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
    """What a run that ends has to go on from."""
    newest = max((made.step for made in state.checkpoints), default=0)
    again = f"`bamboo resume {state.run}`"
    return f"{again} goes on from step {newest}" if newest else f"{again} begins anew"


def _moment(state: State) -> tuple[int, bool]:
    return state.generation, state.preparing is not None


def parked(state: State) -> bool:
    """Whether a run waits for nodes: everybody who is left has said what he holds, and nobody
    stores any of it."""
    reconfiguration = state.reconfiguration
    if (
        reconfiguration is None
        or reconfiguration.base is not None
        or (reconfiguration.keep is not None and state.roll.live)
    ):
        return False
    return not answers(reconfiguration.reports).silent(reconfiguration.asked, state.roll.live)


def stands_for_s(state: State, *, step_timeout_s: float) -> float:
    """So long a run may show neither a step nor a decision before it counts as hung."""
    reconfiguration = state.reconfiguration
    moves = reconfiguration is not None and (
        reconfiguration.base is not None or reconfiguration.keep is not None
    )
    # Once more than who reads gives it: its own word, which names the cause, is to come first.
    return (READING + 1) * step_timeout_s if moves else step_timeout_s
