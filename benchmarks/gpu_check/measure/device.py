"""A card as torch sees it: its facts, what its first uses take, and a load for others to bear."""

import contextlib
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LOAD_SIDE, LOAD_S = 2048, 600.0


def wait(device: str) -> None:
    """Wait until the device has done all that it was given."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def card(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The card's name and what torch was built with."""
    import torch

    seen: dict[str, Any] = {"torch": str(torch.__version__), "python": platform.python_version()}
    if asked["device"] != "cuda":
        return {**seen, "card": "cpu", "cpu": _cpu()}
    if not torch.cuda.is_available():
        raise SystemExit(f"torch {torch.__version__} sees no CUDA GPU; give --device cpu")
    found = torch.cuda.get_device_properties(0)
    return {
        **seen,
        "card": found.name,
        "uuid": f"GPU-{found.uuid}",
        "processors": found.multi_processor_count,
        "capability": f"{found.major}.{found.minor}",
        "memory_bytes": found.total_memory,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def context(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Seconds of a fresh process until torch is loaded, the device is open, and first kernels
    of three kinds have run; then the same kernels once more."""
    begin_s = time.perf_counter()
    import torch
    import torch.nn.functional as F

    device, out = asked["device"], {}
    stamps = [begin_s, time.perf_counter()]
    torch.zeros(1, device=device)
    wait(device)
    stamps.append(time.perf_counter())
    kernel = torch.bfloat16 if asked["bf16"] else torch.float32
    for turn in ("first", "second"):
        for name in ("product", "attention", "backward"):
            begin_s = time.perf_counter()
            x = torch.randn(4, 8, 64, 64, device=device, dtype=kernel, requires_grad=True)
            if name == "product":
                x.flatten(0, 2) @ x.flatten(0, 2).mT
            else:
                y = F.scaled_dot_product_attention(x, x, x, is_causal=True)
                if name == "backward":
                    y.float().sum().backward()
            wait(device)
            out[f"{turn}_{name}_s"] = time.perf_counter() - begin_s
    return {"import_s": stamps[1] - stamps[0], "open_s": stamps[2] - stamps[1], **out}


def busy(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Products without end, for a neighbour to bear; says when it is ready."""
    import torch

    device = asked["device"]
    side = LOAD_SIDE if device == "cuda" else 256
    x = torch.randn(side, side, device=device)
    end_s = time.monotonic() + LOAD_S
    print("ready", flush=True)
    while time.monotonic() < end_s:
        for _ in range(20):
            x = (x @ x).clamp(-1, 1)
        wait(device)
    return {}
