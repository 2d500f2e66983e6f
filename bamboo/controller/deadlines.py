"""The events for a run that has waited too long: for nodes, for its first step, or for any
progress.

Rule: only time in which the store accepts writes counts (`core.liveness.outage`). During an outage
a node cannot report, and it gets a full lease to do so once the store is back.
"""

from collections.abc import Iterator

from bamboo.config.tree import ClusterConfig
from bamboo.core.events import Event, RunFailed
from bamboo.core.liveness.outage import WaitClock
from bamboo.core.liveness.patience import Patience, parked, stands_for_s
from bamboo.core.state import Outcome, Phase, State

PATIENCE_S = 60.0
"""On top of the job's own time limits, by which members end a run that stands still."""


class Deadlines:
    """Receives what progresses and when the store is away; `now_s` is Unix time."""

    def __init__(self, cluster: ClusterConfig, *, now_s: float) -> None:
        self._cluster = cluster
        self._patience = Patience(patience_s=cluster.patience_s, park_s=cluster.park_s)
        self._clock = WaitClock(lease_s=cluster.gone_s)
        self._began_at_s = self._moved_at_s = self._clock.at(now_s)

    def moved(self, now_s: float) -> None:
        """A step or a decision was seen."""
        self._moved_at_s = self._clock.at(now_s)

    def away(self, now_s: float) -> None:
        """The store is away. No progress can be seen meanwhile. Once it is back, the members get
        their time again, unless it goes away again and again."""
        if self._clock.away(now_s):
            self.moved(now_s)

    def waited_s(self, since_s: float) -> float:
        """How much of the time since `since_s` counts as waiting."""
        return self._clock.counted_s(since_s)

    def due(self, state: State, *, now_s: float) -> Iterator[Event]:
        """The events that are due now. One counts as reported when the next is requested."""
        counted_s, cluster = self._clock.at(now_s), self._cluster
        event = self._patience.due(state, now_s=counted_s)
        if event is not None:
            yield event
            self._patience.said(event, state)
        if parked(state):
            self._moved_at_s = counted_s
        if state.phase is Phase.FORMING:
            if counted_s - self._began_at_s > cluster.forming_timeout_s:
                yield self._failed(_not_formed(state, cluster))
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


def _not_formed(state: State, cluster: ClusterConfig) -> str:
    """The sentence for a cluster that did not form in its time."""
    return (
        f"{len(state.live_nodes())} of {state.grid.size} nodes joined within "
        f"cluster.forming_timeout_s = {cluster.forming_timeout_s:g}; "
        "see the nodes' logs, raise it, or take other cloud.zones"
    )
