"""The nodes of a trace as torchft would use them: a replica is a pipeline, all of it or nothing.

Rule: everything that is modelled here favours torchft. A pipeline of P nodes is one process, whose
step takes what the step of that pipeline takes for its share of the batch. It is killed when any of
its nodes is lost, and another one is started, with everything imported, as soon as there are P free
nodes. Where no replica is left, the next ones continue as if a checkpoint of every step had been
free.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from bamboo.config.load import job_to_json
from bamboo.config.tree import JobConfig
from bamboo.schedule.figures import plan_run, step_time_s
from bamboo.schedule.layout import Costs, layout_of
from bamboo.sim.market.replay import SeatEvent
from bamboo.topology.grid import Grid
from benchmarks.peers.torchft_group import Group, Settings, Work, group

FIRST_STEP = 1
"""The step that is committed before the trace begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """At `at_s` these replicas, by number, are killed, and those are started."""

    at_s: float
    killed: tuple[int, ...]
    started: tuple[int, ...]
    alone: bool
    """No replica was left, so the new ones cannot copy the state from one."""


def changes(events: Iterable[SeatEvent], *, size: int, most: int) -> tuple[Change, ...]:
    """Which replicas of `size` seats exist, at most `most`, as seats are lost and filled."""
    free: list[int] = []
    seats: dict[int, set[int]] = {}
    number, out = 0, []
    for at_s, together in groupby(events, key=lambda event: event.at_s):
        killed = []
        for event in together:
            if event.filled:
                free.append(event.seat)
                continue
            hit = next((r for r, held in seats.items() if event.seat in held), None)
            if hit is None:
                free.remove(event.seat)
                continue
            killed.append(hit)
            free += sorted(seats.pop(hit) - {event.seat})
        alone, started = not seats, []
        while len(free) >= size and len(seats) < most:
            seats[number], free = set(free[:size]), free[size:]
            started.append(number)
            number += 1
        if killed or started:
            out.append(Change(at_s=at_s, killed=tuple(killed), started=tuple(started), alone=alone))
    return tuple(out)


def node_hours(events: Sequence[SeatEvent], *, begin_s: float, end_s: float) -> float:
    """Hours of all filled seats between two times, in seconds of the events."""
    total_s, filled, last_s = 0.0, 0, begin_s
    for event in [*events, SeatEvent(at_s=end_s, seat=-1, filled=True)]:
        at_s = min(max(event.at_s, begin_s), end_s)
        total_s += filled * (at_s - last_s)
        filled, last_s = filled + (1 if event.filled else -1), at_s
    return total_s / 3600


def work_of(job: JobConfig, *, pipelines: int, stages: int) -> Work:
    """What a replica trains: the share of one of so many pipelines, in that pipeline's time."""
    each = job.train.batch // job.train.microbatch // pipelines
    costs = Costs.of(
        stages,
        forward_s=[x / 1e3 for x in job.cluster.virtual_forward_ms],
        backward_s=[x / 1e3 for x in job.cluster.virtual_backward_ms],
    )
    layout = layout_of(Grid(pipelines=1, stages=stages), microbatches=(each,), mode="off")
    return Work(
        job=job_to_json(job),
        active=0,
        each=each,
        microbatch=job.train.microbatch,
        step_s=step_time_s(plan_run(layout, costs)),
    )


def samples_on_trace(
    work: Work,
    settings: Settings,
    events: Sequence[SeatEvent],
    *,
    size: int,
    most: int,
    begin_s: float,
    end_s: float,
) -> dict[str, Any]:
    """Play the events, whose times are seconds of this machine, and count what was committed."""
    todo = changes(events, size=size, most=most)
    with group(work, settings) as replicas:
        names: dict[int, str] = {}
        eras: dict[str, int] = {}
        _apply(_at(begin_s, todo), replicas, names, eras)
        replicas.wait_step(FIRST_STEP)
        started_s = time.monotonic()
        for change in (c for c in todo if begin_s < c.at_s <= end_s):
            time.sleep(max(0.0, started_s + change.at_s - begin_s - time.monotonic()))
            _apply(change, replicas, names, eras)
        time.sleep(max(0.0, started_s + end_s - begin_s - time.monotonic()))
        over_s = time.monotonic()
        committed = {
            (eras[record["replica"]], record["step"]): record["microbatches"]
            for record in replicas.records()
            if record["committed"] and started_s < record["at_s"] <= over_s
        }
    kills = sum(len(c.killed) for c in todo if begin_s < c.at_s <= end_s)
    return {
        "steps": len(committed),
        "samples": sum(committed.values()) * work.microbatch,
        "kills": kills,
        "from_nothing": max(eras.values(), default=0),
        "step_s": work.step_s,
    }


def _at(begin_s: float, todo: Sequence[Change]) -> Change:
    """Everything that exists when the trace begins."""
    alive: list[int] = []
    for change in todo:
        if change.at_s <= begin_s:
            alive = [r for r in alive if r not in change.killed] + list(change.started)
    return Change(at_s=begin_s, killed=(), started=tuple(alive), alone=False)


def _apply(change: Change, replicas: Group, names: dict[int, str], eras: dict[str, int]) -> None:
    for number in change.killed:
        replicas.kill(names.pop(number))
    era = max(eras.values(), default=0) + (change.alone and bool(change.started))
    for number in change.started:
        names[number] = replicas.start()
        eras[names[number]] = era


def scaled(events: Iterable[SeatEvent], time_scale: float) -> tuple[SeatEvent, ...]:
    """Seconds of the trace as seconds of this machine."""
    return tuple(replace(event, at_s=event.at_s / time_scale) for event in events)
