"""Nodes whose instance ended and whom no member has missed: what the launcher says of them.

Rule: members see a loss first and say it; when the last of them go at once, nobody is left to.
"""

from collections.abc import Sequence

from bamboo.core.events import PeerLost
from bamboo.core.state import Phase, State
from cli.money import Rented


def missing(
    state: State, rented: Sequence[Rented], *, now_s: float, gone_s: float
) -> list[PeerLost]:
    """One event for each live node whose instance has been over for a lease. While the cluster
    forms nobody is connected yet, and a dead node must not get a slot: then at once."""
    ended_s = {r.instance: r.ended_at_s for r in rented}
    patience_s = 0.0 if state.phase is Phase.FORMING else gone_s
    return [
        PeerLost(node=node.id, reporter="fleet", cause="its instance was terminated")
        for node in state.live_nodes()
        if (at_s := ended_s.get(node.instance)) is not None and now_s - at_s >= patience_s
    ]
