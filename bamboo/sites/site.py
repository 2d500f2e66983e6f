"""The site of a run, for its launcher and for other processes that reach the run.

    cloud.local.start.LocalCloud            this machine: processes stand for instances
    bamboo.sites.account.account_site       an account of the user's: only the run in it is ours

Rule: what differs between the two is behind this Protocol, and a launcher does not ask which one it
has.
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
        """How the run's store is reached: a URL, or a reference to one."""

    @property
    def has_store(self) -> bool:
        """Whether the store ends with the site; otherwise the user named it."""

    @property
    def end_s(self) -> float:
        """How long it may take to end the run's instances."""

    def record(self) -> Mapping[str, Any]:
        """What `endpoint.json` keeps of the site, so that another process finds it; no secret."""

    def prepare(self) -> None:
        """Write what instances begin with, once the store has the run. The process that created the
        run in the store is its launcher; before that, no process may change anything of a run of
        this id."""

    def alive(self) -> bool:
        """Whether the run can continue there: while it is led, or while anything of it exists."""

    def unreachable(self) -> str:
        """A sentence with fault and remedy where what starts instances does not answer because of a
        fault on this machine, else "". Waits for a moment at most."""

    def hold(self, *, alone_s: float, until_s: float = 0.0) -> None:
        """Be the launcher of a run that outlives its launchers. Without a launcher it is to end
        after `alone_s`, or at the Unix time `until_s` if that is given."""

    def release(self) -> None:
        """Stop holding it; safe to call again."""

    def stop(self) -> None:
        """Remove everything of the run that is not an instance; safe to call again."""

    def preempt(self, instance: InstanceId, *, notice_s: float, cause: str) -> None:
        """Take an instance of the run. Raises InputError where that is impossible."""

    def not_ended(self, error: StillLive) -> BambooError:
        """The error for instances that were not seen to end in time."""
