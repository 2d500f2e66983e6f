"""The figures that decisions use, as a job gives them."""

from collections.abc import Iterable

from bamboo.config.notice import known_notice_s
from bamboo.config.tree import JobConfig
from bamboo.core.state import GridTime, Policy


def policy_of(
    job: JobConfig,
    cuts: Iterable[tuple[int, ...]],
    *,
    grids: Iterable[GridTime] = (),
    spread: str = "one",
    layer_bytes: Iterable[int] = (),
    store_bytes_per_s: float = 0.0,
) -> Policy:
    """The policy of a resolved job. `cuts`: the first layer of each stage and the layer count, for
    the job's number of stages and each number that a pipeline may have while there are too few
    nodes. `grids`: grids that it may have, with known step times. `spread`: the plan's choice if
    the job leaves it open. `layer_bytes`: parameters and moments by layer. `store_bytes_per_s`:
    rate between one node and the checkpoints (0: at once). Without these two there are no emergency
    checkpoints."""
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
        steps=job.train.steps,
        checkpoint_every=job.checkpoint.interval,
        layer_bytes=tuple(layer_bytes),
        store_bytes_per_s=store_bytes_per_s,
        notice_s=known_notice_s(job),
        eval_every=job.eval.every_steps,
        eval_patience=job.eval.stop.patience if job.eval.stop.metric else 0,
        eval_higher=job.eval.stop.better == "higher",
    )
