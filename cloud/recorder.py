"""The log of starts and ends of a run in an account, from what the account shows.

A local cloud writes `cloud.jsonl` as it starts and ends its processes. An account shows the same of
its instances until about an hour after their end. Each look of the fleet is recorded here in the
same form, so that bill and receipt read one file wherever a run was.

Rule: no launcher writes again what is there already. An instance that the account has forgotten is
taken to have ended when it was last seen. A list may leave out an instance that exists; when it is
seen again, such an end is revoked.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bamboo.errors import BooksUnwritable
from bamboo.ids import InstanceId, RunId
from bamboo.jsonl import WaitingWriter, drop_torn_line
from cloud.log_records import INTERRUPTED, TERMINATED, end_record, seen_record, start_record
from cloud.provider import (
    CloudRefused,
    CloudThrottled,
    CloudUnavailable,
    Held,
    LaunchAnswer,
    LaunchSpec,
    Observed,
    Offer,
    Pool,
    Provider,
)

SEEN_EVERY_S = 300.0
"""Seconds between two records that an instance exists, and the error of an end never shown."""
FORGOTTEN_S = 60.0
"""A list may leave out a new instance for a moment; one that is missing for so long is gone."""


class CloudLog:
    """One run's log, which only the caller writes. `note` is called when the disk does not take a
    line, which then waits."""

    def __init__(self, path: Path, *, note: Callable[[str], None]) -> None:
        """Raises BooksUnwritable for a log that cannot be read or continued."""
        self._live: dict[InstanceId, float] = {}
        """Instances without an end -> when each was last seen."""
        self._told_s: dict[InstanceId, float] = {}
        """Instances without an end -> when that was last written."""
        self._known: set[InstanceId] = set()
        if path.exists():
            try:
                drop_torn_line(path)
                for line in path.read_text(encoding="utf-8").splitlines():
                    self._remember(json.loads(line))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise BooksUnwritable(
                    f"{path}: the bill cannot be gone on with, as what stands there cannot be "
                    f"read ({error!r}); what it stands for is done all the same"
                ) from error
        self._file = WaitingWriter(path, troubled=lambda why: note(why) if why else None)

    def look(
        self,
        shown: Sequence[Observed],
        *,
        now_s: float,
        price: Callable[[Pool], float | None],
    ) -> None:
        """Record what is new in a whole list of a run's instances, as it was at `now_s`."""
        for one in shown:
            if one.instance not in self._known:
                usd = price(one.pool)
                at_s = one.launched_at_s
                self._write(start_record(one.instance, one.pool, at_s=at_s, usd_per_hour=usd))
            if one.instance in self._live or one.state.live:
                self._seen(one, now_s)
        there = {one.instance for one in shown}
        for instance, seen_s in list(self._live.items()):
            if instance not in there and now_s - seen_s > FORGOTTEN_S:
                self._write(end_record(instance, at_s=seen_s, cause=TERMINATED))
        self._file.flush()

    def close(self) -> None:
        """Raises BooksUnwritable where a line still waits: it is lost with this writer."""
        self._file.close()

    def _seen(self, one: Observed, now_s: float) -> None:
        if not one.state.live:
            at_s = now_s if one.ended_at_s is None else one.ended_at_s
            cause = INTERRUPTED if one.interrupted else TERMINATED
            self._write(end_record(one.instance, at_s=max(at_s, one.launched_at_s), cause=cause))
            return
        again = one.instance not in self._live
        self._live[one.instance] = max(now_s, one.launched_at_s)
        if again or now_s - self._told_s[one.instance] >= SEEN_EVERY_S:
            self._write(seen_record(one.instance, at_s=now_s))

    def _write(self, record: dict[str, Any]) -> None:
        self._remember(record)
        self._file.write(json.dumps(record))

    def _remember(self, record: dict[str, Any]) -> None:
        instance = InstanceId(str(record["instance"]))
        match record["kind"]:
            case "start" | "seen":
                self._known.add(instance)
                self._live[instance] = self._told_s[instance] = float(record["t"])
            case "end":
                self._live.pop(instance, None)


class Recorded:
    """A Provider that records each of its looks in the log at `path`. `asks_prices`: it asks for
    offers when an instance is shown from a pool without a known price, such as one that an earlier
    launcher started just before its end."""

    def __init__(
        self,
        provider: Provider,
        path: Path,
        *,
        asks_prices: bool = False,
        note: Callable[[str], None] = lambda text: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._provider = provider
        self._path = path
        self._asks_prices = asks_prices
        self._note = note
        self._now = now
        self._prices: dict[Pool, float] = {}
        self._log: CloudLog | None = None
        self._noted = ""

    @property
    def several_pools(self) -> bool:
        return self._provider.several_pools

    def launch(self, specs: Sequence[LaunchSpec]) -> LaunchAnswer:
        return self._provider.launch(specs)

    def describe(self, run: RunId) -> tuple[Observed, ...]:
        """As the account shows them; recorded with the prices that were offered last."""
        shown = self._provider.describe(run)
        if self._log is None:
            try:
                self._log = CloudLog(self._path, note=self._note)
            except BooksUnwritable as error:
                if str(error) != self._noted:
                    self._noted = str(error)
                    self._note(self._noted)
                return shown  # the account shows it again at the next look
            self._noted = ""
        self._log.look(shown, now_s=self._now(), price=self._price)
        return shown

    def close(self) -> None:
        """Raises BooksUnwritable where the log lacks anything that was shown: then no bill is made
        from it. The next look writes it, while the account still shows it."""
        log, self._log = self._log, None
        if log is not None:
            log.close()
        elif self._noted:
            raise BooksUnwritable(self._noted)

    def terminate(self, instances: Sequence[InstanceId]) -> tuple[InstanceId, ...]:
        return self._provider.terminate(instances)

    def prolong(self, instances: Sequence[InstanceId], *, expires_at_s: int) -> None:
        self._provider.prolong(instances, expires_at_s=expires_at_s)

    def offers(self) -> tuple[Offer, ...]:
        found = self._provider.offers()
        self._prices |= {offer.pool: offer.usd_per_hour for offer in found}
        return found

    def held(self, run: RunId | None) -> tuple[Held, ...]:
        return self._provider.held(run)

    def release(self, held: Sequence[Held]) -> None:
        self._provider.release(held)

    def _price(self, pool: Pool) -> float | None:
        if pool not in self._prices and self._asks_prices:
            with suppress(CloudThrottled, CloudUnavailable, CloudRefused):
                self.offers()
        return self._prices.get(pool)
