"""An account of the user's as the place where a run lives.

Nothing of it is started: what stands there stands, and what is taken away at the end is what the
launcher put there for the run, once the store said that the run is its own. Left without a
launcher, members train on; the expiry of the instances' tags and their dead-man switch bound that.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bamboo.errors import BambooError, InputError
from bamboo.ids import InstanceId, RunId
from cloud.ending import TERMINATE_DEADLINE_S, StillLive
from cloud.intents import read_earlier
from cloud.provider import Provider
from cloud.sight import Sight

FIELDS = ("region", "bucket")


class AccountSite:
    """The account of a run. `provider` is asked for the run's instances, `remove` takes away what
    they boot from, `put` puts that down where the run begins here; `intents`: what its launchers
    were about to do; `led`: whether this process leads the run."""

    end_s = 2 * TERMINATE_DEADLINE_S
    has_store = False

    def __init__(
        self,
        *,
        run: RunId,
        region: str,
        bucket: str,
        store_url: str,
        provider: Callable[[], Provider],
        remove: Callable[[], None],
        intents: Path,
        led: bool,
        put: Callable[[], None] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._run, self._region, self._bucket = run, region, bucket
        self.store_url = store_url
        self._provider, self._remove = provider, remove
        self._intents, self._now = intents, now
        self._led = led
        self._put = put

    def record(self) -> Mapping[str, Any]:
        """Where it is; the secret that leads to the store stands beside it by name."""
        return {"account": {"region": self._region, "bucket": self._bucket}}

    def prepare(self) -> None:
        """Raises BambooError; then nothing of it is left."""
        put, self._put = self._put, None
        if put is not None:
            put()

    def alive(self) -> bool:
        """While it is led, there is always an account to start instances in; else whether any
        instance of the run is there, or may show up still of what a launcher asked for that died a
        moment ago. Raises CloudRefused, CloudThrottled, CloudUnavailable."""
        if self._led:
            return True
        earlier = read_earlier(self._intents, self._run)
        sight = Sight(self._provider(), run=self._run, earlier=earlier, now=self._now)
        return bool(sight.left() or sight.open)

    def unreachable(self) -> str:
        """No fault that is known here: whoever asked says what failed."""
        return ""

    def hold(self, *, alone_s: float, until_s: float = 0.0) -> None:
        """Nobody has to be told: the tags say until when instances may be there."""
        self._led = True

    def release(self) -> None:
        """Nobody has to be told."""

    def stop(self) -> None:
        """Take away login, boot files and role of the run. Raises BambooError with what could not
        be."""
        if self._put is None:  # else they are of another run of this id, if there are any
            self._remove()

    def preempt(self, instance: InstanceId, *, notice_s: float, cause: str) -> None:
        """End an instance of the run: it is paid for like any that we end. A notice is the cloud's
        to give: raises InputError for one, and for an instance that is not there."""
        if notice_s > 0:
            raise InputError(
                f"--notice {notice_s:g}: in an account only the cloud gives notice; leave it out, "
                "and the instance is ended at once"
            )
        provider = self._provider()
        there = {one.instance for one in provider.describe(self._run)}
        if instance not in there or provider.terminate([instance]):
            raise InputError(
                f"the account knows no instance {instance} of the run, or not yet; see `bamboo "
                f"status {self._run}` for those of the run, and try again"
            )

    def not_ended(self, error: StillLive) -> BambooError:
        """They go on costing money: who reads it is told how to find them."""
        return BambooError(f"{error}; or `bamboo stop {self._run} --region {self._region}`")
