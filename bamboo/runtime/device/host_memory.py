"""Keeps and touches the host's memory, which costs most when it is touched for the first time.

Rule: a process keeps the memory that it has touched, and a node touches what it will need before it
joins, when nobody waits for it.
"""

import ctypes
from pathlib import Path

import torch

_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_ARENA_MAX = -8
"""Options of mallopt(3) in glibc."""
_NEVER = -1
SHARE = 8
"""A process touches at most 1/SHARE of the free memory, since others may start at the same time."""


def keep_freed_memory() -> None:
    """Let the C library keep what a step frees for the next step, which asks for the same again.
    Memory that is given back is faulted in and cleared again, page by page. Does nothing where
    the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # A separate mapping goes back when it is freed, and so does the heap of another arena.
        mallopt(_MMAP_MAX, 0)
        mallopt(_ARENA_MAX, 1)
        mallopt(_TRIM_THRESHOLD, _NEVER)


def touch(size_bytes: int) -> int:
    """Have `size_bytes` faulted in, or a part of what is free if that is less; the pages serve the
    next allocations. Returns how many bytes were touched, 0 where the system does not say what is
    free. Needs `keep_freed_memory`."""
    try:
        size_bytes = min(size_bytes, free_bytes() // SHARE)
    except OSError:
        return 0
    torch.empty(size_bytes, dtype=torch.uint8).zero_()
    return size_bytes


def free_bytes(root: Path = Path("/")) -> int:
    """How many bytes processes can still take, by the machine's memory and by the limit of this
    process's control group. Raises OSError on systems other than Linux."""
    lines = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    own = (root / "proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
    group = root / "sys/fs/cgroup" / own
    try:
        most, taken = (group / "memory.max").read_text(), (group / "memory.current").read_text()
    except OSError:
        return free  # the root group, or not version 2: no limit is known
    return free if most.strip() == "max" else max(0, min(free, int(most) - int(taken)))
