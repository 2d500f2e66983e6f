"""One worker of torchrun: the whole model, a share of the batch, a checkpoint every few steps.

Rule: torchrun's agents start its processes, with everything that a start takes, and a new process
continues from the newest checkpoint. A step is committed when the sum over all workers was taken.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from benchmarks.peers.processes import die_with_parent
from benchmarks.peers.task import Task, pace


def main(config: dict[str, Any]) -> int:
    """Train until killed, or until `steps` are done."""
    die_with_parent()
    task, kept = Task(config["job"]), Path(config["checkpoint"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=config["collective_s"]))
    rank, each = dist.get_rank(), int(config["each"])
    step = 0
    if kept.exists():
        step = task.read(kept)
    compute_s = 0.0
    with Path(config["records"], f"w{os.getpid()}.jsonl").open("a", encoding="utf-8") as record:
        while step < config["steps"]:
            begun_s = time.monotonic()
            if step < config["slow_steps"]:
                pace(begun_s, config["step_s"] - compute_s)
            computing_s = time.monotonic()
            flat = task.gradient(step, range(rank * each, (rank + 1) * each))
            compute_s = time.monotonic() - computing_s
            dist.all_reduce(flat)
            task.take(step, flat)
            step += 1
            if rank == 0:
                said = {"step": step - 1, "at_s": time.monotonic(), "digest": task.digest()}
                record.write(json.dumps(said) + "\n")
                record.flush()
            if rank == 0 and step % config["every"] == 0:
                new = kept.with_suffix(".new")
                task.write(new, step)
                new.replace(kept)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
