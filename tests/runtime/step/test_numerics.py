"""A process that is prepared keeps the memory that a step frees; a machine names its GPU."""

import os
import platform
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bamboo.config.tree import ClusterConfig, JobConfig
from bamboo.errors import NoDevice
from bamboo.runtime.step.numerics import local_numerics

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


@pytest.mark.parametrize(("minor", "major"), [(5, 7), (0, 8), (0, 9)])
def test_bf16_is_refused_on_a_card_without_it(
    monkeypatch: pytest.MonkeyPatch, minor: int, major: int
) -> None:
    card = SimpleNamespace(name="card", major=major, minor=minor, multi_processor_count=40)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    job = JobConfig(cluster=ClusterConfig(device="cuda"))
    low = replace(job, train=replace(job.train, precision="bf16"))
    assert local_numerics(job)["capability"] == f"{major}.{minor}"
    if major >= 8:
        assert local_numerics(low) == local_numerics(job)
        return
    with pytest.raises(NoDevice) as caught:
        local_numerics(low)
    assert str(caught.value) == (
        "cluster.device is 'cuda', and train.precision = 'bf16' begins at sm_80 and the card of "
        'this machine is sm_75; take "fp32", or a machine with a newer card'
    )
