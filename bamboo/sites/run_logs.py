"""The lines of a run's logs: the events of its nodes in the order of time, then what their
processes wrote.

Every minute an instance in an account writes the new lines of its journal as a new file into the
run's folder of the bucket (`infra/ship-logs.sh`). They are fetched while they are read.

    runs/<run>/logs/<instance>/<time>-<number>.log  ->  logs/<node>/<time>-<number>.log

Rule: a file that was fetched is not fetched again; a name of another form is ignored.
"""

import math
import re
import time
from collections.abc import Iterator
from pathlib import Path

from bamboo import wiring
from bamboo.errors import InputError
from bamboo.ids import InstanceId, node_id
from bamboo.ports import ObjectStore
from bamboo.runs.run_folder import RunFolder, job_of
from bamboo.runs.run_status import store_may_answer
from bamboo.telemetry.records import EventRecord, Tail

POLL_S = 0.2
BRING_EVERY_S = 10.0
"""How often the bucket of a run in an account is checked for more."""
STORE = "store"
_PART = re.compile(r"logs/(i-[0-9a-f]{1,32})/(\d{8}T\d{6}-\d+(?:-[ab])?\.log)", re.ASCII)


def log_lines(
    folder: RunFolder, *, node: str = "", follow: bool = False
) -> Iterator[tuple[str, str]]:
    """Pairs of a writer's name and its line, as they come; with `follow` until the run has ended.
    `node` is the id of a node or a prefix of one, or `launcher`, `cloud`, `store`. Raises
    InputError where there is no such log, StorageUnavailable."""
    _bring(folder)
    bring_at_s = time.monotonic() + BRING_EVERY_S
    tails: dict[Path, Tail] = {}
    if node and not any(True for _ in _files(folder, node)):
        names = ", ".join(dict.fromkeys(_source(p) for p in _files(folder, ""))) or "none yet"
        raise InputError(f"run {folder.id} has no log of a node {node!r}; it has: {names}")
    while True:
        over = _over(folder)
        if over or time.monotonic() >= bring_at_s:
            _bring(folder)
            bring_at_s = time.monotonic() + BRING_EVERY_S
        yield from sorted(_fresh_lines(folder, node, tails), key=_moment)
        if over or not follow:
            return
        time.sleep(POLL_S)


def _bring(folder: RunFolder) -> None:
    """Fetch the new logs of a run in an account; on this machine they are there already."""
    job = job_of(folder)
    if job.cloud.provider != "local":
        objects = wiring.bucket(wiring.run_url(job, folder.id), region=job.cloud.region)
        bring_logs(objects, folder.path / "logs")


def bring_logs(objects: ObjectStore, logs: Path) -> None:
    """Fetch new files into the run's folder of logs. Raises StorageUnavailable, OSError."""
    for name in sorted(objects.sizes("logs/")):
        found = _PART.fullmatch(name)
        if found is None:
            continue
        folder = logs / node_id(InstanceId(found[1]), 0)
        if not (folder / found[2]).exists():
            folder.mkdir(parents=True, exist_ok=True)
            objects.fetch(name, folder / found[2])


def _over(folder: RunFolder) -> bool:
    if folder.receipt.exists():
        return True
    endpoint = folder.live_endpoint()
    if endpoint is None:
        return not folder.starting()
    return not store_may_answer(str(endpoint["store_url"]))


def _moment(line: tuple[str, str]) -> float:
    """Events by their time; text output of processes comes after them, file by file."""
    try:
        return EventRecord.from_json(line[1]).t_s
    except InputError:
        return math.inf


def _files(folder: RunFolder, node: str) -> Iterator[Path]:
    """Event files first, then the output of processes; by name."""
    for pattern in ("events/*.jsonl", "logs/*.log", "logs/*/*.log"):
        for path in sorted(folder.path.glob(pattern)):
            # The store's own log is shown only on request.
            if _source(path).startswith(node) and (node or path.stem != STORE):
                yield path


def _source(path: Path) -> str:
    """The name of the writer: a node in an account has a folder of its own."""
    return path.stem if path.parent.name in ("events", "logs") else path.parent.name


def _fresh_lines(
    folder: RunFolder, node: str, tails: dict[Path, Tail]
) -> Iterator[tuple[str, str]]:
    for path in _files(folder, node):
        for line in tails.setdefault(path, Tail(path)).lines():
            yield _source(path), line
