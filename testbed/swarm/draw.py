"""A scenario drawn from one seed.

Rule: everything is drawn here, before the world begins, and is part of the scenario, so the same
seed is the same world on every machine. The meaning of a scenario does not change with the release.
"""

import random
from dataclasses import replace

from testbed.swarm.evaluations import last_step_of
from testbed.swarm.faults import EVALUATION
from testbed.swarm.scenario import Fault, Scenario

BURST = 0.6
"""Share of the faults that come soon after another one, while its consequences are in progress."""

RELEASED = 0.3
"""Share of the worlds in which nodes are given back, in addition to other faults."""

REFUSING = 0.5
"""Share of the worlds in which the store refuses writes once or several times, or those of one
node, in addition to other faults."""

FAILED = 0.3
"""Share of the worlds in which nodes meet faults of their own, and for a while new nodes do too."""

DIFFERING = 0.2
"""Share of the worlds in which for a while new nodes have other numerics than the run."""

KINDS = {
    "lose": 20,
    "lose_after": 16,
    "lose_zone": 5,
    "notice": 12,
    "advise": 2,
    "join": 4,
    "cut": 5,
    "isolate": 4,
    "freeze": 9,
    "no_store": 5,
    "slow": 7,
    "late": 5,
    "repeat": 10,
    "dies_speaking": 7,
    "launcher_dies": 3,
    "launcher_dies_speaking": 2,
    "store_away": 4,
    "store_wiped": 6,
    "part_fails": 2,
    "torn": 3,
    "stop": 4,
    "reconsider": 2,
}
"""Kinds of faults, repeated according to their share."""


NOTICED_EVERY = 10
"""One of this many seeds has a world with no faults but notices, each in time."""

ONE_STAGE_EVERY, ONE_STAGE = 10, 4
"""One of this many seeds, with this remainder, has pipelines of one stage, and one in ten of those
has no faults but notices."""


EVALUATED = 0.3
"""Share of the worlds that evaluate."""


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    return _evaluated(_drawn(seed))


def _evaluated(scenario: Scenario) -> Scenario:
    """The same world, in some cases with evaluations, which may end it early, and with a loss that
    one of them times."""
    rng = random.Random(f"{scenario.seed} evaluations")
    if rng.random() > EVALUATED:
        return scenario
    patience = rng.choice((0, 1, 2, 3, 4))
    chosen = replace(scenario, eval_every=rng.choice((1, 2, 3, 5)), eval_patience=patience)
    if last_step_of(chosen) + 1 < scenario.resume_step:
        chosen = replace(chosen, eval_patience=0)  # it would not have come to that checkpoint
    at_s, for_s = round(0.3 + scenario.heal_s * rng.random(), 3), round(rng.random() ** 2, 3)
    fault = Fault(
        at_s=at_s, kind="lose_after", who=rng.randrange(24), other=EVALUATION, for_s=for_s
    )
    if rng.random() < 0.5 and scenario.seed % NOTICED_EVERY != NOTICED_EVERY - 1:
        faults = sorted((*scenario.faults, fault), key=lambda one: one.at_s)
        return replace(chosen, faults=tuple(faults))
    return chosen


def _drawn(seed: int) -> Scenario:
    if seed % NOTICED_EVERY == NOTICED_EVERY - 1:
        return _noticed(seed)
    if seed % ONE_STAGE_EVERY == ONE_STAGE:
        noticed = seed // ONE_STAGE_EVERY % NOTICED_EVERY == 0
        return _of_one_stage(_noticed(seed) if noticed else _troubled(seed))
    return _troubled(seed)


def _of_one_stage(scenario: Scenario) -> Scenario:
    """The same world with pipelines of one stage: no node has a neighbour to keep a replica."""
    rng = random.Random(f"{scenario.seed} one stage")
    pipelines = rng.choice((1, 2, 2, 3, 4))
    return replace(
        scenario,
        pipelines=pipelines,
        stages=1,
        redundancy=rng.choice(("peer", "peer", "off")),
        layers=1 + rng.randrange(4),
        pipelines_max=min(4, pipelines + rng.choice((0, 0, 1))) if scenario.elastic else pipelines,
    )


