"""A process that is prepared keeps the memory that a step frees for the next one."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from bamboo.config.tree import ClusterConfig
from bamboo.runtime.numerics import prepare

if sys.argv[1] == "prepared":
    prepare(ClusterConfig())

def step():
    held = [torch.zeros(2 << 20) for _ in range(16)] + [torch.zeros(16 << 20)]

for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    # What glibc keeps by itself follows from what else was freed: here it is told to keep nothing.
    env = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}
    words = [sys.executable, "-c", FAULTS, how]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=100, env=env)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc: mallopt")
def test_what_a_step_frees_is_there_for_the_next_one() -> None:
    # 192 MiB a step, 64 of them in one piece: 49,152 pages of 4 KiB, or 96 huge ones.
    assert 10 * faults("prepared") < faults("as it comes")
