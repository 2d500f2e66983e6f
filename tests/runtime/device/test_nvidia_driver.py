"""What is said where torch sees no GPU: in one line, with the driver, the build, and what to do."""

from pathlib import Path

import pytest
import torch

from bamboo.config.tree import ClusterConfig
from bamboo.core.events import FaultScope
from bamboo.errors import InputError, NoDevice
from bamboo.runtime.device import nvidia_driver
from bamboo.runtime.device.nvidia_driver import driver_here, too_old, torch_here
from bamboo.runtime.device.staging import place_of
from bamboo.runtime.node.faults import scope_of

CLOSED = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)
"""
OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@dgx)
GCC version:  gcc version 13.3.0
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the kernel's; torch sees no GPU."""
    monkeypatch.setattr(nvidia_driver, "VERSION", tmp_path / "version")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")
    return tmp_path / "version"


@pytest.mark.parametrize(
    ("text", "driver"), [(CLOSED, "535.104.05"), (OPEN, "580.65.06"), ("nothing of it\n", "")]
)
def test_the_driver_is_read_from_the_kernels_file(file: Path, text: str, driver: str) -> None:
    assert driver_here() == ""
    file.write_text(text)
    assert driver_here() == driver


@pytest.mark.parametrize(
    ("text", "cuda", "says"),
    [
        (
            CLOSED,
            "13.0",
            "the NVIDIA driver 535.104.05 is older than 580, which torch 2.13.0+cu130 for CUDA "
            "13.0 needs; install driver 580 or later, or a build of torch for CUDA 12",
        ),
        (
            CLOSED,
            "12.8",
            "torch 2.13.0+cu130 for CUDA 12.8 sees no CUDA GPU with the NVIDIA driver 535.104.05; "
            "see what nvidia-smi and CUDA_VISIBLE_DEVICES say, or give --set cluster.device=cpu",
        ),
        (
            OPEN,
            None,
            "torch 2.13.0+cu130 is a build without CUDA, and the NVIDIA driver is 580.65.06; "
            "install a build with CUDA (BAMBOO_ACCELERATOR=cuda make setup)",
        ),
        (
            "",
            "13.0",
            "torch 2.13.0+cu130 sees no CUDA GPU, and no NVIDIA driver is loaded; "
            "run it where there is one, or give --set cluster.device=cpu",
        ),
    ],
)
def test_a_job_for_a_gpu_that_is_not_seen_is_refused_with_the_reason(
    file: Path, monkeypatch: pytest.MonkeyPatch, text: str, cuda: str | None, says: str
) -> None:
    if text:
        file.write_text(text)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(NoDevice) as caught:
        place_of(ClusterConfig(device="cuda"))
    assert str(caught.value) == f"cluster.device is 'cuda', and {says}"
    assert isinstance(caught.value, InputError)
    assert scope_of(caught.value) is FaultScope.NODE, "another machine may have one"


def test_a_driver_serves_builds_of_its_own_major_version_and_of_earlier_ones() -> None:
    served = {
        (driver, cuda): not too_old(driver, torch="2", cuda=cuda)
        for driver in ("450.51.06", "525.60.13", "570.86.10", "580.65.06", "600.1")
        for cuda in ("11.8", "12.8", "13.0", "14.1", "")
    }
    assert [pair for pair, is_served in served.items() if not is_served] == [
        ("450.51.06", "12.8"),
        ("450.51.06", "13.0"),
        ("525.60.13", "13.0"),
        ("570.86.10", "13.0"),
    ]
    assert too_old("390.1", torch="2", cuda="11.8")[1] == "install driver 450 or later"


def test_the_build_of_torch_is_known_without_torch() -> None:
    assert torch_here() == (torch.__version__, torch.version.cuda or "")
