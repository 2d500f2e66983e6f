"""The most memory that a node of one stage takes, by torch's own allocator."""

import random
import time
from collections.abc import Mapping
from typing import Any


def memory(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Train a job of one node with the runtime's trainer, in this process; the peaks of bytes that
    were allocated and reserved on the card, 0 without one, and the seconds that it took."""
    import torch

    from bamboo.config.load import load_job
    from testbed.simulated import World

    job = load_job(asked["job"])
    world = World(job, random.Random(1))
    begin_s = time.perf_counter()
    world.run(until=lambda: False)
    if world.state.outcome != "done":
        raise SystemExit(f"the run ended {world.state.outcome}: {world.state.sentence}")
    cuda = asked["device"] == "cuda"
    return {
        "allocated": torch.cuda.max_memory_allocated() if cuda else 0,
        "reserved": torch.cuda.max_memory_reserved() if cuda else 0,
        "seconds": time.perf_counter() - begin_s,
    }
