"""Torch's settings that hold for a whole process, and whether the user's code changes them.

Rule: a layer must compute the same whichever layers share its process, so no layer may change a
setting that holds for all of them. What the user's file sets while it is loaded holds in every
process of the run and is allowed, except for the settings that the run itself sets and attests.
"""

from collections.abc import Callable, Mapping

import torch

Settings = Mapping[str, object]

_LEAST_NORMAL = 1.1754943508222875e-38


def _matrix_precisions() -> tuple[str, str]:
    """Those of float32 products on CPU and GPU. `torch.get_float32_matmul_precision` raises where
    they were set one by one."""
    cpu = str(torch.backends.mkldnn.matmul.fp32_precision)  # type: ignore[attr-defined]
    gpu = str(torch.backends.cuda.matmul.fp32_precision)
    return cpu.replace("none", "ieee"), gpu.replace("none", "ieee")


_SETTINGS: Mapping[str, tuple[Callable[[], object], str]] = {
    "torch's default dtype": (torch.get_default_dtype, "give each tensor its dtype"),
    "torch's default device": (torch.get_default_device, "leave layers on the CPU"),
    "torch's number of threads": (torch.get_num_threads, "set cluster.threads in the job"),
    "torch's deterministic mode": (
        torch.get_deterministic_debug_mode,
        "leave it: sums of free order would make bits vary",
    ),
    "whether torch records gradients": (
        torch.is_grad_enabled,
        "use `with torch.no_grad():`, which ends",
    ),
    "torch's inference mode": (torch.is_inference_mode_enabled, "leave it off"),
    "autocast": (
        lambda: tuple(
            (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in ("cpu", "cuda")
        ),
        "use `with torch.autocast(...):` within a layer, which ends",
    ),
    "how torch treats denormal numbers": (
        lambda: bool(torch.full((1,), _LEAST_NORMAL).div(2.0).eq(0.0)),
        "leave it",
    ),
    "how cuDNN's kernels are chosen": (
        lambda: (
            torch.backends.cudnn.benchmark,
            torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
        ),
        "leave it: kernels that are chosen by their times give other bits on another day",
    ),
    "torch's matrix kernels": (
        lambda: (torch.backends.mkldnn.enabled, *_matrix_precisions()),
        "set it at the top of the file",
    ),
}
_FREE_AT_LOAD = frozenset({"torch's matrix kernels"})


def settings() -> Settings:
    """The settings that hold in this process now, each by the name that an error gives it."""
    return {name: look() for name, (look, _) in _SETTINGS.items()}


def changed(before: Settings, *, at_load: bool = False) -> tuple[str, str] | None:
    """(problem, remedy) of the first setting that is not as it was, or None when all are.
    `at_load`: the comparison is with the time before the user's file was loaded, which every
    process does."""
    for name, now in settings().items():
        if now != before[name] and not (at_load and name in _FREE_AT_LOAD):
            said = f"changes {name} for the whole process, from {before[name]} to {now}"
            return said, _SETTINGS[name][1]
    return None
