"""Our executor against torch's Schedule1F1B: same model, same data shapes, same box, interleaved.

    python -m benchmarks.executor_vs_torch [--rounds 9] [--steps 10]

Four processes of one thread each; GPT of 8 blocks, width 256, 128 tokens, 8 microbatches of 4
sequences, dropout 0.1, fused AdamW on both sides. Ours, redundancy off, includes what the promise
costs: keyed randomness, the squares for clipping, the loss record. The figure is wall time per
step on contended cores, so only ratios of neighbouring rounds count: torch / ours, above 1 we are
faster. `stash` and `eager` stand beside it.
"""

import argparse
import itertools
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from bamboo.config.tree import (
    ClusterConfig,
    DataConfig,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from bamboo.data.dataset import load_data
from bamboo.models import build_layer, build_model
from benchmarks.local_run import SKIPPED_STEPS, step_times_s
from benchmarks.report import median_and_quartiles, paired_ratios, write_result

STAGES = 4
MICROBATCHES = 8
CUT = (0, 3, 5, 7, 10)
"""Embedding + 2 blocks, 2, 2, 2 blocks + head."""


def job(mode: str, steps: int) -> JobConfig:
    """The same job for every variant."""
    return JobConfig(
        model=ModelConfig(layers=8, width=256, heads=8, context=128, dropout=0.1),
        data=DataConfig(max_bytes=2_000_000),
        train=TrainConfig(steps=steps, batch=4 * MICROBATCHES, microbatch=4),
        cluster=ClusterConfig(stages=STAGES, cut=CUT[:-1], redundancy=mode),
    )


def torch_rank(rank: int, folder: str, steps: int, times: Any) -> None:
    """One process of the torch baseline; rank 0 puts its step times into `times`."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", STAGES)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=STAGES)
    config = job("off", steps)
    spec, data = build_model(config), load_data(config)
    module = nn.Sequential(
        *(build_layer(spec, i, config.train.seed) for i in range(CUT[rank], CUT[rank + 1]))
    )
    tokens = config.train.batch * config.model.context
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return spec.loss(output, target) / tokens

    stage = PipelineStage(module, rank, STAGES, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss, scale_grads=False)
    found = []
    for step in range(steps):
        start_s = time.perf_counter()
        batch = [data.microbatch(step, m) for m in range(MICROBATCHES)]
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(torch.cat([inputs for inputs, _ in batch]))
        elif rank == STAGES - 1:
            schedule.step(target=torch.cat([targets for _, targets in batch]), losses=losses)
            sum(float(x.detach()) for x in losses)
        else:
            schedule.step()
        optimizer.step()
        found.append(time.perf_counter() - start_s)
    if rank == 0:
        times.put(found[SKIPPED_STEPS + 1 :])
    dist.barrier()
    dist.destroy_process_group()


def torch_times_s(steps: int) -> list[float]:
    """Step times of one run of the baseline."""
    context = multiprocessing.get_context("fork")
    times = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=torch_rank, args=(rank, folder, steps, times))
            for rank in range(STAGES)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(timeout=600)
        if any(process.exitcode != 0 for process in ranks):
            raise RuntimeError(f"torch ranks ended with {[p.exitcode for p in ranks]}")
        return list(times.get())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    variants = ("torch", "off", "stash", "eager")
    found: dict[str, list[float]] = {variant: [] for variant in variants}
    for number in range(arguments.rounds):
        # The order turns, so that no variant always follows the same one.
        shift = number % len(variants)
        for variant in itertools.chain(variants[shift:], variants[:shift]):
            times = (
                torch_times_s(arguments.steps)
                if variant == "torch"
                else step_times_s(job(variant, arguments.steps))[0]
            )
            found[variant].append(1e3 * median_and_quartiles(times)[0])
        row = "  ".join(f"{v} {found[v][-1]:7.0f}" for v in variants)
        print(f"round {number + 1}: {row} ms/step  load {os.getloadavg()[0]:.1f}", flush=True)
    rows = {}
    print(f"{'variant':8} {'ms/step':>8} {'torch / it: median (quartiles)':>32}")
    for variant in variants:
        ratio = median_and_quartiles(paired_ratios(found["torch"], found[variant]))
        middle = median_and_quartiles(found[variant])[0]
        print(f"{variant:8} {middle:8.0f} {ratio[0]:14.3f} ({ratio[1]:.3f}-{ratio[2]:.3f})")
        rows[variant] = {"ms_per_step": found[variant], "torch_over_it": ratio}
    command = f"python -m benchmarks.executor_vs_torch --rounds {arguments.rounds}"
    path = write_result("executor-vs-torch", command, {"variants": rows})
    print(f"written: {Path(path).name}")


if __name__ == "__main__":
    main()
