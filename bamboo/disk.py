"""Whether a disk has room for what a local cloud writes: its store ends when there is none.

Rule: a store is started only where it can write; otherwise it would end with its next record again.
"""

import os
from pathlib import Path

ROOM_BYTES = 1 << 20
"""A disk with less free space counts as full."""


def free_bytes(folder: Path) -> int:
    """What this user may still write on the disk of `folder`."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def full_disk(folder: Path) -> str:
    """A sentence where the disk of `folder` is full, with what to do; "" where it is not."""
    free = free_bytes(folder)
    if free >= ROOM_BYTES:
        return ""
    return f"the disk of {folder} is full, {free} bytes are left; make room there"
