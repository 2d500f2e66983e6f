"""Where one part of a run ends and the next begins: how long it lasted, what it cost, where it is
kept.

Rule: a part that was not ended in order lasted, and is billed, until the last time that any of it
wrote. All of this may be called only as the run's launcher, when nothing of the part lives.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from bamboo.billing.money import read_bill_log
from bamboo.jsonl import LineWriter, drop_torn_line
from bamboo.ports import Store
from bamboo.runs.run_folder import Part, RunFolder, part_of


def part_after(folder: RunFolder, *, ended_s: float, now_s: float) -> Part:
    """The part that begins now. The newest part so far ended at `ended_s`."""
    before = part_of(folder)
    lasted_s = max(0.0, ended_s - before.started_s)
    return Part(
        number=before.number + 1, started_s=now_s, led_before_s=before.led_before_s + lasted_s
    )


def ended_at_s(folder: RunFolder) -> float:
    """When the newest part ended, in Unix time: by its receipt, or else when it last wrote."""
    if folder.receipt.exists():
        return float(folder.read_json(folder.receipt)["ended_s"])
    signs = [path.stat().st_mtime for path in _written_by_the_living(folder)]
    return max([part_of(folder).started_s, *signs])


def end_bill(folder: RunFolder, *, ended_s: float) -> None:
    """Write the end of every instance that ended with its cloud, which could not write it."""
    if not folder.cloud.exists():
        return
    drop_torn_line(folder.cloud)
    begun: dict[str, float] = {}
    ended: set[str] = set()
    for record in read_bill_log(folder.cloud):
        match record["kind"]:
            case "start":
                begun[str(record["instance"])] = float(record["t"])
            case "end":
                ended.add(str(record["instance"]))
            case "seen":
                ended.discard(str(record["instance"]))
    with LineWriter(folder.cloud) as file:
        for instance, began_s in begun.items():
            if instance in ended:
                continue
            end = {"t": max(began_s, ended_s), "instance": instance, "cause": "end"}
            file.write(json.dumps({"kind": "end", **end}))


def put_away(folder: RunFolder) -> Path:
    """Move the files that the next part writes again to `parts/<n>/`."""
    part = _free(folder.path / "parts")
    part.mkdir(parents=True)
    for path in (
        folder.receipt,
        folder.decisions,
        folder.endpoint,
        folder.final,
        folder.path / "store",
    ):
        if path.exists():
            path.rename(part / path.name)
    return part


def _written_by_the_living(folder: RunFolder) -> Iterator[Path]:
    """Files that cloud, nodes and launcher wrote, without the log of a process that only tried to
    take over the run."""
    yield from (
        p for p in (folder.cloud, folder.kills, folder.metrics, folder.samples) if p.exists()
    )
    for name in ("events", "store", "logs"):
        for path in (folder.path / name).glob("**/*"):
            if path.is_file() and path.name != "launcher.log":
                yield path


def _free(parts: Path) -> Path:
    taken = {path.name for path in parts.iterdir()} if parts.exists() else set()
    return parts / next(str(n) for n in range(1, len(taken) + 2) if str(n) not in taken)


def last_sign_of_life_s(folder: RunFolder, store: Store) -> float:
    """When a run was last seen whose end was not recorded, in Unix time. It cost nothing after
    that."""
    told_s = [float(record["t"]) for record in read_bill_log(folder.cloud)]
    _, leases = store.leases()
    beaten_s = (lease.beaten_at_s for lease in leases.values())
    return max([folder.resolved.stat().st_mtime, *told_s, *beaten_s])
