"""A process from which workers are forked uses no GPU: a fork of one that did could not use it."""

import subprocess
import sys
from pathlib import Path

import pytest

from bamboo import wiring
from tests.jobs import tiny_job

pytestmark = pytest.mark.timeout(100)

SCRIPT = """
import importlib, inspect, re, sys
from pathlib import Path

import torch

declared = (Path(torch.__file__).parent / "_C" / "__init__.pyi").read_text()
own = set(re.findall(r"^def (_(?:cuda|nccl|accelerator)_\\w+)", declared, re.MULTILINE))
found = {name for name in dir(torch._C) if name.startswith(("_cuda_", "_nccl_", "_accelerator_"))}

def raising(name):
    def used(*_, **__):
        raise AssertionError(f"a GPU is used before the fork: {name}")
    return used

assert len(own) > 50 and {"_cuda_init", "_cuda_getDeviceCount"} <= own
for name in own | found:
    if not inspect.isclass(getattr(torch._C, name, None)):
        setattr(torch._C, name, raising(name))
python = ("init", "_lazy_init", "is_available", "device_count", "_device_count_nvml", "cudart")
for name in python:
    setattr(torch.cuda, name, raising(name))

for name in sys.argv[1:]:
    importlib.import_module(name)

from bamboo.config.tree import ClusterConfig
from bamboo.runtime.device.global_settings import settings
from bamboo.runtime.step.numerics import prepare

prepare(ClusterConfig(device="cuda"))
settings()
assert not torch.cuda.is_initialized()
assert not re.search(r"libcuda\\.so|/dev/nvidia", Path("/proc/self/maps").read_text())

for use in (
    lambda: torch.zeros(1, device="cuda"),
    lambda: torch.zeros(1).cuda(),
    torch.cuda.current_device,
    torch.cuda.get_device_properties,
    torch.cuda.get_device_name,
    torch.cuda.mem_get_info,
    torch.cuda.synchronize,
    torch.cuda.is_bf16_supported,
    torch.cuda.current_stream,
    torch.accelerator.device_count,
    torch._C._cuda_getDeviceCount,
):
    try:
        use()
    except AssertionError as error:
        assert "before the fork" in str(error), (use, error)
    else:
        raise SystemExit(f"{use} is not seen")
print("none")
"""


def test_what_is_loaded_before_a_fork_uses_no_gpu(tmp_path: Path) -> None:
    loaded = (*wiring.preloaded(tiny_job(tmp_path)), "bamboo.runs.segment", "testbed.entry")
    assert "bamboo.wiring.worker" in loaded
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *loaded],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.stdout == "none\n", done.stderr
