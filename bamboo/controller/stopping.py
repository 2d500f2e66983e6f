"""Why a launcher ends its run: the user, the budget, the end of its trace, nodes that never came.

Rule: this file only finds the request; the launcher appends it, once.
"""

from bamboo.config.tree import BudgetConfig, ClusterConfig
from bamboo.controller.market import Market
from bamboo.core.events import StopRequested
from bamboo.core.state import Outcome, State
from bamboo.runs.progress import Progress


def stop_event(
    budget: BudgetConfig,
    progress: Progress,
    market: Market | None,
    *,
    interrupted: bool,
    now_s: float,
) -> StopRequested | None:
    """The request to stop for the first reason that holds now, or None."""
    found = _reason(budget, progress, market, interrupted=interrupted, now_s=now_s)
    if found is None:
        return None
    reason, outcome = found
    return StopRequested(reason=reason, outcome=outcome)


def _reason(
    budget: BudgetConfig,
    progress: Progress,
    market: Market | None,
    *,
    interrupted: bool,
    now_s: float,
) -> tuple[str, Outcome] | None:
    hours = (now_s - progress.started_at_s) / 3600
    if interrupted:
        return "interrupted by the user", Outcome.STOPPED
    spent_usd = progress.usd + progress.beside_usd
    if 0 < budget.max_usd <= spent_usd + progress.reserve_usd:
        spent = (
            f"${spent_usd:.4f} are spent (${progress.usd:.4f} for instances, "
            f"${progress.beside_usd:.4f} beside them) and a stop in order takes up to "
            f"${progress.reserve_usd:.4f} more, budget.max_usd = {budget.max_usd}"
        )
        return spent, Outcome.BUDGET
    if 0 < budget.max_hours <= hours:
        passed = f"{hours:.3f} h passed of budget.max_hours = {budget.max_hours}"
        return passed, Outcome.BUDGET
    if market is not None and (over := market.over(now_s)):
        return over, Outcome.STOPPED
    return None


def not_formed(state: State, cluster: ClusterConfig) -> str:
    """The sentence for a cluster that did not form in its time."""
    return (
        f"{len(state.live_nodes())} of {state.grid.size} nodes joined within "
        f"cluster.forming_timeout_s = {cluster.forming_timeout_s:g}; "
        "see the nodes' logs, raise it, or take other cloud.zones"
    )
