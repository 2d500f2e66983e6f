"""The host's memory, which costs most when it is touched for the first time.

Rule: what a process has touched it keeps, and a node touches what it will need before it joins,
when nobody waits for it.
"""

import ctypes
from pathlib import Path

import torch

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
"""Of mallopt(3), glibc."""
_NEVER = -1
SHARE = 8
"""A process touches at most this part of what is free: others may begin at the same time."""


def keep_freed_memory() -> None:
    """Let the C library keep what a step frees for the next one, which asks for the same again:
    given back, every page of it is faulted in and cleared once more. Nothing where it is another
    library than glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # A mapping of its own goes back when it is freed, and so does the heap of another arena.
        mallopt(_MMAP_MAX, 0)
        mallopt(_ARENA_MAX, 1)
        mallopt(_TRIM_THRESHOLD, _NEVER)


def touch(size_bytes: int) -> int:
    """Have so many bytes faulted in, of which the first that are asked for are given out later, or
    a part of what is free, if that is less. How many; 0 where the system does not say what is free.
    Needs `keep_freed_memory`."""
    try:
        size_bytes = min(size_bytes, free_bytes() // SHARE)
    except OSError:
        return 0
    torch.empty(size_bytes, dtype=torch.uint8).zero_()
    return size_bytes


def free_bytes(root: Path = Path("/")) -> int:
    """What processes can still have, of the machine's memory and of what the control group of this
    one allows. Raises OSError on another system than Linux."""
    lines = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    own = (root / "proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
    group = root / "sys/fs/cgroup" / own
    try:
        most, taken = (group / "memory.max").read_text(), (group / "memory.current").read_text()
    except OSError:
        return free  # the root group, or no version 2: none that is known
    return free if most.strip() == "max" else max(0, min(free, int(most) - int(taken)))
