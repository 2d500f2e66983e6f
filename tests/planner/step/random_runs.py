"""Random layouts and costs, with ties, operations of no time, zones, peers and merged nodes."""

import random
from hashlib import sha256

from bamboo.errors import CoreMisuse
from bamboo.planner.step.dry_run import dry_run
from bamboo.planner.step.figures import plan_run
from bamboo.planner.step.hit_step import hit_run
from bamboo.planner.step.layout import Costs, Layout, layout_of, merged
from bamboo.planner.step.links import Far, Link, ZoneLinks
from bamboo.planner.step.timeline import Timeline
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import REDUNDANCY_MODES, REPLICA_MODES


def random_layout(chance: random.Random) -> Layout:
    stages, pipelines = chance.randint(2, 8), chance.choice([1, 1, 1, 2, 3])
    each = ",".join(chance.choice(REPLICA_MODES) for _ in range(stages))
    mode = chance.choice([each, chance.choice(REDUNDANCY_MODES), "stash"])
    counts = [chance.randint(1, 14) for _ in range(pipelines)]
    layout = layout_of(Grid(pipelines=pipelines, stages=stages), microbatches=counts, mode=mode)
    for _ in range(chance.choice([0, 0, 1, 2, 3])):
        assignment = layout.assignment
        heirs = [
            slot
            for slot in assignment.grid.slots()
            if len(assignment.owned_by(assignment.owner(slot))) == 1
            and assignment.shadow(slot) not in (None, assignment.owner(slot))
        ]
        if heirs:
            layout = merged(layout, assignment.owner(chance.choice(heirs)))
    return layout


def random_costs(layout: Layout, chance: random.Random) -> Costs:
    """Half of them in round figures, so that much happens at once; in some, operations take no
    time."""
    stages = layout.assignment.grid.stages
    least_ns, most, unit_ns = (1, 3, 10_000_000) if chance.random() < 0.5 else (1, 60_000_000, 1)
    if chance.random() < 0.2:
        least_ns = 0
    far = None
    if chance.random() < 0.25:
        narrow = {frozenset("ab"): Link(latency_s=0.005, bytes_per_s=2e6)}
        others = Link(latency_s=chance.choice([0.0, 0.003]), bytes_per_s=chance.choice([0.0, 3e6]))
        nodes = dict.fromkeys(layout.assignment.owners)
        far = Far(
            links=ZoneLinks(others=others, pairs=narrow if chance.random() < 0.5 else {}),
            zone_of={node: chance.choice("abc") for node in nodes if chance.random() < 0.95},
        )

    def durations_s() -> list[float]:
        return [chance.randint(least_ns, most) * unit_ns / 1e9 for _ in range(stages)]

    return Costs.of(
        stages,
        forward_s=durations_s(),
        backward_s=durations_s(),
        exchange_s=[chance.choice([0.0, 0.004])],
        step_s=[chance.choice([0.0, 0.003, 0.01]) for _ in range(stages)],
        latency_s=chance.choice([0.0, 0.0, 0.001, 0.01]),
        bytes_per_s=chance.choice([0.0, 1e6, 1e8, 12345678.9]),
        boundary_bytes=[chance.choice([0.0, 1e4, 1e5]) for _ in range(stages)],
        gradient_bytes=[chance.choice([0.0, 1e5, 3e6]) for _ in range(stages)],
        exchange_bytes=[chance.choice([0.0, 1e5])],
        peers_s=[chance.choice([0.0, 0.02]) for _ in range(stages)],
        far=far,
    )


def digest(seed: int) -> str:
    """Of all times of the runs of a seed: as they are, with gaps filled, with a node lost."""
    chance = random.Random(seed)
    layout = random_layout(chance)
    costs = random_costs(layout, chance)
    steps = chance.choice([1, 2, 3, 5])
    found = [dry_run(layout, costs, steps=steps), plan_run(layout, costs, steps=steps)]
    assignment, said = layout.assignment, ""
    victims = [
        slot
        for slot in assignment.grid.pipeline(0)
        if len(assignment.owned_by(assignment.owner(slot))) == 1
        and assignment.shadow(slot) not in (None, assignment.owner(slot))
    ]
    if victims and assignment.grid.pipelines == 1:
        victim = assignment.owner(chance.choice(victims))
        at_ns = chance.choice([0, found[0].commit_ns[0], chance.randint(0, found[0].commit_ns[-1])])
        try:
            found.append(hit_run(layout, costs, victim=victim, at_ns=at_ns, steps=steps))
        except CoreMisuse as error:  # a deadlock is an answer, too
            said = str(error)
    return sha256("\n".join([*map(words, found), said]).encode()).hexdigest()[:16]


def words(timeline: Timeline) -> str:
    """Everything that a timeline says."""
    lines = [
        f"{r.node} {r.slot} {r.step} {r.instruction} {r.start_ns} {r.end_ns} {r.host_cursor}"
        for r in timeline.ran
    ]
    return "\n".join([*lines, f"{timeline.commit_ns} {timeline.settled_ns}"])
