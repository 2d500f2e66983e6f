"""What a run needs of this machine, looked at before anything is started.

Rule: what will be missing is refused in one line, with the value, the need and the remedy; what can
be had by asking for it is asked for.
"""

from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from cloud.local.reach import loopback_trouble


def refuse_unfit(job: JobConfig) -> None:
    """Raises InputError where the processes of a run on this machine could not talk."""
    if job.cloud.provider == "local" and (trouble := loopback_trouble()):
        raise InputError(trouble)
