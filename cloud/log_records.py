"""The lines of `cloud.jsonl`: what a cloud bills, whichever process writes it. Pure.

start  {t, instance, zone, instance_type, market, usd_per_hour}
end    {t, instance, cause}      interrupted by the cloud, terminated by us, or the cloud's `end`
seen   {t, instance}             it existed then; for when its end is never shown, and
                                 against an end that was written down before it
"""

from typing import Any

from bamboo.ids import InstanceId
from cloud.provider import Pool

INTERRUPTED, TERMINATED = "interrupted", "terminated"


def start_record(
    instance: InstanceId, pool: Pool, *, at_s: float, usd_per_hour: float | None
) -> dict[str, Any]:
    """An instance runs from then on (Unix). The price is None where the pool has none."""
    return {
        "kind": "start",
        "t": at_s,
        "instance": instance,
        "zone": pool.zone,
        "instance_type": pool.instance_type,
        "market": pool.market.value,
        "usd_per_hour": usd_per_hour,
    }


def end_record(instance: InstanceId, *, at_s: float, cause: str) -> dict[str, Any]:
    """An instance is gone from then on (Unix)."""
    return {"kind": "end", "t": at_s, "instance": instance, "cause": cause}


def seen_record(instance: InstanceId, *, at_s: float) -> dict[str, Any]:
    """An instance existed at that time (Unix)."""
    return {"kind": "seen", "t": at_s, "instance": instance}
