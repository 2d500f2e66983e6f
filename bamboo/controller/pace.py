"""How fast the members are, from their leases.

Rule: only work since the present layout began counts, and only where every member has done enough
since. A speed covers a short time, so that a node that has become slow is noticed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from bamboo.config.tree import ClusterConfig
from bamboo.core.events import Event, Pace, PaceMeasured, Speed, SpeedsMeasured
from bamboo.core.state import Phase, State
from bamboo.ids import NodeId
from bamboo.topology.assignment import Assignment

ENOUGH = 16
"""Forwards since the layout began, and forwards that one speed is measured over."""
COLUMN = 3
"""Owners of one stage that are enough for a median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    forwards: int
    busy_s: float


class PaceKeeper:
    """Takes in every lease. It is asked for measurements now and then."""

    def __init__(self, cluster: ClusterConfig) -> None:
        self._cluster = cluster
        self._era = self._generation = -1
        self._first: dict[str, _Work] = {}
        self._last: dict[str, _Work] = {}
        self._since: dict[str, _Work] = {}
        """Where the present speeds count from. A node that was given other slots begins again."""

    def told(self, state: State, node: str, beat: Mapping[str, Any]) -> None:
        """Take in a lease of `node`."""
        if state.era != self._era:
            self._era = state.era
            self._first = {}
            self._last = {}
        if state.generation != self._generation:
            self._generation = state.generation
            self._since = {}
        if state.phase is not Phase.RUNNING or "busy_s" not in beat:
            return
        work = _Work(forwards=int(beat["ops"]["F"]), busy_s=float(beat["busy_s"]))
        self._first.setdefault(node, work)
        self._since.setdefault(node, work)
        self._last[node] = work

    def due(self, state: State) -> list[Event]:
        """All events that are due."""
        found = (self.speeds(state), self.measured(state))
        return [event for event in found if event is not None]

    def measured(self, state: State) -> Event | None:
        """The pace of all members, if it is known and there is more than one pipeline."""
        assignment = state.assignment
        if assignment is None or state.grid.pipelines == 1 or state.era != self._era:
            return None
        paces = self._paces(assignment, self._first)
        if paces is None:
            return None
        given = tuple(Pace(node=node, microbatch_s=pace_s) for node, pace_s in paces.items())
        return PaceMeasured(reporter="launcher", era=state.era, paces=given)

    def speeds(self, state: State) -> Event | None:
        """The speeds of all members since they were last measured, if they are known and there is
        something to compare them with."""
        assignment = state.assignment
        if assignment is None or state.generation != self._generation or state.era != self._era:
            return None
        paces = self._paces(assignment, self._since)
        if paces is None:
            return None
        self._since = dict(self._last)
        expected_s = self._expected(state, assignment, paces)
        given = tuple(
            Speed(node=node, speed=expected_s[node] / pace_s)
            for node, pace_s in paces.items()
            if node in expected_s and pace_s > 0
        )
        if len(given) < 2:
            return None
        return SpeedsMeasured(reporter="launcher", era=state.era, speeds=given)

    def _paces(
        self, assignment: Assignment, since: Mapping[str, _Work]
    ) -> dict[NodeId, float] | None:
        """Seconds that one microbatch takes each owner; None while one has done too little."""
        out = {}
        for node in sorted(set(assignment.owners)):
            first, last = since.get(node), self._last.get(node)
            if first is None or last is None or last.forwards - first.forwards < ENOUGH:
                return None
            each_s = (last.busy_s - first.busy_s) / (last.forwards - first.forwards)
            out[node] = each_s * len(assignment.owned_by(node))
        return out

    def _expected(
        self, state: State, assignment: Assignment, paces: Mapping[NodeId, float]
    ) -> dict[NodeId, float]:
        """What a microbatch should take each owner: by the virtual device's figures, or else what
        it takes the other owners of the same stage, where there are enough of them."""
        cluster, grid = self._cluster, state.grid
        if cluster.device == "virtual":
            if grid.stages != cluster.stages:
                return {}
            stage_s = [
                (_of(cluster.virtual_forward_ms, s) + _of(cluster.virtual_backward_ms, s)) / 1e3
                for s in range(grid.stages)
            ]
            return {
                node: sum(stage_s[slot.stage] for slot in assignment.owned_by(node))
                for node in paces
            }
        out: dict[NodeId, float] = {}
        for stage in range(grid.stages):
            column = {assignment.owner(slot) for slot in grid.column(stage)}
            single = [node for node in column if len(assignment.owned_by(node)) == 1]
            if len(single) >= COLUMN:
                out |= dict.fromkeys(single, median(paces[node] for node in single))
        return out


def _of(figures_ms: tuple[float, ...], stage: int) -> float:
    """One figure for all stages, or one for each."""
    return figures_ms[0] if len(figures_ms) == 1 else figures_ms[stage]
