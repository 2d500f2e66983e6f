"""How fast bytes move between card and host at best, by torch alone."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.gpu_check.measure.device import wait

MIB = 2**20
REPEATS = 7
PATHS = ("pinned to card", "card to pinned", "pageable to card", "card to pageable")
BOTH = "both ways, pinned"


def ceiling(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """GB/s by path and size in MiB, the best of several; seconds that pinning the largest took."""
    import torch

    device, cuda = asked["device"], asked["device"] == "cuda"
    most = max(asked["mib"]) * MIB
    begin_s = time.perf_counter()
    pinned = torch.empty(2 * most, dtype=torch.uint8, pin_memory=cuda)
    pin_s = time.perf_counter() - begin_s
    paged = torch.zeros(most, dtype=torch.uint8)
    card = torch.zeros(2 * most, dtype=torch.uint8, device=device)
    side = torch.cuda.Stream() if cuda else None
    found: dict[str, dict[str, float]] = {}
    for mib in asked["mib"]:
        n = mib * MIB

        def both(n: int = n) -> None:
            if side is None:
                card[:n].copy_(pinned[:n])
                pinned[most : most + n].copy_(card[most : most + n])
                return
            with torch.cuda.stream(side):
                pinned[most : most + n].copy_(card[most : most + n], non_blocking=True)
            card[:n].copy_(pinned[:n], non_blocking=True)

        works: dict[str, Callable[[], object]] = {
            PATHS[0]: lambda n=n: card[:n].copy_(pinned[:n], non_blocking=True),
            PATHS[1]: lambda n=n: pinned[:n].copy_(card[:n], non_blocking=True),
            PATHS[2]: lambda n=n: card[:n].copy_(paged[:n]),
            PATHS[3]: lambda n=n: paged[:n].copy_(card[:n]),
            BOTH: both,
        }
        for name, work in works.items():
            moved = 2 * n if name == BOTH else n
            best_s = min(_seconds(device, work) for _ in range(REPEATS))
            found.setdefault(name, {})[str(mib)] = moved / best_s / 1e9
    return {"gb_per_s": found, "pin_s": pin_s, "pinned_bytes": 2 * most}


def _seconds(device: str, work: Callable[[], object]) -> float:
    wait(device)
    begin_s = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - begin_s
