"""How fast the members are, from what their leases say of them.

Rule: only what was measured since the layout of now began counts, and only where every member has
done enough since.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bamboo.core.events import Event, Pace, PaceMeasured
from bamboo.core.state import Phase, State

ENOUGH = 16
"""Forwards since the layout began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    forwards: int
    busy_s: float


class PaceKeeper:
    """Told what every lease says; asked for a measurement now and then."""

    def __init__(self) -> None:
        self._era = -1
        self._first: dict[str, _Work] = {}
        self._last: dict[str, _Work] = {}

    def told(self, state: State, node: str, beat: Mapping[str, Any]) -> None:
        """A lease of `node`."""
        if state.era != self._era:
            self._era, self._first, self._last = state.era, {}, {}
        if state.phase is not Phase.RUNNING or "busy_s" not in beat:
            return
        work = _Work(forwards=int(beat["ops"]["F"]), busy_s=float(beat["busy_s"]))
        self._first.setdefault(node, work)
        self._last[node] = work

    def measured(self, state: State) -> Event | None:
        """The pace of all members, if it is known and there is more than one pipeline."""
        assignment = state.assignment
        if assignment is None or state.grid.pipelines == 1 or state.era != self._era:
            return None
        paces = []
        for node in sorted(set(assignment.owners)):
            first, last = self._first.get(node), self._last.get(node)
            if first is None or last is None or last.forwards - first.forwards < ENOUGH:
                return None
            each_s = (last.busy_s - first.busy_s) / (last.forwards - first.forwards)
            slots = len(assignment.owned_by(node))
            paces.append(Pace(node=node, microbatch_s=each_s * slots))
        return PaceMeasured(reporter="launcher", era=state.era, paces=tuple(paces))
