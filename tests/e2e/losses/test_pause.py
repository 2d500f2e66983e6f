"""How long a failover pauses its stage: from just before the kill to its first operation again."""

import random
import statistics

import pytest

from bamboo.config.tree import Kill
from testbed.calm import assert_calm
from testbed.cluster import cluster
from tests.e2e.jobs import job
from tests.e2e.losses.test_kill_matrix import PHASES, SEED
from tests.e2e.losses.test_random_kills import PAIRS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LIMIT_S = 0.150


def pauses_s(seed: str) -> list[dict[str, float]]:
    """The parts of the pauses of two kills in one run, in seconds."""
    draw = random.Random(seed)
    kills = [
        Kill(step=step, stage=stage, phase=draw.choice(PHASES), microbatch=draw.randrange(8))
        for step, stage in zip((3, 7), draw.choice(PAIRS), strict=True)
    ]
    with cluster(job(*kills, steps=11)) as run:
        run.start()
        assert_calm(run)
        stamps = {s["slot"]: s["t_monotonic_ns"] / 1e9 for s in run.stamps()}
        found = run.metrics("failover")
        assert len(found) == len(kills)
        return [
            {
                "whole": f["first_operation_s"] - stamps[f["slot"]],
                "disconnect": f["seen_s"] - stamps[f["slot"]],
                "decision": f["decided_s"] - f["seen_s"],
                "promotion": f["promoted_s"] - f["decided_s"],
                "first_operation": f["first_operation_s"] - f["promoted_s"],
            }
            for f in found
        ]


def test_the_parts_of_a_pause_are_in_order_and_add_up() -> None:
    for found in pauses_s(f"{SEED}.0"):
        parts = {name: part_s for name, part_s in found.items() if name != "whole"}
        assert min(parts.values()) >= 0.0
        assert sum(parts.values()) == pytest.approx(found["whole"])


@pytest.mark.full
def test_the_median_of_twenty_pauses_is_within_its_limit() -> None:
    found = [pause for i in range(10) for pause in pauses_s(f"{SEED}.{i}")]
    medians = {name: statistics.median(p[name] for p in found) for name in found[0]}
    assert medians["whole"] <= LIMIT_S, medians
