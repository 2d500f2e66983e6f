"""Which instances a fault hits: a pure function of its number and of the running instances."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bamboo.chaos.draw import Fault, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An instance as the swarm sees it."""

    instance: str
    zone: str
    agent: int
    """Its process id."""
    worker: int | None = None
    """Its process id; None: it has not joined."""
    slots: tuple[tuple[int, int], ...] = ()
    """(pipeline, stage) of each slot that it owns."""
    noticed: bool = False
    stopped: bool = False
    """Whether an earlier fault has stopped its worker."""


_HALVES = (Kind.KILL_HALF, Kind.NOTICE_TO_MANY, Kind.NO_CAPACITY)
_NOTICES = (
    Kind.NOTICE_KEPT,
    Kind.NOTICE_NOT_KEPT,
    Kind.NOTICE_CUT_SHORT,
    Kind.NOTICE_TO_MANY,
)
_WORKERS = (
    Kind.STOP_WORKER,
    Kind.STALL_WORKER,
    Kind.SLOW_WORKER,
    Kind.KILL_WORKER,
    Kind.DISK_FULL,
)
_NOBODY = (Kind.STOP_STORE, Kind.KILL_STORE, Kind.WIPE_STORE, Kind.KILL_LAUNCHER)


def hit(fault: Fault, running: Sequence[Target]) -> tuple[Target, ...]:
    """Which of the running instances a fault hits; none where none is suitable."""
    able = sorted(running, key=lambda t: (t.slots == (), t.slots, t.instance))
    if fault.kind in _NOBODY:
        return ()
    if fault.kind in (Kind.KILL_ALL, Kind.NOTHING_LEFT):
        return tuple(able)
    if fault.kind in _NOTICES:
        able = [t for t in able if not t.noticed]
    if fault.kind in _WORKERS:
        able = [t for t in able if t.worker is not None and not t.stopped]
    if fault.kind is Kind.DISK_FULL:
        return tuple(able)
    if fault.kind is Kind.KILL_ZONE and able:
        zone = able[int(fault.where * len(able))].zone
        return tuple(t for t in able if t.zone == zone)
    if fault.kind is Kind.KILL_NEIGHBOURS:
        return _neighbours(fault, able)
    if fault.kind in _HALVES:
        chance = random.Random(int(fault.where * 2**32))
        return tuple(chance.sample(able, (len(able) + 1) // 2))
    return (able[int(fault.where * len(able))],) if able else ()


def _neighbours(fault: Fault, able: Sequence[Target]) -> tuple[Target, ...]:
    """Two or three nodes that own slots next to each other, wrapping at the end of a pipeline: the
    owner of a stage together with its shadow. In pipelines of one stage, of several pipelines."""
    owners = [t for t in able if t.slots]
    if not owners:
        return ()
    first = int(fault.where * len(owners))
    pipeline = owners[first].slots[0][0]
    beside = [t for t in owners if t.slots[0][0] == pipeline]
    if all(stage == 0 for owner in owners for _, stage in owner.slots):
        beside = owners
    begin = beside.index(owners[first])
    count = 2 + int(fault.where * 1024) % 2
    return tuple(beside[(begin + i) % len(beside)] for i in range(min(count, len(beside))))
