"""The files in a run's directory that the local cloud writes: what is billed, what was killed."""

import json
import logging
import time
from pathlib import Path

from bamboo.errors import BooksUnwritable
from bamboo.ids import InstanceId, ZoneId
from bamboo.jsonl import WaitingWriter
from cloud.log_records import end_record, start_record
from cloud.provider import Market, Pool

log = logging.getLogger("bamboo.local-cloud")


class Journal:
    """Appends JSON lines: `cloud.jsonl` (instances from start to end, for the bill) and
    `kills.jsonl` (a stamp just before each kill). Belongs to one thread. A line that does not fit
    on a full disk waits until it does; no instance ends because of it."""

    def __init__(self, run_dir: Path) -> None:
        self._kills_file = run_dir / "kills.jsonl"
        self._cloud = _waiting(run_dir / "cloud.jsonl")
        self._kills = _waiting(self._kills_file)
        self._began_s: dict[InstanceId, float] = {}

    def started(
        self,
        *,
        instance: InstanceId,
        zone: ZoneId,
        instance_type: str,
        market: str,
        usd_per_hour: float | None,
    ) -> None:
        """An instance runs from now on. The price is None where the pool has none."""
        at_s = self._began_s[instance] = time.time()
        pool = Pool(instance_type=instance_type, zone=zone, market=Market(market))
        _append(self._cloud, start_record(instance, pool, at_s=at_s, usd_per_hour=usd_per_hour))

    def ended(self, *, instance: InstanceId, cause: str) -> None:
        """An instance is gone: `interrupted` by the cloud, `terminated` by us, or by the `end` of
        the local cloud itself. The time is never before its start, even if the clock was set back
        meanwhile."""
        ended_s = max(time.time(), self._began_s.pop(instance, 0.0))
        _append(self._cloud, end_record(instance, at_s=ended_s, cause=cause))

    def agent_ended(self, *, instance: InstanceId, status: int) -> None:
        """An agent left by itself with an exit status; the instance still runs and is billed."""
        record = {"kind": "agent-end", "t": time.time(), "instance": instance, "status": status}
        _append(self._cloud, record)

    def kill_stamp(self, *, instance: InstanceId, notice_s: float, cause: str) -> None:
        """The moment before an instance's processes are killed."""
        record = {
            "t_monotonic_ns": time.monotonic_ns(),
            "t": time.time(),
            "instance": instance,
            "notice_s": notice_s,
            "cause": cause,
        }
        _append(self._kills, record)

    def is_stamped(self, instance: InstanceId) -> bool:
        """Whether a kill of this instance was noted, here or by a worker (which names its node)
        that was about to kill its own instance."""
        for line in self._kills_file.read_text(encoding="utf-8").splitlines():
            try:
                stamp = json.loads(line)
            except ValueError:
                continue  # torn by a kill of its writer
            node = str(stamp.get("node", ""))
            if instance in (stamp.get("instance"), node.rpartition(".")[0]):
                return True
        return False

    def close(self) -> None:
        """Write the waiting lines if there is room; otherwise they are lost."""
        for file in (self._cloud, self._kills):
            try:
                file.close()
            except BooksUnwritable as error:
                log.warning("lost with this cloud: %s", error)


def _waiting(path: Path) -> WaitingWriter:
    return WaitingWriter(
        path, troubled=lambda why: log.warning("%s", why or f"{path} is written again")
    )


def _append(file: WaitingWriter, record: dict[str, object]) -> None:
    file.write(json.dumps(record))
