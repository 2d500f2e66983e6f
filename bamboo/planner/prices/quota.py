"""Quotas: how many vCPUs of which quota a plan needs, and how many an account may use.

Rule: pure. An account whose quotas are unknown is taken for a new one: 0 of every GPU quota. Spot
and on-demand have different quotas. Source: AWS, "Amazon EC2 instance type quotas".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from bamboo.planner.origin import Origin, age_text
from bamboo.planner.prices.catalogue import Catalogue

NEW_ACCOUNT_VCPUS = 0
SERVICE = "ec2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """One quota of the service."""

    name: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Instance types that share a quota on each market."""

    name: str
    pattern: re.Pattern[str]
    spot: Quota
    on_demand: Quota


_ON_DEMAND_P = Quota(name="Running On-Demand P instances", code="L-417A185B")
FAMILIES = (
    Family(
        name="G and VT",
        pattern=re.compile(r"(g|gr|vt)\d"),
        spot=Quota(name="All G and VT Spot Instance Requests", code="L-3819A6DF"),
        on_demand=Quota(name="Running On-Demand G and VT instances", code="L-DB2E81BA"),
    ),
    Family(
        name="P2, P3, P4",
        pattern=re.compile(r"p[234]"),
        spot=Quota(name="All P4, P3 and P2 Spot Instance Requests", code="L-7212CCBC"),
        on_demand=_ON_DEMAND_P,
    ),
    Family(
        name="P5",
        pattern=re.compile(r"p5"),
        spot=Quota(name="All P5 Spot Instance Requests", code="L-C4BD4855"),
        on_demand=_ON_DEMAND_P,
    ),
)
CODES = tuple(dict.fromkeys(q.code for f in FAMILIES for q in (f.spot, f.on_demand)))


def family_of(instance_type: str) -> Family | None:
    """The family of a type; None if its quota is not known here."""
    return next((f for f in FAMILIES if f.pattern.match(instance_type)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaNeed:
    """What a plan needs of one quota."""

    quota: Quota | None
    """None: unknown for these types."""
    instances: Mapping[str, int]
    vcpus: int | None
    """None: the catalogue does not say how many vCPUs a type has."""
    has: float | None
    """The account's quota; None: unknown."""
    seen: str = ""

    @property
    def enough(self) -> bool | None:
        """Whether the quota suffices; None: unknown. An account whose quota is unknown counts as a
        new one."""
        if self.vcpus is None or self.quota is None:
            return None
        return (NEW_ACCOUNT_VCPUS if self.has is None else self.has) >= self.vcpus


def quota_needed(
    instances: Mapping[str, int], catalogue: Catalogue, *, spot: bool
) -> tuple[QuotaNeed, ...]:
    """The quotas that these instances of each type need at once, all on one market, in the order of
    the types. Raises InputError for a type that is not in the catalogue."""
    grouped: dict[Quota | None, dict[str, int]] = {}
    for name, count in instances.items():
        catalogue.find(name)
        family = family_of(name)
        quota = None if family is None else family.spot if spot else family.on_demand
        if count:
            grouped.setdefault(quota, {})[name] = count
    needs = []
    for quota, counts in grouped.items():
        each = [(catalogue.types[name].vcpus, count) for name, count in counts.items()]
        known = None if quota is None else catalogue.quotas.get(quota.code)
        needs.append(
            QuotaNeed(
                quota=quota,
                instances=counts,
                vcpus=None
                if any(vcpus is None for vcpus, _ in each)
                else sum((vcpus or 0) * count for vcpus, count in each),
                has=None if known is None else known.vcpus,
                seen="" if known is None else known.origin.seen,
            )
        )
    return tuple(needs)


def quota_sentence(need: QuotaNeed, *, region: str, today: date | None = None) -> str:
    """One sentence on a need: how many vCPUs of which quota, and whether the account has them."""
    what = " and ".join(f"{count} {name}" for name, count in need.instances.items())
    if need.quota is None:
        return f"the quota of {what} is not known here: look it up in Service Quotas of {region}"
    quota = f"the quota `{need.quota.name}` ({need.quota.code}) of {region}"
    if need.vcpus is None:
        return f"{what} count against {quota}, with as many vCPUs as EC2 says they have"
    wants = f"{what} need {need.vcpus:,} vCPUs of {quota}"
    if need.has is None:
        return f"{wants}, which is {NEW_ACCOUNT_VCPUS} in a new account: ask for them first"
    age = "" if today is None else f", {_age(need.seen, today)}"
    has = f"this account has {need.has:,.0f} ({need.seen}{age})"
    if need.enough:
        return f"{wants}; {has}, which is enough"
    return f"{wants}; {has}: ask for {need.vcpus - need.has:,.0f} more first"


def _age(seen: str, today: date) -> str:
    return age_text(Origin(seen=seen, source="").age_days(today))
