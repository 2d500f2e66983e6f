"""The overheads of one run, from when its instances existed: disks, addresses, the coordinator,
bytes between zones.

Rule: all figures of what a run cost take the overheads from here: the launcher's limit, the receipt
and `bamboo cost RUN`. All of it is modelled.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bamboo.billing.money import Rented
from bamboo.planner.prices.auxiliary import AuxiliaryPrice, Beside, beside_run
from bamboo.planner.value import MICRO


def beside_of(
    rented: Sequence[Rented],
    prices: Mapping[str, AuxiliaryPrice],
    *,
    now_s: float,
    crossed_bytes: float,
) -> Beside:
    """The overheads of these instances by `now_s`. The coordinator counts while any exists."""
    spans = [_span(item, now_s) for item in rented]
    return beside_run(
        prices,
        instance_s=sum(until_s - from_s for from_s, until_s in spans),
        lasted_s=_covered_s(spans),
        crossed_bytes=crossed_bytes,
    )


def beside_body(beside: Beside, *, crossed_bytes: float) -> dict[str, Any]:
    """The value of `beside` in a receipt and in `bamboo cost RUN --json`."""
    return {
        "modelled": True,
        "coordinator_micro_usd": beside.coordinator_micro_usd,
        "disks_micro_usd": beside.disks_micro_usd,
        "addresses_micro_usd": beside.addresses_micro_usd,
        "transfer_micro_usd": beside.transfer_micro_usd,
        "transfer_bytes": round(crossed_bytes),
        "micro_usd": beside.micro_usd,
        "usd": beside.micro_usd / MICRO,
    }


def _span(item: Rented, now_s: float) -> tuple[float, float]:
    until_s = now_s if item.ended_at_s is None else item.ended_at_s
    return item.started_at_s, max(item.started_at_s, until_s)


def _covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that lie in at least one span: there may be hours between two parts of a run."""
    covered, reached = 0.0, 0.0
    for from_s, until_s in sorted(spans):
        covered += max(0.0, until_s - max(from_s, reached))
        reached = max(reached, until_s)
    return covered
