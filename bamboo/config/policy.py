"""The figures that decisions use, as a job gives them."""

from collections.abc import Iterable

from bamboo.config.tree import JobConfig
from bamboo.core.policy import GridTime, Policy


def policy_of(
    job: JobConfig,
    cuts: Iterable[tuple[int, ...]],
    *,
    grids: Iterable[GridTime] = (),
    spread: str = "one",
) -> Policy:
    """The policy of a resolved job. `cuts`: for each number of stages that a pipeline may have
    while there are too few nodes, and for the job's own, the first layer of each stage and the
    layer count; `grids`: those that it may have, where it is known what their steps take. `spread`:
    what the plan has chosen where the job leaves it open."""
    cluster = job.cluster
    return Policy(
        suspect_s=cluster.suspect_s,
        gone_s=cluster.gone_s,
        cuts=tuple(sorted(cuts, key=len)),
        virtual_nodes=job.train.virtual_nodes,
        pipelines=cluster.max_pipelines,
        stages=cluster.stages,
        grids=tuple(grids),
        spread=spread if cluster.spread == "auto" else cluster.spread,
        checkpoint_every=job.checkpoint.every_steps,
    )
