"""The sizes that a run may have, and what its autoscaler goes by: for a launch and a simulation."""

from bamboo.config.resolve import nodes_at_begin, nodes_of
from bamboo.config.tree import JobConfig
from bamboo.core.layout import grid_for
from bamboo.core.state import Policy
from bamboo.planner.fleet.fleet_size import Rule, Utility
from bamboo.planner.fleet.scaler import ScalerTerms


def rule_of(job: JobConfig, policy: Policy) -> Rule:
    """The sizes that a run may have, standbys included, and when the next one pays. A size is
    allowed when a layout has work for every node that is not a standby."""
    asked, standbys = job.autoscale, job.cluster.standbys
    begin = nodes_at_begin(job)
    least = min(begin, max(asked.min_nodes, job.cluster.stages + standbys))
    limits = (asked.max_nodes, job.budget.max_instances, nodes_of(job))
    most = max(begin, min(limit for limit in limits if limit))
    sizes = {n for n in range(least, most + 1) if grid_for(n, policy).size == n - standbys}
    return Rule(
        sizes=tuple(sorted(sizes | {begin})),
        batch=job.train.batch,
        marginal=asked.marginal,
        utility=Utility(
            kind=asked.utility,
            usd=asked.utility_usd,
            deadline_s=asked.deadline_hours * 3600,
        ),
    )


def terms_of(job: JobConfig, policy: Policy) -> ScalerTerms:
    """The scaler's terms for a job; a launch and a simulation use the same."""
    return ScalerTerms(
        rule=rule_of(job, policy),
        begin=nodes_at_begin(job),
        max_usd=job.budget.max_usd,
        pool_out_s=job.cloud.pool_out_s,
        again_s=job.autoscale.again_s,
    )
