"""What the fleet of a run was about to do, and what its launches did: `intents.jsonl`.

Rule: an intent is in the file before the call that it announces. One that cannot be written is not
performed, unless it ends something. What the cloud shows by tag is the truth. The file explains it,
and for a moment knows what the cloud does not show yet.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bamboo.errors import BooksUnwritable
from bamboo.ids import InstanceId, RunId, ZoneId
from bamboo.jsonl import LineWriter, drop_torn_line
from cloud.provider import InstanceState, Launched, LaunchSpec, Market, Observed, Pool

ALL_GONE = "all-gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What earlier launchers of a run left behind."""

    launches: int
    """Number of wishes that were made; the next token continues the count."""
    ended: frozenset[InstanceId]
    """Instances that are no longer wanted."""
    unanswered: tuple[tuple[LaunchSpec, float], ...]
    """Wishes that may have been heard although the answer was not read, with their Unix times."""
    launched: tuple[Observed, ...]
    """What the answers listed, as it was then. This and `unanswered` begin after the last time that
    everything of the run was seen to have ended."""


class Intents:
    """The file of one run; `now` is Unix time."""

    def __init__(self, path: Path, *, run: RunId, now: Callable[[], float]) -> None:
        self._path = path
        self._run = run
        self._now = now
        with contextlib.suppress(OSError):  # a process that only ends things needs no file
            drop_torn_line(path)

    def earlier(self) -> Earlier:
        """What the file says so far."""
        return read_earlier(self._path, self._run)

    def wish(self, spec: LaunchSpec, *, reason: str) -> None:
        """A launch is about to be requested. Raises BooksUnwritable; then it must not be."""
        self._write(
            "launch",
            token=spec.token,
            count=spec.count,
            expires_at_s=spec.expires_at_s,
            pools=[_pool_body(pool) for pool in spec.pools],
            reason=reason,
        )

    def again(self, spec: LaunchSpec) -> None:
        """A wish is about to be repeated, unchanged. Raises BooksUnwritable."""
        self._write("launch-again", token=spec.token)

    def answered(self, spec: LaunchSpec, launched: Sequence[Launched]) -> None:
        """The result of a wish. A full disk loses no instance: the wish then stays unanswered."""
        instances = [{"instance": one.instance, **_pool_body(one.pool)} for one in launched]
        self._write_anyhow("launched", token=spec.token, instances=instances)

    def end(self, intent: str, **fields: object) -> None:
        """Note an end. It is performed even where it cannot be announced."""
        self._write_anyhow(intent, **fields)

    def all_gone(self, reason: str) -> None:
        """Everything that was requested so far was seen to have ended, or cannot exist."""
        self._write_anyhow(ALL_GONE, reason=reason)

    def _write_anyhow(self, intent: str, **fields: object) -> None:
        with contextlib.suppress(BooksUnwritable):
            self._write(intent, **fields)

    def _write(self, intent: str, **fields: object) -> None:
        record = {"t": self._now(), "run": self._run, "intent": intent, **fields}
        with LineWriter(self._path) as file:
            file.write(json.dumps(record))


def read_earlier(path: Path, run: RunId) -> Earlier:
    """The content of a run's file, which its launcher may be writing at the time."""
    records = read_intents(path)
    wishes = [r for r in records if r["intent"] == "launch"]
    gone = max((n for n, r in enumerate(records, start=1) if r["intent"] == ALL_GONE), default=0)
    since = records[gone:]
    answers = [r for r in since if r["intent"] == "launched"]
    heard = {r["token"] for r in answers}
    asked_s = {r["token"]: float(r["t"]) for r in records if "token" in r}
    return Earlier(
        launches=len(wishes),
        ended=frozenset(
            InstanceId(str(r["instance"])) for r in records if r["intent"] == "terminate"
        ),
        unanswered=tuple(
            (_wish(run, r), asked_s[r["token"]])
            for r in since
            if r["intent"] == "launch" and r["token"] not in heard
        ),
        launched=tuple(_observed(r, one) for r in answers for one in r["instances"]),
    )


def _pool_body(pool: Pool) -> dict[str, str]:
    return {"instance_type": pool.instance_type, "zone": pool.zone, "market": pool.market}


def _pool(body: Mapping[str, Any]) -> Pool:
    return Pool(
        instance_type=str(body["instance_type"]),
        zone=ZoneId(str(body["zone"])),
        market=Market(str(body["market"])),
    )


def _wish(run: RunId, record: Mapping[str, Any]) -> LaunchSpec:
    """The launch that an intent announced, unchanged and with its token."""
    first, *others = (_pool(body) for body in record["pools"])
    return LaunchSpec(
        run=run,
        pool=first,
        alternatives=tuple(others),
        count=int(record["count"]),
        token=str(record["token"]),
        expires_at_s=int(record["expires_at_s"]),
    )


def _observed(record: Mapping[str, Any], one: Mapping[str, Any]) -> Observed:
    return Observed(
        instance=InstanceId(str(one["instance"])),
        pool=_pool(one),
        state=InstanceState.PENDING,
        launched_at_s=float(record["t"]),
        token=str(record["token"]),
        interrupted=False,
    )


def read_intents(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The records of an intents file, in order; none when there is no file. A last line that a
    crash cut short is left out, and so is a line that a damaged disk made unreadable: the tags of
    the cloud have the same."""
    if not path.exists():
        return ()
    lines = path.read_text(errors="replace").splitlines(keepends=True)
    found = (_record(line) for line in lines if line[-1] == "\n")
    return tuple(record for record in found if record is not None)


def _record(line: str) -> Mapping[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "intent" in record else None
