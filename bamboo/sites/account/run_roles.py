"""The role of a run's instances in an account: made and deleted together with their boot files.

Rule: it exists before the first instance, and is deleted when the run is over.
"""

from collections.abc import Callable

from bamboo import wiring
from bamboo.config.tree import JobConfig
from bamboo.errors import BambooError
from bamboo.ids import RunId
from bamboo.sites.account.instances import ec2_settings, has_role
from bamboo.sites.account.shared import objects_read


def make_role(job: JobConfig, run: RunId) -> None:
    """Make it, with its profile and launch template. Raises BambooError; then nothing is left of
    it."""
    if not has_role(job):
        return
    with wiring.run_roles(job.cloud.region, job.cloud.stack) as roles:
        roles.make(
            run,
            bucket=job.cloud.bucket,
            template=ec2_settings(job).launch_template,
            reads=[one.partition("/")[2] for one in objects_read(job)],
        )


def remove_role(job: JobConfig, run: RunId) -> None:
    """Delete it if it exists; safe to call again. Raises BambooError."""
    if not has_role(job):
        return
    with wiring.run_roles(job.cloud.region, job.cloud.stack) as roles:
        try:
            roles.remove(run)
        except BambooError as error:
            raise BambooError(
                f"the role of run {run} may be in the account still: {error}; `bamboo stop {run}` "
                "again takes it away"
            ) from error


def runs_with_role(region: str, stack: str) -> tuple[RunId, ...]:
    """The runs of a stack that have a role. Raises BambooError."""
    with wiring.run_roles(region, stack) as roles:
        return roles.runs()


def each(*steps: Callable[[], None]) -> None:
    """Do all of these, even if some fail. Raises BambooError with everything that failed."""
    troubles = []
    for step in steps:
        try:
            step()
        except BambooError as error:
            troubles.append(str(error))
    if troubles:
        raise BambooError("; ".join(troubles))
