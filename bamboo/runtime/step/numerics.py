"""The facts of a machine that decide bits: the same facts give the same bits, others promise
nothing.

Rule: a process that computes anything of a run calls `prepare` first.
"""

import os
from typing import Any

import torch

from bamboo.config.tree import ClusterConfig, JobConfig
from bamboo.errors import NoDevice
from bamboo.planner.profiles.gpus import BF16, FP32, LEAST_BF16
from bamboo.runtime.device.host_memory import keep_freed_memory
from bamboo.runtime.device.staging import place_of
from bamboo.runtime.optim.kernels import kernel_name

BLAS_WORKSPACE = ":4096:8"
"""By cuBLAS's documentation, one of the two sizes with which its results are reproducible."""


def prepare(cluster: ClusterConfig) -> None:
    """Fix the process's thread count and let torch refuse operations whose sums have no fixed
    order. It touches no GPU, because a process that has used one cannot be forked."""
    torch.set_num_threads(cluster.threads)
    if cluster.device == "cuda":
        _prepare_cuda()
    # The other name of this switch imports the compiler, which costs every worker a second or more.
    torch.set_deterministic_debug_mode("error")
    # Filling every empty tensor would cost time and change nothing, because all memory is written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    keep_freed_memory()


def _prepare_cuda() -> None:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = BLAS_WORKSPACE
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    # cuDNN's attention has no backward of fixed order.
    torch.backends.cuda.enable_cudnn_sdp(False)


def local_numerics(job: JobConfig) -> dict[str, Any]:
    """The numerics of a run on this machine. The virtual device computes on the CPU. Raises
    NoDevice where the job wants a GPU and there is none, or none with its precision."""
    cluster = job.cluster
    common = {
        "torch": str(torch.__version__),
        "threads": cluster.threads,
        "optimizer": kernel_name(job.train.optimizer),
    }
    if cluster.device == "cuda":
        return common | _of_gpu(place_of(cluster), job.train.precision)
    return common | {
        "device": "cpu",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        **_of_bf16(job.train.precision),
    }


def _of_gpu(place: torch.device, precision: str) -> dict[str, Any]:
    found = torch.cuda.get_device_properties(place)
    if precision == BF16 and (found.major, found.minor) < LEAST_BF16:
        raise NoDevice(
            f"train.precision = '{BF16}' begins at sm_{LEAST_BF16[0]}{LEAST_BF16[1]} and the "
            f"{found.name} of this machine is sm_{found.major}{found.minor}",
            f'take "{FP32}", or a machine with a newer card',
        )
    return {
        "device": "cuda",
        "gpu": found.name,
        "capability": f"{found.major}.{found.minor}",
        "multiprocessors": found.multi_processor_count,
        "cuda": str(torch.version.cuda),
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "blas_workspace": BLAS_WORKSPACE,
        "attention": "flash, efficient, math",
    }


def _of_bf16(precision: str) -> dict[str, Any]:
    """oneDNN takes other kernels for bfloat16 where the processor, or a variable of its own, lets
    it."""
    if precision != BF16:
        return {}
    return {
        "amx": torch.cpu._is_amx_tile_supported(),
        "onednn_isa": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
    }
