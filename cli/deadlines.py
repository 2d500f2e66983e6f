"""What is said to a run that waits for too long: for nodes, its first step, or anything at all.

Rule: only time counts in which the store took what is written to it (`core.outage`). Whoever is
waited for can say nothing meanwhile, and has a lease to say it once the store is back.
"""

from collections.abc import Iterator

from bamboo.config.tree import ClusterConfig
from bamboo.core.events import Event, RunFailed
from bamboo.core.outage import WaitClock
from bamboo.core.patience import Patience, parked, stands_for_s
from bamboo.core.state import Outcome, Phase, State
from cli.stopping import not_formed

PATIENCE_S = 60.0
"""Beyond the job's own time limits: members end a run that stands still, this is for the rest."""


class Deadlines:
    """Told what moves and when the store is away; `now_s` is Unix time."""

    def __init__(self, cluster: ClusterConfig, *, now_s: float) -> None:
        self._cluster = cluster
        self._patience = Patience(patience_s=cluster.patience_s, park_s=cluster.park_s)
        self._clock = WaitClock(lease_s=cluster.gone_s)
        self._began_at_s = self._moved_at_s = self._clock.at(now_s)

    def moved(self, now_s: float) -> None:
        """A step or a decision was seen."""
        self._moved_at_s = self._clock.at(now_s)

    def away(self, now_s: float) -> None:
        """The store is away. Nothing can be seen to move meanwhile, and the members have their time
        again once it is back, unless it goes away again and again."""
        if self._clock.away(now_s):
            self.moved(now_s)

    def waited_s(self, since_s: float) -> float:
        """How much of the time since `since_s` counts for one who is waited for since then."""
        return self._clock.counted_s(since_s)

    def due(self, state: State, *, now_s: float) -> Iterator[Event]:
        """What is to be said now; an event counts as said when the next one is asked for."""
        counted_s, cluster = self._clock.at(now_s), self._cluster
        event = self._patience.due(state, now_s=counted_s)
        if event is not None:
            yield event
            self._patience.said(event, state)
        if parked(state):
            self._moved_at_s = counted_s
        if state.phase is Phase.FORMING:
            if counted_s - self._began_at_s > cluster.forming_timeout_s:
                yield self._failed(not_formed(state, cluster))
                self._moved_at_s = counted_s
        elif (stood_s := counted_s - self._moved_at_s) > PATIENCE_S + stands_for_s(
            state, step_timeout_s=cluster.step_timeout_s
        ):
            limit = f"cluster.step_timeout_s = {cluster.step_timeout_s:g}"
            yield self._failed(
                f"no step and no decision for {stood_s:.0f} s, more than {limit} allows"
            )
            self._moved_at_s = counted_s

    def _failed(self, reason: str) -> RunFailed:
        return RunFailed(reporter="launcher", outcome=Outcome.FAULT, reason=reason)
