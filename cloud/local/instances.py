"""Keeps process groups in step with moto's instances, in both directions.

An instance that moto shows running gets an agent; one that moto has ended is killed. An agent that
a signal ended took its instance with it (this is how the loss of a machine looks from here), so
moto gets an interruption. An agent that left by itself leaves its instance running, and billed,
until it is terminated. The first cause counts: an instance that was lost stays interrupted, however
soon the launcher then terminates it.
"""

import logging
import os
import selectors
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bamboo.errors import InputError
from bamboo.ids import InstanceId, node_id
from cloud.local.control import seconds_of
from cloud.local.environment import without_settings
from cloud.local.faults import CapacityFault, Market
from cloud.local.groups import InstanceGroup, start_group
from cloud.local.journal import Journal
from cloud.local.metadata import InstanceFacts, MetadataService

if TYPE_CHECKING:  # moto takes a while to load: the host imports it once its children are starting
    from cloud.local.mock_aws import MockAws, MockInstance

TERMINATE_GRACE_S = 1.0

log = logging.getLogger("bamboo.local-cloud")


@dataclass(slots=True, kw_only=True)
class _Record:
    """One instance, from its start on. `group` is None once its processes are reaped."""

    seen: "MockInstance"
    log: Path
    launched_at_s: float
    group: InstanceGroup | None
    ended_at_s: float | None = None
    agent_status: int | None = None


