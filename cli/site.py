"""The place where a run lives: what a launcher, and whoever reaches the run, need of it.

    cloud.local.start.LocalCloud      this machine: processes stand for instances
    cli.account_site.AccountSite      an account of the user's: nothing of it is ours but the run

Rule: what differs between the two stands behind this; whoever leads a run does not ask which it is.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from bamboo.errors import BambooError
from bamboo.ids import InstanceId
from cloud.ending import StillLive


class Site(Protocol):
    """Where a run lives. Any method may raise BambooError."""

    @property
    def store_url(self) -> str:
        """How the run's store is reached: a URL, or what leads to one."""

    @property
    def has_store(self) -> bool:
        """Whether the store goes with the site, and is not one that the user named."""

    @property
    def end_s(self) -> float:
        """So long may it take to end the run's instances."""

    def record(self) -> Mapping[str, Any]:
        """What `endpoint.json` keeps of it, so that another process finds it; no secret."""

    def prepare(self) -> None:
        """Put down what instances begin with, once the store has the run: whoever made it there is
        its launcher, and before that nothing of a run of this id is anybody's to change."""

    def alive(self) -> bool:
        """Whether the run can go on there: while it is led, or anything of it is there."""

    def unreachable(self) -> str:
        """ "" or, where what starts instances gives no answer and the fault is on this machine, a
        sentence that names it and the remedy. Waits for a moment at most."""

    def hold(self, *, alone_s: float, until_s: float = 0.0) -> None:
        """Be the launcher of a run that outlives its launchers. Left alone, it is to end after
        `alone_s`, or at the Unix time `until_s` if that is given."""

    def release(self) -> None:
        """Hold it no longer; safe to call again."""

    def stop(self) -> None:
        """Take away all of the run that is not an instance; safe to call again."""

    def preempt(self, instance: InstanceId, *, notice_s: float, cause: str) -> None:
        """Take an instance of the run. Raises InputError where that cannot be."""

    def not_ended(self, error: StillLive) -> BambooError:
        """What is to be said of instances that were not seen to end in time."""
