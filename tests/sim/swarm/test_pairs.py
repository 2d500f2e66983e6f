"""Notices to two nodes of a run, or to all, within some seconds: whoever has them, and in whatever
order they are taken, no step is lost. `tests/e2e/losses/test_kept.py` has real processes."""

import random

import pytest

from testbed.swarm.run import play
from testbed.swarm.scenario import Fault, Scenario

PAIRS = 1000
GRIDS = ((1, 2), (1, 3), (1, 4), (1, 6), (2, 2), (2, 3), (3, 2))


def drawn(seed: int) -> Scenario:
    """A run of 2 to 6 nodes. The first notice is of 5 to 11 s, the others of up to 3 s more or
    less, so that one node is often taken just when all are to stop."""
    rng = random.Random(seed)

    def between(low: float, high: float) -> float:
        return round(rng.uniform(low, high), 3)

    pipelines, stages = rng.choice(GRIDS)
    first_s, who = between(5.0, 11.0), rng.randrange(24)
    faults = [Fault(at_s=3.0, kind="notice", who=who, for_s=first_s)]
    for number in range(rng.choice((1, pipelines * stages - 1))):
        for_s = round(first_s + rng.uniform(-3.0, 3.0), 3)
        at_s = round(3.01 + 0.01 * number, 3)
        faults.append(Fault(at_s=at_s, kind="notice", who=who + 1 + number, for_s=for_s))
    step_s = between(0.2, 0.8)
    return Scenario(
        seed=seed,
        pipelines=pipelines,
        stages=stages,
        redundancy=rng.choice(("stash", "eager", "peer", "off")),
        layers=stages + rng.randrange(4),
        zones=1,
        pipelines_max=pipelines,
        standbys=0,
        replaced=rng.random() < 0.3,
        checkpoint_every=0,
        steps=int(25 / step_s) + 10,
        step_s=step_s,
        read_s=0.01,
        say_s=0.01,
        transfer_s=between(0.2, 3.0),
        build_s=between(0.1, 1.2),
        save_s=between(0.1, 1.0),
        boot_s=between(0.5, 4.0),
        patience_s=between(2.0, 8.0),
        park_s=4.0,
        heal_s=20.0,
        faults=tuple(faults),
    )


@pytest.mark.full
@pytest.mark.timeout(300)
def test_no_step_is_lost_whoever_is_taken_first() -> None:
    played = [play(drawn(seed)) for seed in range(PAIRS)]
    red = [f"seed {v.seed}: {v.checker}, {v.sentence}" for v in played if not v.green]
    assert not red, "\n".join(red)
