"""Runs a job with real worker processes and an embedded store, without a cloud: the runtime alone.

Benchmarks that time the executor use it: what `bamboo launch` adds (agents, the mock cloud, the
screen) would only add noise on a small machine.
"""

import itertools
from collections.abc import Mapping
from typing import Any

from bamboo.config.tree import JobConfig
from bamboo.topology.sync import Sync
from testbed.cluster import NO_RULES, cluster

SKIPPED_STEPS = 2
"""The first steps pay for connections and caches."""
LEAST_STEPS = SKIPPED_STEPS + 2
"""Steps of a job that leave at least one time between two commits."""


def step_times_s(
    job: JobConfig, sync: Sync = NO_RULES, faults: Mapping[int, str] | None = None
) -> tuple[list[float], list[dict[str, Any]]]:
    """Seconds of each step after the first few, and the nodes' memory records. `faults`: as of
    `Cluster.start`."""
    with cluster(job, sync=sync) as running:
        running.start(job.cluster.pipelines * job.cluster.stages, faults)
        state = running.finish(timeout_s=600)
        if state.outcome != "done":
            raise RuntimeError(f"the run ended {state.outcome}: {state.sentence}")
        stamps = [record["t_s"] for record in running.metrics("step")]
        memory = running.metrics("memory")
    times = [b - a for a, b in itertools.pairwise(stamps)]
    return times[SKIPPED_STEPS:], memory