def _troubled(seed: int) -> Scenario:
    """Faults of all kinds."""
    rng = random.Random(seed)

    def between(low: float, high: float) -> float:
        return round(low + (high - low) * rng.random(), 3)

    pipelines = rng.choice((1, 1, 2, 2, 3))
    stages = rng.choice((2, 3, 3, 4, 5)) if pipelines < 3 else rng.choice((2, 3))
    elastic = rng.random() < 0.85
    every = rng.choice((0, 0, 3, 5, 8))
    step_s = between(0.3, 0.9)
    heal_s = between(4.0, 14.0)
    twice = rng.random() < 0.25
    most = int(heal_s / step_s)
    ends_early = rng.random() < 0.25  # while faults still come
    steps = rng.randrange(most // 3 + 2, most + 4) if ends_early else most + rng.randrange(8, 24)
    return Scenario(
        seed=seed,
        pipelines=pipelines,
        stages=stages,
        redundancy=rng.choice(("stash", "stash", "stash", "eager", "peer", "off")),
        layers=stages + rng.randrange(4),
        zones=rng.choice((1, 2, 3)),
        apart=rng.random() < 0.25,
        elastic=elastic,
        pipelines_max=min(4, pipelines + rng.choice((0, 0, 1))) if elastic else pipelines,
        timed_grids=rng.random() < 0.4,
        standbys=rng.choice((0, 0, 1, 2)),
        replaced=rng.random() < 0.6,
        checkpoint_every=every,
        resume_step=2 * every if 2 * every < steps and elastic and rng.random() < 0.15 else 0,
        steps=steps,
        budget_step=rng.randrange(2, steps) if rng.random() < 0.18 else 0,
        step_s=step_s,
        read_s=between(0.01, 0.1),
        say_s=between(0.005, 0.05),
        commit_s=between(0.005, 0.1) if rng.random() < 0.3 else 0.0,
        twice=between(0.1, 0.6) if twice else 0.0,
        twice_s=between(0.1, 5.0) if twice else 0.0,
        transfer_s=between(0.2, 2.0),
        build_s=between(0.1, 1.2),
        save_s=between(0.1, 1.5),
        boot_s=between(0.5, 4.0),
        patience_s=between(2.0, 8.0),
        park_s=between(15.0, 25.0),
        heal_s=heal_s,
        faults=_faults(rng, heal_s),
    )


def _noticed(seed: int) -> Scenario:
    """Notices to several nodes, often to all, at once or one after the other."""
    rng = random.Random(seed)

    def between(low: float, high: float) -> float:
        return round(low + (high - low) * rng.random(), 3)

    pipelines = rng.choice((1, 1, 2, 3))
    stages = rng.choice((2, 2, 3, 4)) if pipelines < 3 else 2
    standbys, every = rng.choice((0, 0, 1)), rng.choice((0, 0, 0, 4))
    faults: list[Fault] = []
    for _ in range(rng.randrange(1, pipelines * stages + standbys + 3)):
        again = faults and rng.random() < BURST
        at_s = rng.choice(faults).at_s + 2 * rng.random() ** 2 if again else 1 + 14 * rng.random()
        who, for_s = rng.randrange(24), between(4.0, 12.0)
        faults.append(Fault(at_s=round(at_s, 3), kind="notice", who=who, for_s=for_s))
    step_s = between(0.2, 0.8)
    heal_s = round(max(fault.at_s for fault in faults) + 13.0, 3)
    return Scenario(
        seed=seed,
        pipelines=pipelines,
        stages=stages,
        redundancy=rng.choice(("stash", "stash", "eager", "peer", "off")),
        layers=stages + rng.randrange(4),
        zones=rng.choice((1, 2)),
        apart=rng.random() < 0.25,
        pipelines_max=pipelines,
        timed_grids=rng.random() < 0.4,
        standbys=standbys,
        replaced=rng.random() < 0.4,
        checkpoint_every=every,
        steps=int(heal_s / step_s) + rng.randrange(8, 24),
        step_s=step_s,
        read_s=0.01,
        say_s=0.01,
        transfer_s=between(0.2, 3.0),
        build_s=between(0.1, 1.2),
        save_s=between(0.1, 1.0),
        boot_s=between(0.5, 4.0),
        patience_s=between(2.0, 8.0),
        park_s=between(4.0, 25.0),
        heal_s=heal_s,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )


def _faults(rng: random.Random, heal_s: float) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    for _ in range(rng.choice((0, 1, 2, 3, 4, 5, 6, 8, 10, 12))):
        at_s = 0.3 + (heal_s - 0.5) * rng.random()
        if faults and rng.random() < BURST:
            at_s = min(heal_s - 0.1, rng.choice(faults).at_s + 1.5 * rng.random() ** 2)
        kind = rng.choices(tuple(KINDS), tuple(KINDS.values()))[0]
        faults.append(_fault(rng, round(at_s, 3), kind))
    if rng.random() < RELEASED:
        at_s, who = 0.3 + (heal_s - 0.5) * rng.random(), rng.randrange(24)
        given = rng.randrange(1, 5)
        faults.append(Fault(at_s=round(at_s, 3), kind="release", who=who, other=given))
    if rng.random() < REFUSING:
        faults += _refusals(rng, heal_s)
    if rng.random() < FAILED:
        for kind in rng.choice((("fails",), ("refuses",), ("fails", "refuses"))):
            at_s, who = 0.3 + (heal_s - 0.5) * rng.random(), rng.randrange(24)
            other, for_s = rng.randrange(2), round(8 * rng.random(), 3)
            faults.append(Fault(at_s=round(at_s, 3), kind=kind, who=who, other=other, for_s=for_s))
    if rng.random() < DIFFERING:
        # From the very beginning in some worlds, so that such a node is the first to attest.
        at_s, for_s = heal_s * max(0.0, 1.2 * rng.random() - 0.2), round(9 * rng.random(), 3)
        faults.append(Fault(at_s=round(at_s, 3), kind="differs", for_s=for_s))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _refusals(rng: random.Random, heal_s: float) -> list[Fault]:
    """Periods in which the store refuses writes: some shorter, some longer than a lease."""
    out = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        at_s, for_s = 0.3 + (heal_s - 0.5) * rng.random(), 9 * rng.random()
        kind = rng.choice(("store_refuses", "store_refuses", "store_refuses", "refused"))
        who = rng.randrange(24) if kind == "refused" else 0
        out.append(Fault(at_s=round(at_s, 3), kind=kind, who=who, for_s=round(for_s, 3)))
    return out


def _fault(rng: random.Random, at_s: float, kind: str) -> Fault:
    who, other, for_s = rng.randrange(24), 0, 0.0
    match kind:
        case "lose":
            other = rng.choice((0, 0, 0, 0, 1, 2))
        case "lose_after":
            other = rng.choice((0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 9, 10, 11, 12, 12))
            for_s = round(0.6 * rng.random() ** 2, 3)
        case "lose_zone":
            other, for_s = rng.choice((40, 70, 100)), round(0.5 * rng.random(), 3)
        case "notice":
            other = rng.choice((0, 0, 0, 50, 99, 100, 150))
            for_s = round(rng.choice((0.3, 2.0, 6.0)) * (0.5 + rng.random()), 3)
        case "cut":
            other, for_s = rng.randrange(24), round(6 * rng.random(), 3)
        case "isolate" | "freeze" | "no_store":
            for_s = round(7 * rng.random(), 3)
        case "slow":
            other = rng.choice((30, 50, 70))
        case "late":
            for_s = round(2 * rng.random(), 3)
        case "repeat":
            other, for_s = rng.randrange(1, 13), round(6 * rng.random(), 3)
        case "store_away":
            for_s = round(4 * rng.random(), 3)
        case "part_fails":
            other = rng.randrange(1, 4)
    return Fault(at_s=at_s, kind=kind, who=who, other=other, for_s=for_s)
