"""Decides how long a node waits before it reports that its connections to peers have ended.

In a network partition two live nodes report each other as lost, and the report that is committed
first decides. Rule: the node that reaches fewer peers reports later. A node that lost more than
half of its peers at once is more likely cut off itself than the only one left. So it gives the
others time to report it. If they do not, they are lost indeed, and its report counts.
"""

from collections.abc import Collection

from bamboo.core.state import State
from bamboo.ids import NodeId

CUT_OFF_S = 0.25
"""Many times longer than all nodes need to see a disconnect and to commit a report."""
FEWEST = 3
"""With fewer peers than this, losing more than half of them says nothing."""


def patience_s(state: State, me: NodeId, unreached: Collection[NodeId]) -> float:
    """How long the node `me` waits before it reports peers. `unreached` are all peers whose
    connection to it has ended."""
    live = {node.id for node in state.live_nodes()}
    peers = (state.participants() & live) - {me}
    lost = peers & set(unreached)
    return CUT_OFF_S if len(peers) >= FEWEST and 2 * len(lost) > len(peers) else 0.0
