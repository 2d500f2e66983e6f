"""Desired against observed, as a pure function: what to start, what to end, and why.

Rule: no clock, no network, no memory. `plan` is called again after every answer of the cloud; what
was refused comes back to it as a `PoolMemory`, so failing over to the next pool is just the next
call. Zones that are to have more nodes than they have are asked first; for the rest the cheapest
usable pool takes all that is missing: nodes of a run in one zone pay nothing for the bytes between
them.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from bamboo.ids import InstanceId, ZoneId
from cloud.provider import Observed, Offer, Pool

POOL_OUT_S = 180.0
"""For so long a pool that had no capacity is not asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Ask `pool` for `count` instances."""

    pool: Pool
    count: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate:
    """End this instance."""

    instance: InstanceId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """`missing` instances cannot be had now; the earliest hope is at `until_s`."""

    missing: int
    until_s: float | None
    reason: str


Action: TypeAlias = Start | Terminate | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """Pools that had nothing, each with the time until which it is left alone."""

    out_until_s: tuple[tuple[Pool, float], ...] = ()

    def with_out(self, pool: Pool, *, now_s: float, for_s: float = POOL_OUT_S) -> "PoolMemory":
        """Remember that `pool` had no capacity just now."""
        others = tuple((p, t) for p, t in self.out_until_s if p != pool and t > now_s)
        return PoolMemory(out_until_s=(*others, (pool, now_s + for_s)))

    def out_until(self, pool: Pool, *, now_s: float) -> float | None:
        """Until when the pool is out, or None when it may be asked."""
        return next((t for p, t in self.out_until_s if p == pool and t > now_s), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """How many instances the run should have, and which of them it does not want any more."""

    count: int
    unwanted: Collection[InstanceId] = field(default_factory=frozenset)
    zones: Mapping[ZoneId, int] = field(default_factory=dict)
    """How many of them each zone should have, as far as it can; empty: it does not matter."""


def plan(
    *,
    desired: Desired,
    observed: Sequence[Observed],
    offers: Sequence[Offer],
    memory: PoolMemory,
    now_s: float,
) -> tuple[Action, ...]:
    """The actions that bring `observed` towards `desired`.

    Unwanted instances end first and do not count. Surplus ends youngest first, in zones that have
    too many before others. What is missing is asked of the first offer (they come cheapest first)
    that is not remembered as out, of one in each zone that lacks nodes before any other.
    """
    live = [o for o in observed if o.state.live]
    unwanted = [o for o in live if o.instance in desired.unwanted]
    wanted = sorted(
        (o for o in live if o.instance not in desired.unwanted),
        key=lambda o: (o.launched_at_s, o.instance),
    )
    actions: list[Action] = [
        Terminate(instance=o.instance, reason="the run does not want it any more") for o in unwanted
    ]
    actions += [
        Terminate(instance=o.instance, reason=f"surplus: {len(wanted)} run, {desired.count} wanted")
        for o in _surplus(wanted, desired)
    ]
    missing = desired.count - len(wanted)
    have = Counter(o.pool.zone for o in wanted)
    lacking = {zone: count - have[zone] for zone, count in desired.zones.items()}
    usable = [o for o in offers if memory.out_until(o.pool, now_s=now_s) is None]
    starts = _by_zone(missing, lacking, usable)
    actions += starts
    missing -= sum(start.count for start in starts)
    if missing > 0:
        actions.append(_start_or_wait(missing, desired.count, offers, memory, now_s))
    return tuple(actions)


def _by_zone(missing: int, lacking: Mapping[ZoneId, int], usable: Sequence[Offer]) -> list[Start]:
    """What each zone that lacks nodes is asked for, of its first usable offer. Where fewer are
    missing than the zones lack, those go where the most lack."""
    first: dict[ZoneId, Offer] = {}
    for offer in usable:
        if lacking.get(offer.pool.zone, 0) > 0:
            first.setdefault(offer.pool.zone, offer)
    shares: Counter[ZoneId] = Counter()
    for _ in range(min(missing, sum(lacking[zone] for zone in first))):
        shares[max(first, key=lambda zone: lacking[zone] - shares[zone])] += 1
    return [
        Start(
            pool=offer.pool,
            count=shares[zone],
            reason=f"{shares[zone]} of the {lacking[zone]} that {zone} lacks: {offer.pool} is its "
            f"cheapest usable offer at ${offer.usd_per_hour:.4f}/h",
        )
        for zone, offer in first.items()
        if shares[zone]
    ]


def _surplus(wanted: Sequence[Observed], desired: Desired) -> list[Observed]:
    """Whom to end of too many, who come oldest first."""
    have = Counter(o.pool.zone for o in wanted)
    left, out = list(wanted), []
    for _ in range(len(wanted) - desired.count):
        beyond = [o for o in left if have[o.pool.zone] > desired.zones.get(o.pool.zone, 0)]
        one = (beyond or left)[-1]
        have[one.pool.zone] -= 1
        left.remove(one)
        out.append(one)
    return out


def _start_or_wait(
    missing: int, count: int, offers: Sequence[Offer], memory: PoolMemory, now_s: float
) -> Action:
    skipped: list[tuple[Pool, float]] = []
    for offer in offers:
        until_s = memory.out_until(offer.pool, now_s=now_s)
        if until_s is not None:
            skipped.append((offer.pool, until_s))
            continue
        because = (
            f"; {', '.join(str(pool) for pool, _ in skipped)} had no capacity" if skipped else ""
        )
        reason = (
            f"{missing} of {count} missing: {offer.pool} is the cheapest usable offer "
            f"at ${offer.usd_per_hour:.4f}/h{because}"
        )
        return Start(pool=offer.pool, count=missing, reason=reason)
    if not skipped:
        reason = f"{missing} of {count} missing and there is no offer at all"
        return Wait(missing=missing, until_s=None, reason=reason)
    until_s = min(time_s for _, time_s in skipped)
    reason = (
        f"{missing} of {count} missing and no pool had capacity "
        f"({', '.join(str(pool) for pool, _ in skipped)}); asking again in {until_s - now_s:.0f} s"
    )
    return Wait(missing=missing, until_s=until_s, reason=reason)
