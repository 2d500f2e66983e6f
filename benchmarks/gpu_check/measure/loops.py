"""One plain training loop, as one would write it by hand: what a run of one node is held against.

Rule: it shares layers, data and loss with the runtime, and nothing of its executor, optimizer or
keyed chance. Its microbatches, batch and precision are the job's, and where it is strict, the
settings of torch are a worker's, so that both run the same kernels.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.gpu_check.measure.device import wait


def loop(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Seconds of each step, once the first few are over. `strict`: as a worker is prepared.
    `compiled`: the whole forward by torch.compile."""
    import torch
    from torch import nn

    from bamboo.config.load import load_job
    from bamboo.data.dataset import load_data
    from bamboo.models import build_layer, build_model
    from bamboo.runtime.step.numerics import prepare

    job, device = load_job(asked["job"]), asked["device"]
    if asked["strict"]:
        prepare(replace(job.cluster, device=device))
    else:
        torch.set_num_threads(job.cluster.threads)
        torch.backends.cudnn.benchmark = True
    data, workload = load_data(job), build_model(job)
    count = range(len(workload.layers))
    model = nn.Sequential(*(build_layer(workload, i, job.train.seed) for i in count)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    microbatches = job.train.batch // job.train.microbatch
    tokens = job.train.batch * job.model.context
    bf16 = asked["bf16"]

    def of_microbatch(inputs: Any, targets: Any) -> Any:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=bf16):
            output = model(inputs)
        return workload.loss(output, targets) / tokens

    run: Callable[[Any, Any], Any] = of_microbatch
    if asked["compiled"]:
        run = torch.compile(of_microbatch)
    seconds, losses = [], []
    end_s = time.perf_counter() + asked["limit_s"]
    for step in range(asked["steps"]):
        begin_s = time.perf_counter()
        total = torch.zeros((), device=device)
        for index in range(microbatches):
            (inputs,), (targets,) = data.microbatch(step, index)
            loss = run(inputs.to(device), targets.to(device))
            loss.backward()
            total += loss.detach()
        if job.train.clip_norm > 0:
            nn.utils.clip_grad_norm_(model.parameters(), job.train.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(total))
        wait(device)
        seconds.append(time.perf_counter() - begin_s)
        if time.perf_counter() > end_s and len(seconds) > asked["skipped"]:
            break
    cuda = device == "cuda"
    return {
        "step_s": seconds[asked["skipped"] :],
        "tokens": tokens,
        "last_loss": losses[-1],
        "parameters": sum(p.numel() for p in model.parameters()),
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else 0,
        "reserved_bytes": torch.cuda.max_memory_reserved() if cuda else 0,
    }
