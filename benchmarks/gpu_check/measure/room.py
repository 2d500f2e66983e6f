"""Copies as a worker makes them, by the room of devices: their speed, and whether they hide."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

MIB = 2**20
REPEATS = 9
CHAIN = 8
"""Operations in a row, each of which but the last hands a tensor over."""
SIDE = {"cuda": 4096, "cpu": 64}


def room(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """GB/s of `fetch` and `put` by size in MiB, of the largest size while operations run the share
    of a copy's time that they do not wait for, and the seconds of one operation and one copy."""
    import torch

    from bamboo.config.load import load_job
    from bamboo.runtime.device.devices import device_of

    job = load_job(asked["job"])
    device = device_of(job.cluster, tuple(range(job.cluster.stages + 1)))
    kind = torch.device(device.place).type
    found: dict[str, dict[str, float]] = {"fetch": {}, "put": {}}
    for mib in asked["mib"]:
        x = torch.zeros(mib * MIB // 2, dtype=torch.bfloat16, device=device.place)
        staged = device.fetch([x])
        device.settle()

        def put(staged: Any = staged) -> None:
            device.put(staged.tensors, staged)

        fetch_s = _least_s(device, lambda x=x: device.fetch([x]))
        found["fetch"][str(mib)] = mib * MIB / fetch_s / 1e9
        found["put"][str(mib)] = mib * MIB / _least_s(device, put) / 1e9
    y = torch.randn(SIDE[kind], SIDE[kind], device=device.place, dtype=torch.bfloat16)
    products = asked["products"]

    def operation() -> None:
        for _ in range(products):
            torch.mm(y, y)

    def chain(copies: bool) -> None:
        for number in range(CHAIN):
            device.run("F", 0, operation)
            if copies and number < CHAIN - 1:
                device.fetch([x])

    chain(True)
    without = statistics.median(_times(device, lambda: chain(False)))
    with_copies = statistics.median(_times(device, lambda: chain(True)))
    waited_s = (with_copies - without) / (CHAIN - 1)
    return {
        "gb_per_s": found,
        "hidden": 1 - waited_s / fetch_s,
        "operation_s": without / CHAIN,
        "copy_s": fetch_s,
    }


def _least_s(device: Any, work: Callable[[], object]) -> float:
    return min(_times(device, work))


def _times(device: Any, work: Callable[[], object]) -> list[float]:
    out = []
    for _ in range(REPEATS):
        device.settle()
        begin_s = time.perf_counter()
        work()
        device.settle()
        out.append(time.perf_counter() - begin_s)
    return out
