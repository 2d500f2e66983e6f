"""The quotas that a plan needs, as lines and as JSON; they are shown before the plan."""

from collections.abc import Mapping
from typing import Any

from bamboo.planner.prices.catalogue import Catalogue
from bamboo.planner.prices.quota import quota_needed, quota_sentence
from cli.echo import paragraph


def quota_lines(
    catalogue: Catalogue, instances: Mapping[str, int], *, spot: bool, region: str
) -> list[str]:
    """A sentence for each quota that so many instances of each type need."""
    return [
        line
        for need in quota_needed(instances, catalogue, spot=spot)
        for line in paragraph(
            f"quota: {quota_sentence(need, region=region, today=catalogue.today)}"
        )
    ]


def quota_body(
    catalogue: Catalogue, instances: Mapping[str, int], *, spot: bool, region: str
) -> list[dict[str, Any]]:
    """The same as JSON; `has_vcpus` null: the account was not asked, and counts as new."""
    return [
        {
            "quota": None if need.quota is None else need.quota.name,
            "code": None if need.quota is None else need.quota.code,
            "region": region,
            "instances": dict(need.instances),
            "vcpus": need.vcpus,
            "has_vcpus": need.has,
            "seen": need.seen or None,
            "enough": need.enough,
        }
        for need in quota_needed(instances, catalogue, spot=spot)
    ]
