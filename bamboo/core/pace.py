"""Gives pipelines of unequal speed unequal shares of the batch.

Rule: the shares change only if the slowest pipeline then needs at least a tenth less time, since
the change itself takes about one step.
"""

from dataclasses import replace

from bamboo.core.events import PaceMeasured
from bamboo.core.reconfiguration import at_rest, begin_reconfiguration
from bamboo.core.state import Policy, State
from bamboo.core.transition import Transition, changed, stale
from bamboo.topology.model_layout import equal_shares, minimax_shares

WORTH = 0.9
"""The new time of a step must be at most this share of the present time."""


def rebalance(state: State, event: PaceMeasured, policy: Policy) -> Transition:
    """Begin a reconfiguration to shares that suit the speeds of the pipelines, if it is worth
    it."""
    assignment = state.assignment
    if not policy.elastic or assignment is None or event.era != state.era:
        return stale(state, "the layout is another one by now")
    if not at_rest(state) or state.preparing is not None or state.grid.pipelines == 1:
        return stale(state, "there is nothing to be shared out now")
    pace_s = {pace.node: pace.microbatch_s for pace in event.paces}
    if any(owner not in pace_s or pace_s[owner] <= 0 for owner in assignment.owners):
        return stale(state, "the pace of some member is not known")
    slowest_s = tuple(
        max(pace_s[assignment.owner(slot)] for slot in state.grid.pipeline(pipeline))
        for pipeline in range(state.grid.pipelines)
    )
    now = state.shares or equal_shares(policy.virtual_nodes, state.grid.pipelines)
    better = minimax_shares(policy.virtual_nodes, tuple(1 / s for s in slowest_s))
    before_s, after_s = (
        max(share * s for share, s in zip(shares, slowest_s, strict=True))
        for shares in (now, better)
    )
    if after_s > WORTH * before_s:
        return stale(state, f"no shares are much better than {list(now)}")
    words = f"pipelines of unequal speed: shares {list(now)} become {list(better)}"
    after, orders = begin_reconfiguration(state, why=words, planned=True)
    assert after.reconfiguration is not None
    after = replace(after, reconfiguration=replace(after.reconfiguration, shares=better))
    return changed(after, orders, f"{words} at the next boundary")
