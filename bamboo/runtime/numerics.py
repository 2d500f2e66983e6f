"""The facts of a machine that decide bits: same facts, same bits; other facts, no promise.

Rule: a process that computes anything of a run calls `prepare` first.
"""

import ctypes
from typing import Any

import torch

from bamboo.config.tree import ClusterConfig
from bamboo.runtime.optimizer import KERNEL

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of mallopt(3), glibc."""
_MAPPED_ALONE_FROM_BYTES = 32 << 20
"""The most that glibc takes: what is larger goes back to the system when it is freed."""
_KEPT_AT_THE_TOP_BYTES = 1 << 30


def prepare(cluster: ClusterConfig) -> None:
    """Fix this process's thread count and let torch refuse operations with free order of sums."""
    torch.set_num_threads(cluster.threads)
    # The other name of this switch imports the compiler first: a second or more in every worker.
    torch.set_deterministic_debug_mode("error")
    # Filling every empty tensor would cost time and change nothing: all memory is written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Let the C library keep what a step frees for the next one, which asks for the same again:
    given back, every page of it is faulted in and cleared once more. Nothing where it is another
    library than glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MAPPED_ALONE_FROM_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_AT_THE_TOP_BYTES)


def local_numerics(cluster: ClusterConfig) -> dict[str, Any]:
    """The numerics of a run on this machine. The virtual device computes on the CPU."""
    return {
        "torch": str(torch.__version__),
        "device": "cpu",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": cluster.threads,
        "optimizer": KERNEL,
    }
