"""The digests of a calm run: every loss, parameter and moment, by the project's own reference."""

import hashlib
import time
from collections.abc import Mapping
from typing import Any

SHUFFLED = 64
"""Allocations before the run, every second of which is given back."""


def calm(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Train the job that is asked for; digests by tensor and of all together, and the losses."""
    import torch

    from bamboo.checkpoint.final import tensor_sha256
    from bamboo.config.load import load_job
    from bamboo.data.dataset import load_data
    from bamboo.models import build_model
    from bamboo.runtime.check.reference import CalmRun
    from bamboo.runtime.step.numerics import prepare

    job = load_job(asked["job"])
    prepare(job.cluster)
    junk = [] if not asked["shuffled"] else _scatter(job.cluster.device)
    data = load_data(job)
    run = CalmRun(job, build_model(job), data)
    losses, seconds = [], []
    for _ in range(job.train.steps):
        begin_s = time.perf_counter()
        losses.append(run.step().hex())
        seconds.append(time.perf_counter() - begin_s)
    tensors = {name: tensor.cpu() for name, tensor in run.tensors().items()}
    places = {str(tensor.device) for tensor in run.tensors().values()}
    digests = {name: tensor_sha256(tensor) for name, tensor in tensors.items()}
    whole = hashlib.sha256()
    for line in [*losses, *(f"{name} {digests[name]}" for name in sorted(digests))]:
        whole.update(line.encode() + b"\n")
    del junk
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return {
        "digest": whole.hexdigest(),
        "losses": losses,
        "tensors": digests,
        "devices": sorted(places),
        "data": data.digest,
        "step_s": seconds,
        "peak_bytes": peak,
    }


def _scatter(device: str) -> list[Any]:
    """Allocations of odd sizes with gaps between them, so that later ones lie elsewhere."""
    import torch

    kind = "cuda" if device == "cuda" else "cpu"
    held = [torch.empty(1 + 977 * n * n, dtype=torch.uint8, device=kind) for n in range(SHUFFLED)]
    del held[::2]
    return held
