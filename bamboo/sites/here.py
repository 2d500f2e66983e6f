"""This machine as a site: what a run whose instances are processes needs of it, which of that
it lacks, and what a test of faults may do to such a run."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from bamboo.config.resolve import nodes_of
from bamboo.config.tree import JobConfig
from bamboo.ids import InstanceId
from bamboo.loading import interpreter
from bamboo.runs import live
from bamboo.runs.run_folder import RunFolder
from cloud.local import limits, session
from cloud.local.limits import Need
from cloud.local.reach import loopback_trouble


class Faults(Protocol):
    """Faults that the mock of the cloud plays on request. Any method may raise BambooError."""

    def preempt(self, instance: InstanceId, *, notice_s: float = 0.0, cause: str = "") -> None:
        """Take an instance, so many seconds after a notice; 0: without one."""

    def notice(self, instance: InstanceId, *, notice_s: float) -> None:
        """Give an instance a notice that is not kept."""

    def advise(self, instance: InstanceId) -> None:
        """Advise an instance to leave."""

    def refuse(self, *, code: str, zone: str = "", count: int = 1) -> None:
        """Refuse the next `count` launches with this error code, everywhere or in one zone."""

    def relent(self) -> None:
        """Refuse nothing any more."""

    def instances(self) -> tuple[Mapping[str, Any], ...]:
        """Every instance with `instance`, `state`, `zone` and `pid`."""

    def services(self) -> Mapping[str, int | None]:
        """The process id of each service, by its name; None: it is not ours."""


class SiteHere(Protocol):
    """The site of a run on this machine, with what can be done to it there."""

    @property
    def pid(self) -> int:
        """Its first process, whose id is the number of the session of all."""

    @property
    def socket_dir(self) -> Path:
        """A folder that is gone once everything has ended."""

    @property
    def store_url(self) -> str:
        """How the run's store is reached."""

    @property
    def has_store(self) -> bool:
        """Whether the store is the run's own."""

    @property
    def control(self) -> Faults:
        """What plays faults."""

    def stop(self) -> None:
        """End everything and see that it is gone. Raises BambooError."""


def site_here(folder: RunFolder) -> SiteHere:
    """The site of a live run on this machine. Raises InputError where it has none."""
    return live.local_cloud_of(folder)


def is_of(pid: int, site: int) -> bool:
    """Whether this process lives and belongs to the site, or the launcher, of that process id."""
    return session.is_member(pid, site)


def processes_of(site: int) -> tuple[int, ...]:
    """The live processes of the site, or the launcher, of that process id."""
    return session.members(site)


def tied(command: Sequence[str]) -> list[str]:
    """This command line so that what it starts ends with this process."""
    return interpreter("cloud.local.lifeline", str(os.getpid()), *command)


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
