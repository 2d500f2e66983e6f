"""A process that is prepared keeps the memory that a step frees for the next one."""

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
    held = [torch.zeros(2 << 20) for _ in range(16)]

for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    words = [sys.executable, "-c", FAULTS, how]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc: mallopt")
def test_what_a_step_frees_is_there_for_the_next_one() -> None:
    # 128 MiB a step: 32,768 pages of 4 KiB. More than glibc keeps at most by itself.
    assert faults("prepared") < 1000
    assert faults("as it comes") > 50_000
