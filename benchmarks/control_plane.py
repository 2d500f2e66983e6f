"""What one decision costs, by the number of members.

    python -m benchmarks.control_plane [--rounds 40] [--members 16 64 1024 4096]

No processes and no store: `bamboo.core.machine.transition` alone, on states that it made itself, in
grids of eight stages with a shadow for each slot. It only computes, so its processor time is
measured, which other processes on the machine disturb least. Two mixes, each event timed by itself:

*repair*: a member is lost, its shadow takes over and catches up, new replicas are made, a node
joins, gets what the lost one had, and takes the slot over at a step boundary. After each round the
run is protected as before. A round's figure is its time divided by its transitions.

*reconfiguration*: the pipelines turn out to have unequal speed, so all nodes agree on a boundary,
stop, report what they hold and get what they lack. Each member gives three answers: one by one, and
in a second reconfiguration all at one time (`core.together`), whose time is divided by the answers.

Two things grow with the members. A takeover makes each of them send again, so there is one effect
for each. And a state is a tuple of members, which is copied where one changes.
"""

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bamboo.core.events import (
    BoundaryReady,
    CaughtUp,
    Event,
    LayoutBuilt,
    NodeJoined,
    Pace,
    PaceMeasured,
    PeerLost,
    Quiesced,
    ReplicaJoined,
    Yielded,
)
from bamboo.core.machine import transition
from bamboo.core.state import Holding, Phase, Policy, State, initial_state
from bamboo.core.together import transitions
from bamboo.ids import InstanceId, NodeId, ZoneId, run_id
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from benchmarks.measuring.options import at_least, parsed, selected
from benchmarks.measuring.report import command_of, median_and_quartiles, write_result

STAGES = 8
LAYERS = 24


@dataclass(slots=True)
class Run:
    """A run that trains, and the time of each of its transitions, by the event's kind."""

    policy: Policy
    state: State
    nodes: int = 0
    times_us: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def say(self, event: Event) -> None:
        begin_s = time.process_time()
        decided = transition(self.state, event, now_s=0.0, policy=self.policy)
        took_s = time.process_time() - begin_s
        if decided.state is self.state:
            raise RuntimeError(f"{type(event).__name__} changed nothing: {decided.reason}")
        self.state = decided.state
        self.times_us[type(event).__name__].append(1e6 * took_s)

    def say_at_once(self, events: Sequence[Event]) -> None:
        begin_s = time.process_time()
        decided = transitions(self.state, events, now_s=0.0, policy=self.policy)
        took_s = time.process_time() - begin_s
        self.state = decided.state
        kind = f"{type(events[0]).__name__} at once"
        self.times_us[kind].append(1e6 * took_s / len(events))

    def join(self) -> None:
        self.nodes += 1
        self.say(joined(self.nodes - 1))

    def settle(self) -> None:
        """Let the members do everything that was begun."""
        while (event := self._next()) is not None:
            self.say(event)

    def _next(self) -> Event | None:
        state = self.state
        if state.failovers:
            late = state.failovers[0]
            return CaughtUp(
                node=late.successor,
                slot=late.slot,
                step=3,
                recomputed=2,
                already_computed=1,
                pause_s=0.1,
            )
        if state.transfers:
            sent = state.transfers[0]
            return ReplicaJoined(
                node=sent.source,
                slot=sent.slot,
                receiver=sent.receiver,
                since=sent.since,
                step=4,
                bytes=1_000_000,
            )
        if state.moves:
            move = state.moves[0]
            return Yielded(node=move.source, slot=move.slot, since=move.since, step=4)
        return None


def joined(number: int) -> NodeJoined:
    """What a new node reports, the `number`th of its run."""
    name = f"i-{number:06}"
    return NodeJoined(
        node=NodeId(f"{name}.1"),
        instance=InstanceId(name),
        zone=ZoneId("a"),
        endpoint=f"tcp://{name}:4000",
        pid=1,
    )


