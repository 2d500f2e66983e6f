"""Desired against observed, as a pure function: what to start, what to end, and why.

Rule: no clock, no network, no memory. `reconcile` is called again after every answer of the cloud.
What was refused comes back as a `PoolMemory`, so the next call simply takes the next pool. Zones
that lack nodes come first. All other missing nodes come from the cheapest usable pool, because
bytes between nodes of one zone cost nothing. Anchors, the nodes on demand beside those on spot, are
reconciled in the same way, separately. Neither market replaces the other, since the price would not
be the promised one.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from bamboo.ids import InstanceId, ZoneId
from cloud.provider import Market, Observed, Offer, Pool

POOL_OUT_S = 180.0
"""How long a pool without capacity is not asked again."""
ALIKE = 1.2
"""Offers up to so many times as dear as the cheapest count as equally good, and the cloud may
choose among them."""
MOST_ALTERNATIVES = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Ask `pool` for `count` instances, or let the cloud take as many of it and `alternatives`."""

    pool: Pool
    count: int
    reason: str
    alternatives: tuple[Pool, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate:
    """End this instance."""

    instance: InstanceId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveAlone:
    """Remember these pools as out."""

    pools: tuple[Pool, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """`missing` instances are not available now; the next attempt makes sense at `until_s`."""

    missing: int
    until_s: float | None
    reason: str


Action: TypeAlias = Start | Terminate | LeaveAlone | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """Pools that had no capacity, each with the time until which it is left alone."""

    out_until_s: tuple[tuple[Pool, float], ...] = ()

    def with_out(self, pool: Pool, *, now_s: float, for_s: float = POOL_OUT_S) -> "PoolMemory":
        """Remember that `pool` had no capacity just now."""
        others = tuple((p, t) for p, t in self.out_until_s if p != pool and t > now_s)
        return PoolMemory(out_until_s=(*others, (pool, now_s + for_s)))

    def out_until(self, pool: Pool, *, now_s: float) -> float | None:
        """Until when the pool is out, or None when it may be asked."""
        return next((t for p, t in self.out_until_s if p == pool and t > now_s), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """Nodes that are useful only together. Fewer than `nodes` are given up once that has lasted for
    more than `within_s`; it has lasted for `short_s`."""

    nodes: int
    within_s: float
    short_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """How many instances the run should have, and which of them it no longer wants."""

    count: int
    unwanted: Collection[InstanceId] = field(default_factory=frozenset)
    zones: Mapping[ZoneId, int] = field(default_factory=dict)
    """How many of them each zone should have, as far as it can; empty: any zones."""
    anchors: int = 0
    """How many of them are on demand while the others are on spot; 0: all are on the market of the
    offers."""
    gang: Gang | None = None
    """Set while the run forms; None: each node is useful by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most instances at once; 0: no limit. Instances that are `leaving` are paid too, and
    count. At most `new` are started now; None: no limit."""

    instances: int = 0
    leaving: int = 0
    new: int | None = None

    def allows(self, count: int) -> int:
        """As many of `count` as there is room for."""
        return max(0, min(count, self.instances - self.leaving)) if self.instances else count


NO_LIMIT = Budget()


def reconcile(
    *,
    desired: Desired,
    observed: Sequence[Observed],
    offers: Sequence[Offer],
    budget: Budget = NO_LIMIT,
    memory: PoolMemory,
    now_s: float,
    several: bool = False,
) -> tuple[Action, ...]:
    """The actions that bring `observed` towards `desired`, within the budget.

    Unwanted instances end first and do not count. A gang that did not come together ends as a
    whole. Surplus ends youngest first, in zones that have too many before others. Missing instances
    are requested from the first offer (they come cheapest first) that is not remembered as out,
    first in each zone that lacks nodes; with `several`, from equally good offers as well. Instances
    that the budget does not allow now are left out.
    """
    live = [o for o in observed if o.state.live]
    wanted = sorted(
        (o for o in live if o.instance not in desired.unwanted),
        key=lambda o: (o.launched_at_s, o.instance),
    )
    actions: list[Action] = [
        Terminate(instance=o.instance, reason="the run does not want it any more")
        for o in live
        if o.instance in desired.unwanted
    ]
    count = budget.allows(desired.count)
    if given_up := _given_up(desired.gang, wanted, count):
        return (*actions, *given_up)
    have = Counter(o.pool.zone for o in wanted)
    usable = [o for o in offers if memory.out_until(o.pool, now_s=now_s) is None]
    shares = [
        (market, share, [o for o in wanted if market in (None, o.pool.market)])
        for market, share in _shares(count, desired.anchors)
    ]
    for _, share, mine in shares:
        for one in _surplus(mine, share, desired.zones, have):
            have[one.pool.zone] -= 1
            reason = f"surplus: {len(mine)} run, {share} wanted"
            actions.append(Terminate(instance=one.instance, reason=reason))
    may_start = math.inf if budget.new is None else budget.new
    for market, share, mine in shares:
        lacking = {zone: number - have[zone] for zone, number in desired.zones.items()}
        missing = int(min(share - len(mine), may_start))
        open_to = [o for o in usable if market in (None, o.pool.market)]
        for start in _by_zone(missing, lacking, open_to, several=several):
            have[start.pool.zone] += start.count
            missing -= start.count
            actions.append(start)
        if missing > 0:
            known = [o for o in offers if market in (None, o.pool.market)]
            actions.append(_start_or_wait(missing, share, known, memory, now_s, several=several))
        # Only what is requested counts: a market without capacity leaves the other its share.
        started = sum(one.count for one in actions if isinstance(one, Start))
        may_start = math.inf if budget.new is None else budget.new - started
    return tuple(actions)


def _shares(count: int, anchors: int) -> tuple[tuple[Market | None, int], ...]:
    """How many instances each market is to have; None: all together."""
    if not anchors:
        return ((None, count),)
    fixed = min(anchors, count)
    return ((Market.ON_DEMAND, fixed), (Market.SPOT, count - fixed))


def _given_up(gang: Gang | None, wanted: Sequence[Observed], count: int) -> tuple[Action, ...]:
    if gang is None or count < gang.nodes or not 0 < len(wanted) < gang.nodes:
        return ()
    if gang.short_s <= gang.within_s:
        return ()
    pools = tuple(dict.fromkeys(o.pool for o in wanted))
    reason = (
        f"only {len(wanted)} of the {gang.nodes} nodes that the run needs to form came within "
        f"{gang.within_s:g} s: they are ended, and {', '.join(map(str, pools))} left alone for a "
        "while"
    )
    ends = [Terminate(instance=o.instance, reason="too few came to form") for o in wanted]
    return (LeaveAlone(pools=pools, reason=reason), *ends)


def _by_zone(
    missing: int, lacking: Mapping[ZoneId, int], usable: Sequence[Offer], *, several: bool
) -> list[Start]:
    """The request to each zone that lacks nodes, at its first usable offer. Where fewer are missing
    than the zones lack, they go where the most are lacking."""
    first: dict[ZoneId, Offer] = {}
    for offer in usable:
        if lacking.get(offer.pool.zone, 0) > 0:
            first.setdefault(offer.pool.zone, offer)
    shares: Counter[ZoneId] = Counter()
    for _ in range(min(missing, sum(lacking[zone] for zone in first))):
        shares[max(first, key=lambda zone: lacking[zone] - shares[zone])] += 1
    starts = []
    for zone, offer in first.items():
        if not shares[zone]:
            continue
        others = _as_good(offer, [o for o in usable if o.pool.zone == zone]) if several else ()
        starts.append(
            Start(
                pool=offer.pool,
                alternatives=others,
                count=shares[zone],
                reason=f"{shares[zone]} of the {lacking[zone]} that {zone} lacks: {offer.pool} is "
                f"its cheapest usable offer at {_price(offer, others)}",
            )
        )
    return starts


def _as_good(first: Offer, usable: Sequence[Offer]) -> tuple[Pool, ...]:
    """The other pools of its market that are about as cheap, cheapest first."""
    others = [
        o.pool
        for o in usable
        if o is not first
        and o.pool.market is first.pool.market
        and o.usd_per_speed <= ALIKE * first.usd_per_speed
    ]
    return tuple(others[:MOST_ALTERNATIVES])


def _price(offer: Offer, others: Sequence[Pool]) -> str:
    price = f"${offer.usd_per_hour:.4f}/h"
    if offer.speed != 1.0:
        price += f" (${offer.usd_per_speed:.4f}/h at speed 1)"
    return price + (f", or one of {len(others)} about as cheap" if others else "")


def _surplus(
    wanted: Sequence[Observed], count: int, zones: Mapping[ZoneId, int], have: Counter[ZoneId]
) -> list[Observed]:
    """Which instances to end where there are too many. `wanted` is oldest first; `have` counts the
    instances of all markets."""
    have, left, out = Counter(have), list(wanted), []
    for _ in range(len(wanted) - count):
        beyond = [o for o in left if have[o.pool.zone] > zones.get(o.pool.zone, 0)]
        one = (beyond or left)[-1]
        have[one.pool.zone] -= 1
        left.remove(one)
        out.append(one)
    return out


def _start_or_wait(
    missing: int,
    count: int,
    offers: Sequence[Offer],
    memory: PoolMemory,
    now_s: float,
    *,
    several: bool,
) -> Action:
    usable = [o for o in offers if memory.out_until(o.pool, now_s=now_s) is None]
    skipped: list[tuple[Pool, float]] = []
    for offer in offers:
        until_s = memory.out_until(offer.pool, now_s=now_s)
        if until_s is not None:
            skipped.append((offer.pool, until_s))
            continue
        because = (
            f"; {', '.join(str(pool) for pool, _ in skipped)} had no capacity" if skipped else ""
        )
        others = _as_good(offer, usable) if several else ()
        reason = (
            f"{missing} of {count} missing: {offer.pool} is the cheapest usable offer "
            f"at {_price(offer, others)}{because}"
        )
        return Start(pool=offer.pool, alternatives=others, count=missing, reason=reason)
    if not skipped:
        reason = f"{missing} of {count} missing and there is no offer at all"
        return Wait(missing=missing, until_s=None, reason=reason)
    until_s = min(time_s for _, time_s in skipped)
    reason = (
        f"{missing} of {count} missing and no pool had capacity "
        f"({', '.join(str(pool) for pool, _ in skipped)}); asking again in {until_s - now_s:.0f} s"
    )
    return Wait(missing=missing, until_s=until_s, reason=reason)
