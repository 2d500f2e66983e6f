"""The state of a run by its decisions: what `chaos.jsonl` keeps of it, and whether it is protected.

Rule: a run is protected if it could lose any node and go on: it has all its copies, and nothing is
under way that would change which nodes hold them.
"""

from typing import Any

from bamboo.core.state import Phase, State


def standing(state: State) -> dict[str, Any]:
    """Its phase, and how many failovers, transfers, moves and reconfigurations are under way."""
    under_way = len(state.failovers) + len(state.transfers) + len(state.moves)
    return {
        "phase": state.phase.value,
        "under_way": under_way + (state.reconfiguration is not None),
    }


def protected(state: State) -> bool:
    """DEGRADED is not enough: a slot without a copy is lost with its node."""
    return standing(state) == {"phase": Phase.RUNNING.value, "under_way": 0}
