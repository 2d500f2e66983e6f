"""A race that is planted, so that a sanitizer that sees none is known to look."""

from collections.abc import Mapping
from typing import Any


def race(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write a tensor on one stream and read it on another without waiting. Answers whether torch's
    CUDA sanitizer, which `TORCH_CUDA_SANITIZER` switches on, stopped that."""
    import torch

    del asked
    side = torch.cuda.Stream()
    x = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    try:
        x.add_(1)
        with torch.cuda.stream(side):
            x.mul_(2)
    except Exception as error:
        if type(error).__name__ != "CUDASanitizerErrors":
            raise
        return {"seen": True}
    torch.cuda.synchronize()
    return {"seen": False}
