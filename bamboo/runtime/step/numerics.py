"""The facts of a machine that decide bits: the same facts give the same bits, others promise
nothing.

Rule: a process that computes anything of a run calls `prepare` first.
"""

from typing import Any

import torch

from bamboo.config.tree import ClusterConfig
from bamboo.runtime.device.host_memory import keep_freed_memory
from bamboo.runtime.step.optimizer import KERNEL


def prepare(cluster: ClusterConfig) -> None:
    """Fix the process's thread count and let torch refuse operations whose sums have no fixed
    order."""
    torch.set_num_threads(cluster.threads)
    # The other name of this switch imports the compiler, which costs every worker a second or more.
    torch.set_deterministic_debug_mode("error")
    # Filling every empty tensor would cost time and change nothing, because all memory is written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    keep_freed_memory()


def local_numerics(cluster: ClusterConfig) -> dict[str, Any]:
    """The numerics of a run on this machine. The virtual device computes on the CPU."""
    return {
        "torch": str(torch.__version__),
        "device": "cpu",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": cluster.threads,
        "optimizer": KERNEL,
    }
