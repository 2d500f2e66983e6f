"""Checks that a job that chooses its own size has sizes to choose from, and a criterion.

Rule: as in `check`, for [autoscale] only.
"""

from typing import Any

from bamboo.config.resolve import nodes_at_begin
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError


def check_autoscale(job: JobConfig) -> None:
    """Check [autoscale] of a resolved job. Raises InputError with the first impossible value."""
    asked, cluster = job.autoscale, job.cluster
    if not asked.enabled:
        return
    begin = nodes_at_begin(job)
    if cluster.max_pipelines < 2:
        raise InputError.at(
            file=job.file,
            key="cluster.max_pipelines",
            value=cluster.max_pipelines,
            problem="leaves autoscale.enabled nothing to choose from",
            remedy="raise it to the most pipelines that the run may have, or leave autoscale out",
        )
    if cluster.standbys >= cluster.stages:
        raise InputError.at(
            file=job.file,
            key="cluster.standbys",
            value=cluster.standbys,
            problem=f"is enough for a pipeline of cluster.stages = {cluster.stages}, which the run "
            "makes of them: autoscale.enabled could not tell its sizes apart",
            remedy="give fewer standbys than stages, or leave autoscale out",
        )
    if 0 < asked.max_nodes < begin:
        remedy = f"give at least {begin}, or 0 for those of cluster.max_pipelines"
        raise _at(job, "max_nodes", asked.max_nodes, "is fewer than the run begins with", remedy)
    if asked.min_nodes > begin:
        remedy = f"give at most {begin}, or raise cluster.pipelines"
        raise _at(job, "min_nodes", asked.min_nodes, "is more than the run begins with", remedy)
    needed = {"utility_usd": asked.utility_usd, "deadline_hours": asked.deadline_hours}
    for name, value in needed.items():
        if asked.utility != "none" and not value:
            problem = f'is what autoscale.utility = "{asked.utility}" goes by'
            raise _at(job, name, value, problem, 'give a figure above 0, or take utility = "none"')


def _at(job: JobConfig, name: str, value: Any, problem: str, remedy: str) -> InputError:
    return InputError.at(
        file=job.file, key=f"autoscale.{name}", value=value, problem=problem, remedy=remedy
    )