def formed(members: int) -> Run:
    """A run of so many members that trains."""
    stages = min(STAGES, members)
    pipelines = members // stages
    policy = Policy(
        cuts=tuple(
            tuple(stage * LAYERS // number for stage in range(number + 1))
            for number in range(2, stages + 1)
        ),
        virtual_nodes=4 * pipelines,
        pipelines=pipelines,
        stages=stages,
        checkpoint_every=100,
    )
    grid = Grid(pipelines=pipelines, stages=stages)
    run = Run(policy, initial_state(run=run_id("bench"), grid=grid, redundancy="stash"))
    for _ in range(grid.size):
        run.join()
    at_rest(run)
    run.times_us.clear()
    return run


def at_rest(run: Run) -> Assignment:
    """The assignment of a run that trains with a shadow for each slot."""
    assignment = run.state.assignment
    if run.state.phase is not Phase.RUNNING or assignment is None:
        raise RuntimeError(f"the run does not train: {run.state.sentence}")
    return assignment


def repair(run: Run, rng: random.Random) -> tuple[int, float]:
    """One loss, and everything that follows: the number of transitions, and their time in us."""
    victim = rng.choice(at_rest(run).owners)
    before = {kind: len(times) for kind, times in run.times_us.items()}
    run.say(PeerLost(node=victim, reporter="fleet", cause="exit"))
    run.settle()
    run.join()
    run.settle()
    at_rest(run)
    taken = [us for kind, times in run.times_us.items() for us in times[before.get(kind, 0) :]]
    return len(taken), sum(taken)


def reconfigure(run: Run, *, slow: int, at_once: bool) -> None:
    """Stop all nodes, and continue with fewer shares for the pipeline `slow`."""
    assignment = at_rest(run)
    late = {assignment.owner(slot) for slot in assignment.grid.pipeline(slow)}
    members = sorted(assignment.members())
    paces = tuple(Pace(node=n, microbatch_s=0.02 if n in late else 0.01) for n in members)
    run.say(PaceMeasured(reporter="fleet", era=run.state.era, paces=paces))
    reconfiguration = run.state.reconfiguration
    assert reconfiguration is not None
    for question in questions(run, assignment, reconfiguration.since):
        if at_once:
            run.say_at_once(question)
        else:
            for event in question:
                run.say(event)
    at_rest(run)


def questions(run: Run, assignment: Assignment, since: int) -> Iterator[list[Event]]:
    """The answers of all members to each question of a reconfiguration."""
    cut, members = run.policy.cut_for(STAGES), sorted(assignment.members())
    yield [BoundaryReady(node=node, since=since, step=4) for node in members]
    stopped: list[Event] = []
    for node in members:
        stages = [s.stage for s in (*assignment.owned_by(node), *assignment.shadowed_by(node))]
        holdings = tuple(Holding(first=cut[s], stop=cut[s + 1], step=5, reach=5) for s in stages)
        stopped.append(Quiesced(node=node, since=since, holdings=holdings, norms=()))
    yield stopped
    yield [LayoutBuilt(node=node, since=since, bytes=0) for node in members]


def measure(members: int, rounds: int, rng: random.Random) -> dict[str, Any]:
    """All figures of one size."""
    run = formed(members)
    repair(run, rng)  # the first round computes what later ones reuse
    run.times_us.clear()
    counts, sums_us = zip(*(repair(run, rng) for _ in range(rounds)), strict=True)
    repairs, run.times_us = run.times_us, defaultdict(list)
    reconfigure(run, slow=0, at_once=False)
    reconfigure(run, slow=1, at_once=True)
    return {
        "us_per_transition": [us / n for n, us in zip(counts, sums_us, strict=True)],
        "repair_us": dict(repairs),
        "reconfiguration_us": dict(run.times_us),
    }


def spread(values: list[float]) -> str:
    middle, low, high = median_and_quartiles(values)
    return f"median {middle:9.1f} us  quartiles {low:9.1f} -{high:9.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=at_least(1), default=40)
    parser.add_argument("--members", type=at_least(1), nargs="+", default=[16, 64, 1024, 4096])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="print the table, write no result")
    arguments = parsed(parser)
    found = {}
    for members in arguments.members:
        found[members] = measure(members, arguments.rounds, random.Random(arguments.seed))
        mix = found[members]["us_per_transition"]
        middle, *_ = median_and_quartiles(mix)
        print(f"{members} members: {spread(mix)}  {1e6 / middle:8.0f} transitions/s")
        for name in ("repair_us", "reconfiguration_us"):
            for kind, times in found[members][name].items():
                print(f"  {kind:22} {spread(times)}  max {max(times):10.1f}")
    if not arguments.dry:
        command = command_of("control_plane", arguments)
        part = selected(parser, arguments, "members")
        print(f"written: {write_result('control-plane', command, {'members': found}, *part).name}")


if __name__ == "__main__":
    main()
