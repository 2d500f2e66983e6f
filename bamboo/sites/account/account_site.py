"""A run's site when it lives in an account of the user.

The account itself is neither started nor stopped. At the end only that is removed which the
launcher put there for the run, and only once the store has said that the run belongs to it. Without
a launcher the members go on training; the expiry in the instances' tags and their dead-man switch
bound how long.
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
    """The account of a run. `provider` lists the run's instances, `put` writes what they boot from
    when the run begins here, and `remove` deletes it. `intents` is what the run's launchers were
    about to do; `led` says whether this process leads the run."""

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
        self._run = run
        self._region = region
        self._bucket = bucket
        self.store_url = store_url
        self._provider = provider
        self._remove = remove
        self._intents = intents
        self._now = now
        self._led = led
        self._put = put

    def record(self) -> Mapping[str, Any]:
        """Where the site is. It names the secret that holds the store's URL, not the URL."""
        return {"account": {"region": self._region, "bucket": self._bucket}}

    def prepare(self) -> None:
        """Write what the run boots from. Raises BambooError; then nothing of it is left."""
        put, self._put = self._put, None
        if put is not None:
            put()

    def alive(self) -> bool:
        """While this process leads the run, always true: there is an account to start instances in.
        Otherwise, whether an instance of the run exists, or may still appear because a launcher
        asked for it just before it died. Raises CloudRefused, CloudThrottled, CloudUnavailable."""
        if self._led:
            return True
        earlier = read_earlier(self._intents, self._run)
        sight = Sight(self._provider(), run=self._run, earlier=earlier, now=self._now)
        return bool(sight.left() or sight.open)

    def unreachable(self) -> str:
        """Always "": the site knows of no fault, and the caller reports what failed."""
        return ""

    def hold(self, *, alone_s: float, until_s: float = 0.0) -> None:
        """Does nothing: the instances' tags say until when they may exist."""
        self._led = True

    def release(self) -> None:
        """Does nothing, as `hold` does."""

    def stop(self) -> None:
        """Delete login, boot files and role of the run. Raises BambooError that names what is
        left."""
        if self._put is None:  # otherwise they belong to another run of this id, if they exist
            self._remove()

    def preempt(self, instance: InstanceId, *, notice_s: float, cause: str) -> None:
        """End an instance of the run, which is billed like any that we end. Only the cloud gives
        notices: raises InputError for one, and for an instance that does not exist."""
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
        """The error for instances that did not end, with the way to find them: they still cost
        money."""
        return BambooError(f"{error}; or `bamboo stop {self._run} --region {self._region}`")
