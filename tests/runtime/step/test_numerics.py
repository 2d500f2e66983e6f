"""A process that is prepared keeps the memory that a step frees for the next one."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from bamboo.config.tree import ClusterConfig
from bamboo.runtime.step.numerics import prepare

def step():
    held = [torch.zeros(2 << 20) for _ in range(4)] + [torch.zeros(16 << 20)]

def faults():
    found = []
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        step()
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(found)  # now and then the heap grows

as_it_comes = faults()
prepare(ClusterConfig())
print(as_it_comes, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc: mallopt")
def test_what_a_step_frees_is_there_for_the_next_one() -> None:
    # 96 MiB a step, 64 of them in one piece: 24,576 pages of 4 KiB, or 48 huge ones.
    # What glibc keeps by itself follows from what else was freed: here it is told to keep nothing.
    env = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}
    words = [sys.executable, "-c", FAULTS]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=100, env=env)
    as_it_comes, prepared = map(int, done.stdout.split())
    assert 10 * prepared < as_it_comes
