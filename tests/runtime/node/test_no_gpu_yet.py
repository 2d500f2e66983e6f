"""A process from which workers are forked uses no GPU: a fork of one that did could not use it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(100)

SCRIPT = """
import torch

def used(*_, **__):
    raise AssertionError("a GPU is used before the fork")

torch.cuda._lazy_init = torch.cuda.is_available = torch.cuda.device_count = used
torch.cuda.current_device = torch.cuda.get_device_properties = used

import bamboo.runtime.check.preflight
import bamboo.runtime.node.worker
from bamboo.config.tree import ClusterConfig
from bamboo.runtime.device.global_settings import settings
from bamboo.runtime.step.numerics import prepare

prepare(ClusterConfig(device="cuda"))
settings()
print("none")
"""


def test_what_is_loaded_before_a_fork_uses_no_gpu() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.stdout == "none\n", done.stderr
