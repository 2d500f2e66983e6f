"""What a run whose instances are processes needs of this machine, and which of that it lacks."""

import os

from bamboo.config.resolve import nodes_of
from bamboo.config.tree import JobConfig
from cloud.local import limits
from cloud.local.limits import Need
from cloud.local.reach import loopback_trouble


def need_of(job: JobConfig, *, node_bytes: int = 0, file_bytes: int = 0) -> Need:
    """What a run of this job needs of this system."""
    return limits.need_of(
        nodes=nodes_of(job) or job.cluster.stages,
        threads=job.cluster.threads,
        cores=len(os.sched_getaffinity(0)),
        node_bytes=node_bytes,
        file_bytes=file_bytes,
    )


def wrong_with(need: Need) -> str:
    """Why this machine does not grant that, with the remedy; "" where it does. A limit that this
    process may raise itself is raised."""
    return limits.wrong_with(need)


def unreachable() -> str:
    """Why processes of this machine would not reach each other, with the remedy; "" where they
    do."""
    return loopback_trouble()
