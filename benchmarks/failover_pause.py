"""From the killer's stamp to the lost stage's first operation on its shadow, with its parts.

    python -m benchmarks.failover_pause [--kills 20]

Real processes on contended cores: the example's GPT (3.3 M parameters), four stages, `eager`.
Each round starts a fresh run and kills one node by pid at a uniformly random instant, any stage.
Parts: *disconnect* (kill to the first survivor's socket event), *decision* (to the committed
decision being read by the successor), *promotion*, and *first operation*.
"""

import argparse
import itertools
import random
import time
from dataclasses import asdict

from bamboo.config.tree import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from bamboo.core.state import Outcome
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.options import at_least, parsed
from benchmarks.measuring.report import command_of, median_and_quartiles, write_result
from testbed.calm import difference
from testbed.cluster import cluster

LIMIT_S = 0.15
PARTS = ("disconnect", "decision", "promotion", "first operation", "pause")


def job() -> JobConfig:
    """The example's model, a few steps of it."""
    return JobConfig(
        checkpoint=CheckpointConfig(every_steps=0),
        model=ModelConfig(layers=4, width=256, heads=8, context=128),
        data=DataConfig(max_bytes=2_000_000),
        train=TrainConfig(steps=8, batch=16, microbatch=2),
        cluster=ClusterConfig(stages=4, redundancy="eager"),
    )


def one_kill(rng: random.Random) -> dict[str, float]:
    """The parts of one failover in ms."""
    with cluster(job()) as running:
        running.start(4)
        running.wait_step(2)
        time.sleep(rng.uniform(0.0, 1.0))
        assignment = running.state().assignment
        assert assignment is not None
        slot = rng.choice(assignment.grid.slots())
        stamp_s = running.kill(assignment.owner(slot)) / 1e9
        state = running.finish()
        if state.outcome is not Outcome.DONE:
            raise RuntimeError(f"the run ended {state.outcome}: {state.sentence}")
        if unlike := difference(running):
            raise RuntimeError(f"the bits differ from the calm run's: {unlike}")
        (found,) = running.metrics("failover")
    stamps = [stamp_s] + [
        found[name] for name in ("seen_s", "decided_s", "promoted_s", "first_operation_s")
    ]
    parts = [1e3 * (after - before) for before, after in itertools.pairwise(stamps)]
    return dict(zip(PARTS, [*parts, 1e3 * (stamps[-1] - stamp_s)], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=at_least(1), default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parsed(parser)
    rng = random.Random(arguments.seed)
    found = [one_kill(rng) for _ in range(arguments.kills)]
    print(f"{arguments.kills} kills; ms")
    rows = {}
    for part in PARTS:
        values = [one[part] for one in found]
        middle, low, high = median_and_quartiles(values)
        spread = f"quartiles {low:6.1f}-{high:6.1f}  max {max(values):7.1f}"
        print(f"  {part:16} median {middle:7.1f}  {spread}")
        rows[part] = values
    longest_s = max(rows["pause"]) / 1e3
    claim = Claim(about="lost stage's first operation, longest s", found=longest_s, limit=LIMIT_S)
    print(claim.line())
    body = {"ms": rows, "claims": [asdict(claim)]}
    command = command_of("failover_pause", arguments)
    print(f"written: {write_result('failover-pause', command, body).name}")


if __name__ == "__main__":
    main()
