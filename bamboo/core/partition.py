"""How long a node keeps to itself that connections of its own have ended.

Two nodes that do not reach each other accuse each other, and the report that is committed first
decides. Rule: who reaches fewer peers speaks later. A node that lost more than half of its peers
at once is rather cut off itself than the only one left, so it gives the others the time to say so.
If they do not, they are lost indeed, and it is believed.
"""

from collections.abc import Collection

from bamboo.core.state import State
from bamboo.ids import NodeId

CUT_OFF_S = 0.25
"""Many times what a disconnect takes to be seen everywhere, and a report to be committed."""
FEWEST = 3
"""Peers of which losing more than half says something."""


def patience_s(state: State, me: NodeId, unreached: Collection[NodeId]) -> float:
    """What `me` waits before it reports peers, all its connections that ended being `unreached`."""
    live = {node.id for node in state.live_nodes()}
    peers = (state.participants() & live) - {me}
    lost = peers & set(unreached)
    return CUT_OFF_S if len(peers) >= FEWEST and 2 * len(lost) > len(peers) else 0.0
