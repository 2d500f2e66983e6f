"""One replica of torchft: the whole model, a share of the batch, steps that all commit or none.

Rule: with `active` > 0 the mode is FIXED_WITH_SPARES: so many replicas share the global batch in
every step, and a spare follows with a gradient of zeros. Otherwise every replica brings `each`
microbatches, and the batch is as large as there are replicas. The quorum is requested while the
step is computed, as torchft advises; all of its arithmetic is part of the step's time.
"""

import json
import os
import time
from datetime import timedelta
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo
from torchft.manager import WorldSizeMode

from benchmarks.peers.task import Task, pace

DEADLINE = timedelta(seconds=60)


class Replica:
    """One process that trains."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self.task = Task(config["job"])
        self._nothing = torch.zeros_like(self.task.gradient(0, range(1)))
        self._compute_s = 0.0
        active = int(config["active"])
        self._store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=timedelta(seconds=config["collective_s"])),
            load_state_dict=lambda given: self.task.load(given["tensors"]),
            state_dict=lambda: {"tensors": [t.clone() for t in self.task.state()]},
            min_replica_size=max(1, active),
            timeout=DEADLINE,
            replica_id=config["id"],
            store_addr="localhost",
            store_port=self._store.port,
            rank=0,
            world_size=1,
            hostname="localhost",
            init_sync=False,
            world_size_mode=WorldSizeMode.FIXED_WITH_SPARES if active else WorldSizeMode.DYNAMIC,
            lighthouse_addr=config["lighthouse"],
        )

    def attempt(self, record: TextIO) -> None:
        """One step, which may not be committed."""
        begun_s, manager, each = time.monotonic(), self.manager, int(self._config["each"])
        manager.start_quorum()
        if manager.current_step() < self._config["slow_steps"]:
            pace(begun_s, self._config["step_s"] - self._compute_s)
        manager.wait_quorum()
        rank, count = manager.participating_rank(), manager.num_participants()
        flat, self._compute_s = self._nothing.clone(), 0.0
        if rank is not None:
            computing_s = time.monotonic()
            flat = self.task.gradient(manager.current_step(), range(rank * each, (rank + 1) * each))
            self._compute_s = time.monotonic() - computing_s
        manager.allreduce(flat).wait()
        step = manager.current_step()
        done = manager.should_commit()
        if done:
            self.task.take(step, flat * count)
        at_s = time.monotonic()
        digest = self.task.digest() if done else ""
        self._compute_s += time.monotonic() - at_s  # our own check is not part of its step's time
        found = {
            "step": step,
            "committed": bool(done),
            "at_s": at_s,
            "microbatches": count * each,
            "digest": digest,
        }
        record.write(json.dumps(found) + "\n")
        record.flush()


def main(config: dict[str, Any]) -> int:
    """Train until killed, or until `steps` are committed and a new one begins."""
    parent = os.getppid()
    replica = Replica(config)
    with open(config["record"], "a", encoding="utf-8") as record:
        while os.getppid() == parent and replica.manager.current_step() < config["steps"]:
            replica.attempt(record)
    return 0
