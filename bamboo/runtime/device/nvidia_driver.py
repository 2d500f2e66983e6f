"""Whether this machine's NVIDIA driver serves the build of torch, without a call of CUDA.

Rule: nothing here imports torch or touches a GPU, so `doctor`, a fork server and the process that
finds no GPU may all ask. The kernel says its driver in a file, and torch its CUDA in another.
"""

import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

VERSION = Path("/proc/driver/nvidia/version")
LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""Major version of CUDA -> the oldest driver that every build for it runs on (docs.nvidia.com/
deploy/cuda-compatibility/minor-version-compatibility.html, read 2026-11-27)."""
_DRIVER = re.compile(r"^NVRM version:.*?\s(\d{3,}\.\d+(?:\.\d+)*)", re.MULTILINE)
_CUDA = re.compile(r"^cuda\b[^=\n]*=\s*'([\d.]+)'", re.MULTILINE)
ELSEWHERE = "run it where there is one, or give --set cluster.device=cpu"
LOOK = "see what nvidia-smi and CUDA_VISIBLE_DEVICES say, or give --set cluster.device=cpu"


def driver_here() -> str:
    """The version of the driver that is loaded, such as `580.65.06`; "": none is."""
    try:
        found = _DRIVER.search(VERSION.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return "" if found is None else found[1]


def torch_here() -> tuple[str, str]:
    """(version, CUDA version) of the torch that is installed; the second is "" for a build without
    CUDA. Raises PackageNotFoundError where there is no torch."""
    installed = metadata.distribution("torch")
    try:
        text = Path(str(installed.locate_file("torch/version.py"))).read_text(encoding="utf-8")
    except OSError:
        return installed.version, ""
    found = _CUDA.search(text)
    return installed.version, "" if found is None else found[1]


def too_old(driver: str, *, torch: str, cuda: str) -> Sequence[str]:
    """(problem, remedy) where this driver is older than the build of torch needs; () where it is
    not, or where either version is unknown."""
    have, least = _major(driver), LEAST_DRIVER.get(_major(cuda), 0)
    if not have or have >= least:
        return ()
    served = [major for major, oldest in LEAST_DRIVER.items() if oldest <= have]
    other = f", or a build of torch for CUDA {max(served)}" if served else ""
    return (
        f"the NVIDIA driver {driver} is older than {least}, which torch {torch} for CUDA {cuda} "
        "needs",
        f"install driver {least} or later{other}",
    )


def no_gpu(*, torch: str, cuda: str) -> Sequence[str]:
    """(problem, remedy): why this build of torch sees no GPU on this machine."""
    driver = driver_here()
    if not driver:
        return f"torch {torch} sees no CUDA GPU, and no NVIDIA driver is loaded", ELSEWHERE
    if not cuda:
        problem = f"torch {torch} is a build without CUDA, and the NVIDIA driver is {driver}"
        return problem, "install a build with CUDA (BAMBOO_ACCELERATOR=cuda make setup)"
    problem = f"torch {torch} for CUDA {cuda} sees no CUDA GPU with the NVIDIA driver {driver}"
    return too_old(driver, torch=torch, cuda=cuda) or (problem, LOOK)


def _major(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdecimal() else 0
