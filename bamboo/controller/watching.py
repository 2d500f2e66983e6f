"""Watching a run from another process: it shows what the run's launcher shows, and changes nothing.

What exists already is folded silently. From then on each decision and each step is shown.
"""

import time
from collections.abc import Mapping
from typing import Any

from bamboo.controller.launcher import LEASES_EVERY_S
from bamboo.coord.codec import STREAM, ValueRecord
from bamboo.coord.follow import Follower
from bamboo.ports import Store
from bamboo.runs.pause import with_kill_stamp
from bamboo.runs.ports import Screen
from bamboo.runs.progress import Progress, with_beat, with_decision, with_metric
from bamboo.runs.run_folder import RunFolder, job_of, part_of
from bamboo.runs.run_status import empty_progress
from bamboo.runs.stamps import kill_stamps_s
from bamboo.runs.store_records import Hearing


class Watcher:
    """Continues reading where it stopped, on any connection that it is given."""

    def __init__(self, folder: RunFolder, screen: Screen) -> None:
        self._folder = folder
        self._screen = screen
        self._follower = Follower()
        self._hearing = Hearing(screen.note)
        self._after = {"metrics": "0", STREAM: "0"}
        self._beats_due_s = 0.0
        self._caught_up = False
        self.progress: Progress = empty_progress(
            folder, job_of(folder), started_s=part_of(folder).started_s
        )

    def turn(self, store: Store, *, timeout_s: float) -> None:
        """Read what is new, waiting up to `timeout_s` for a decision, and show it. Raises
        StoreUnavailable."""
        while self._read(store, timeout_s=timeout_s if self._caught_up else 0.0):
            if self._caught_up:
                break
        now_s = time.time()
        if now_s >= self._beats_due_s:
            self._beats_due_s = now_s + LEASES_EVERY_S
            _, leases = store.leases()
            for node, lease in leases.items():
                if (beat := self._hearing.beat(lease.payload)) is not None:
                    self.progress = with_beat(self.progress, node, beat)
        self.progress = self.progress.at(now_s=now_s, usd=self.progress.usd)
        if not self._caught_up:
            self._caught_up = True
            progress = self.progress
            self._screen.note(
                f"{progress.run}: {progress.state.phase}, step {progress.step}/{progress.steps}: "
                f"{progress.sentence}"
            )
        self._screen.turned(self.progress)

    def _read(self, store: Store, *, timeout_s: float) -> bool:
        """Whether there was anything."""
        decisions = self._follower.poll(store, timeout_s=timeout_s)
        for decision in decisions:
            self.progress = with_decision(
                self.progress,
                decision.state,
                event=decision.event,
                reason=decision.reason,
                at_s=decision.now_s,
            )
            if self._caught_up:
                self._screen.decided(self.progress, decision)
        metrics = self._fresh(store, "metrics")
        for record in map(self._hearing.metric, metrics):
            if record is not None:
                self._measured(record)
        ledger = self._fresh(store, STREAM)
        for entry in map(self._hearing.ledger, ledger):
            if isinstance(entry, ValueRecord):
                self.progress = self.progress.at(now_s=self.progress.now_s, usd=entry.usd)
        return bool(decisions or metrics or ledger)

    def _fresh(self, store: Store, stream: str) -> list[str]:
        records = store.records(stream, after_id=self._after[stream], timeout_s=0.0)
        if records:
            self._after[stream] = records[-1][0]
        return [record for _, record in records]

    def _measured(self, record: Mapping[str, Any]) -> None:
        before = self.progress.step
        if record.get("kind") == "failover":
            record = with_kill_stamp(record, kill_stamps_s(self._folder.kills))
        self.progress = with_metric(self.progress, record)
        if self._caught_up and self.progress.step > before:
            self._screen.stepped(self.progress)
