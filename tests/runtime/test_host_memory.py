"""A process that is about to join has touched the memory that it will need."""

import platform
import subprocess
import sys

import pytest

from bamboo.runtime import host_memory

TOUCHED = """
import resource, sys
import torch
from bamboo.runtime.host_memory import keep_freed_memory, touch

keep_freed_memory()
if sys.argv[1] == "touched":
    assert touch(160 << 20) == 160 << 20
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
held = [torch.zeros(1 << 20) for _ in range(32)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    words = [sys.executable, "-c", TOUCHED, how]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=100)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc: mallopt")
def test_what_was_touched_is_given_out_first() -> None:
    # 128 MiB: 32,768 pages of 4 KiB, or 64 huge ones.
    assert 10 * faults("touched") < faults("as it comes")


def test_a_process_leaves_most_of_what_is_free_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 8 << 20)
    assert host_memory.touch(1 << 40) == 1 << 20
    assert host_memory.touch(1 << 10) == 1 << 10