class Instances:
    """All instances of this local cloud. Every method belongs to the host's main thread."""

    def __init__(
        self,
        *,
        aws: "MockAws",
        metadata: MetadataService,
        market: Market,
        selector: selectors.BaseSelector,
        run_dir: Path,
        scratch: Path,
        command: Sequence[str],
        environment: Mapping[str, str],
        lifeline: int,
        after: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._aws = aws
        self._metadata = metadata
        self._market = market
        self._selector = selector
        self._run_dir = run_dir
        self._scratch = scratch
        self._command = tuple(command)
        self._environment = environment
        self._lifeline = lifeline
        self._after = after
        self._journal = Journal(run_dir)
        self._records: dict[InstanceId, _Record] = {}

    def reconcile(self) -> None:
        """Start what moto has started, kill what moto has ended."""
        for seen in self._aws.instances():
            record = self._records.get(seen.instance)
            if record is None and seen.live:
                self._start(seen)
            elif record is not None and record.ended_at_s is None and not seen.live:
                self._take(record, notice_s=0.0, cause=self._who_was_first(record), stamp=False)

    def handle(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Serve the control requests about instances. Raises InputError or ValueError."""
        match request["op"]:
            case "preempt":
                self.preempt(
                    InstanceId(str(request["instance"])),
                    notice_s=seconds_of(request, "notice_s"),
                    cause=str(request["cause"]),
                )
                return {"ok": True}
            case "advise":
                instance = InstanceId(str(request["instance"]))
                self._running(instance)
                self._metadata.advise(instance)
                return {"ok": True}
            case "refuse":
                self._market.inject(
                    CapacityFault(
                        code=str(request["code"]),
                        zone=str(request["zone"]),
                        instance_type=str(request["instance_type"]),
                        count=int(request["count"]),
                        grant=int(request["grant"]),
                    )
                )
                return {"ok": True}
            case "relent":
                self._market.relent()
                return {"ok": True}
            case "notice":
                record = self._running(InstanceId(str(request["instance"])))
                at_s = time.time() + seconds_of(request, "notice_s")
                self._metadata.notice(record.seen.instance, at_s=at_s)
                return {"ok": True}
            case _:
                return {"ok": True, "instances": [_told(r) for r in self._records.values()]}

    def preempt(self, instance: InstanceId, *, notice_s: float, cause: str) -> None:
        """Take an instance as the cloud does, after a notice if `notice_s` > 0. Raises InputError
        when it is not running."""
        record = self._running(instance)
        if notice_s <= 0:
            self._interrupt(record, notice_s=0.0, cause=cause)
            return
        self._metadata.notice(instance, at_s=time.time() + notice_s)
        self._after(notice_s, lambda: self._interrupt(record, notice_s=notice_s, cause=cause))

    def _running(self, instance: InstanceId) -> _Record:
        record = self._records.get(instance)
        if record is None or record.ended_at_s is not None:
            running = [i for i, r in self._records.items() if r.ended_at_s is None]
            raise InputError(f"instance {instance!r} does not run; these do: {', '.join(running)}")
        return record

    def end_all(self) -> None:
        """SIGTERM to every group, a short grace, SIGKILL; then close the journal."""
        groups = [r.group for r in self._records.values() if r.group is not None]
        for group in groups:
            group.terminate()
        end_s = time.monotonic() + TERMINATE_GRACE_S
        while time.monotonic() < end_s and any(g.leader.poll() is None for g in groups):
            time.sleep(0.01)
        for record in self._records.values():
            if record.group is not None:
                self._bury(record, record.group)
            if record.ended_at_s is None:
                self._ended(record, cause="end")
        self._journal.close()

    def _start(self, seen: "MockInstance") -> None:
        prefix = self._metadata.add(
            InstanceFacts(
                instance=seen.instance,
                zone=seen.zone,
                region=seen.region,
                instance_type=seen.instance_type,
                lifecycle=seen.lifecycle,
                # The address of a process on this machine, whatever zone the mock has it in.
                private_ip="127.0.0.1",
                user_data=seen.user_data,
            )
        )
        node_log = self._run_dir / "logs" / f"{node_id(seen.instance, 0)}.log"
        group = start_group(
            instance=seen.instance,
            command=self._command,
            environment={
                **without_settings(os.environ),
                **self._environment,
                "AWS_EC2_METADATA_SERVICE_ENDPOINT": self._aws.url + prefix,
                "BAMBOO_LOG": str(node_log),
                "BAMBOO_SCRATCH_DIR": str(self._scratch / seen.instance),
            },
            lifeline=self._lifeline,
            log=node_log,
        )
        record = _Record(seen=seen, log=node_log, launched_at_s=time.time(), group=group)
        self._records[seen.instance] = record
        self._selector.register(
            group.pidfd, selectors.EVENT_READ, lambda: self._agent_ended(record, group)
        )
        self._journal.started(
            instance=seen.instance,
            zone=seen.zone,
            instance_type=seen.instance_type,
            market=seen.lifecycle,
            usd_per_hour=self._market.spot_usd_per_hour(
                zone=seen.zone, instance_type=seen.instance_type
            ),
        )
        log.info("%s runs in %s, agent %d", seen.instance, seen.zone, group.group)

    def _interrupt(self, record: _Record, *, notice_s: float, cause: str) -> None:
        """The cloud takes an instance now, unless it went meanwhile."""
        if self._aws.interrupt(record.seen.instance):
            self._take(record, notice_s=notice_s, cause=cause, stamp=True)

    def _who_was_first(self, record: _Record) -> str:
        """The cause of an end that moto already shows. If the end followed a loss, the cloud took
        the instance."""
        instance = record.seen.instance
        lost = (
            record.group.is_lost
            if record.group is not None
            else record.agent_status is not None and record.agent_status < 0
        )
        if not lost and not self._journal.is_stamped(instance):
            return "terminated"
        self._aws.interrupt(instance, even_ended=True)
        return "interrupted"

    def _take(self, record: _Record, *, notice_s: float, cause: str, stamp: bool) -> None:
        """Kill the group now; it is reaped when the kernel reports the agent's end."""
        instance = record.seen.instance
        if record.group is not None:
            if stamp:
                self._journal.kill_stamp(instance=instance, notice_s=notice_s, cause=cause)
            record.group.kill()
        self._ended(record, cause="interrupted" if stamp else cause)

    def _ended(self, record: _Record, *, cause: str) -> None:
        instance = record.seen.instance
        record.ended_at_s = time.time()
        self._metadata.remove(instance)
        self._journal.ended(instance=instance, cause=cause)
        log.info("%s is gone: %s", instance, cause)

    def _agent_ended(self, record: _Record, group: InstanceGroup) -> None:
        status = self._bury(record, group)
        instance = record.seen.instance
        if record.ended_at_s is not None:
            return
        if status < 0 and self._aws.interrupt(instance):
            self._ended(record, cause="interrupted")
        elif status >= 0:
            self._journal.agent_ended(instance=instance, status=status)
            log.info("%s: its agent left with status %d", instance, status)

    def _bury(self, record: _Record, group: InstanceGroup) -> int:
        self._selector.unregister(group.pidfd)
        status = group.bury()
        record.group = None
        record.agent_status = status
        # Its worker may have been killed in the middle of a checkpoint.
        shutil.rmtree(self._scratch / group.instance, ignore_errors=True)
        return status


def _told(record: _Record) -> dict[str, object]:
    return {
        "instance": record.seen.instance,
        "zone": record.seen.zone,
        "instance_type": record.seen.instance_type,
        "market": record.seen.lifecycle,
        "state": "running" if record.ended_at_s is None else "terminated",
        "pid": record.group.group if record.group is not None else None,
        "agent_status": record.agent_status,
        "launched_at": record.launched_at_s,
        "ended_at": record.ended_at_s,
        "log": str(record.log),
    }
