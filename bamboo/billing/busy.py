"""How busy an instance was, from what its node reports in its leases and at its end.

A lease has the number of operations of each kind and the total time of the forwards and backwards
of the slots that the node owned. Only the record at the node's end has the time of each kind.
"""

from collections.abc import Mapping
from typing import Any

from bamboo.ids import InstanceId
from bamboo.planner.attribution import Work

BACKWARD = 2.0
"""A backward is taken to last as long as this many forwards, and a redundant operation as long as
one of an own slot."""
OWN, REDUNDANT = ("F", "B", "X", "S"), ("FR", "BR", "R")
"""Operations that run without redundancy too, and those that only redundancy needs."""


def busy_of(node: str, beat: Mapping[str, Any], *, at_s: float) -> Work | None:
    """From a lease; None where the lease does not say."""
    if "busy_s" not in beat:
        return None
    count = {kind: int(beat.get("ops", {}).get(kind, 0)) for kind in ("F", "B", "FR", "BR")}
    useful_s = float(beat["busy_s"])
    forwards = count["F"] + BACKWARD * count["B"]
    forward_s = useful_s / forwards if forwards else 0.0
    return Work(
        at_s=at_s,
        instance=_instance(node),
        useful_s=useful_s,
        redundant_s=forward_s * (count["FR"] + BACKWARD * count["BR"]),
    )


def busy_to_the_end(record: Mapping[str, Any], *, at_s: float) -> tuple[Work, ...]:
    """From the record of a node's end: once in the form that a lease has, then as measured by kind,
    so that the estimates from leases can be scaled. Empty for any other record."""
    busy_s = record.get("busy_s")
    if record.get("kind") != "memory" or not isinstance(busy_s, Mapping):
        return ()
    node = str(record["node"])
    own_s = float(busy_s.get("F", 0.0)) + float(busy_s.get("B", 0.0))
    rough = busy_of(node, {"ops": record.get("ops", {}), "busy_s": own_s}, at_s=at_s)
    exact = Work(
        at_s=at_s,
        instance=_instance(node),
        useful_s=sum(float(busy_s.get(kind, 0.0)) for kind in OWN),
        redundant_s=sum(float(busy_s.get(kind, 0.0)) for kind in REDUNDANT),
        exact=True,
    )
    return (exact,) if rough is None else (rough, exact)


def _instance(node: str) -> InstanceId:
    """Node `i-1.0` is the first boot of instance `i-1`."""
    return InstanceId(node.rpartition(".")[0])
