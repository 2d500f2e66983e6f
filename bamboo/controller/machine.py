"""What a run needs of this machine, checked before anything is started.

Rule: what would be missing is refused in one line, with the value, the need and the remedy. A limit
that this process may raise itself is raised. None of this concerns an instance of an account.
"""

import tempfile
from pathlib import Path

from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.kept_weights import INIT_FOLDER
from bamboo.planner.layers.facts import FLOAT_BYTES
from bamboo.runs.disk_space import refuse_without_room
from bamboo.sites import here
from bamboo.study.planning import Planned


def refuse_unfit(job: JobConfig, home: Path) -> None:
    """Check the machine before the job is looked at. Raises InputError where its processes could
    not communicate, are not allowed, or cannot write."""
    refuse_without_room(home)
    if job.cloud.provider != "local":
        return
    refuse_without_room(Path(tempfile.gettempdir()), variable="TMPDIR")
    if wrong := here.wrong_with(here.need_of(job)) or here.unreachable():
        raise InputError(wrong)


def refuse_too_small(planned: Planned, home: Path) -> None:
    """Check it again with what each node holds and writes by the plan. Raises InputError."""
    job, plan = planned.job, planned.plan
    if job.cloud.provider != "local":
        return
    placement = planned.strategy.placement
    written = [
        planned.workload.state_bytes(placement.layers_of(stage))
        for stage in range(placement.grid.stages)
    ]
    node_bytes = max((stage.total for stage in plan.memory), default=0)
    need = here.need_of(job, node_bytes=node_bytes, file_bytes=max(written))
    if wrong := here.wrong_with(need):
        raise InputError(wrong)
    state = sum(written)
    begun_with = job.weights and not (home / INIT_FOLDER).exists()
    weights = FLOAT_BYTES * plan.parameters if begun_with else 0
    refuse_without_room(home, need_bytes=(1 + _checkpoints_here(job)) * state + weights)


def _checkpoints_here(job: JobConfig) -> int:
    """How many checkpoints are in the run's folder besides its final state. Of periodic ones there
    is one more than are kept, and in any run there is one of a stop or an emergency."""
    if job.checkpoint.url:
        return 0
    return job.checkpoint.keep + 1 if job.checkpoint.interval else 1
