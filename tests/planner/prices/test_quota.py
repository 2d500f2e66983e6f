"""Which quota a plan needs, of how many vCPUs, and what is said of it."""

from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.config.catalogue import installed_catalogue
from bamboo.errors import InputError
from bamboo.planner.origin import Origin
from bamboo.planner.prices.catalogue import Catalogue, KnownQuota
from bamboo.planner.prices.quota import CODES, family_of, quota_needed, quota_sentence

CATALOGUE = installed_catalogue()
G_SPOT, P_SPOT = "L-3819A6DF", "L-7212CCBC"
NAMES = sorted(CATALOGUE.types)


def having(vcpus: float, code: str = G_SPOT) -> Catalogue:
    origin = Origin(seen="2026-11-20", source="asked")
    return replace(CATALOGUE, quotas={code: KnownQuota(vcpus=vcpus, origin=origin)})


def test_every_type_of_the_catalogue_has_its_quota_and_its_vcpus() -> None:
    for name, kind in CATALOGUE.types.items():
        family = family_of(name)
        assert family is not None
        assert kind.vcpus is not None
        assert name[0].upper() in family.name


def test_spot_counts_p4_and_p5_apart_and_on_demand_together() -> None:
    plan = {"p4d.24xlarge": 2, "p5.48xlarge": 1, "p3.2xlarge": 4, "g5.xlarge": 3}
    spot = quota_needed(plan, CATALOGUE, spot=True)
    assert [(n.quota.code, n.vcpus) for n in spot if n.quota] == [
        (P_SPOT, 2 * 96 + 4 * 8),
        ("L-C4BD4855", 192),
        (G_SPOT, 12),
    ]
    bought = quota_needed(plan, CATALOGUE, spot=False)
    assert [(n.quota.code, n.vcpus) for n in bought if n.quota] == [
        ("L-417A185B", 2 * 96 + 192 + 4 * 8),
        ("L-DB2E81BA", 12),
    ]
    assert len(CODES) == 5


@pytest.mark.parametrize(
    ("catalogue", "enough", "words"),
    [
        (CATALOGUE, False, "which is 0 in a new account: ask for them first"),
        (having(64), True, "this account has 64 (2026-11-20, 1 day old), which is enough"),
        (having(20), True, "which is enough"),
        (having(8), False, "this account has 8 (2026-11-20, 1 day old): ask for 12 more first"),
        (having(0), False, "ask for 20 more first"),
        (having(99, P_SPOT), False, "0 in a new account"),
    ],
)
def test_what_is_said(catalogue: Catalogue, enough: bool, words: str) -> None:
    (need,) = quota_needed({"g4dn.xlarge": 5}, catalogue, spot=True)
    said = quota_sentence(need, region="us-east-1", today=date(2026, 11, 21))
    assert need.enough is enough
    assert said.startswith(
        "5 g4dn.xlarge need 20 vCPUs of the quota `All G and VT Spot Instance Requests` "
        "(L-3819A6DF) of us-east-1"
    )
    assert words in said


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    kind = replace(CATALOGUE.types["g5.xlarge"], name="z9.large", vcpus=None)
    other = replace(kind, name="g5.xlarge")
    catalogue = replace(CATALOGUE, types={"z9.large": kind, "g5.xlarge": other})
    strange, unsized = quota_needed({"z9.large": 2, "g5.xlarge": 1}, catalogue, spot=True)
    assert (strange.quota, strange.enough, unsized.vcpus, unsized.enough) == (None,) * 4
    assert "not known here" in quota_sentence(strange, region="us-east-1")
    assert "as many vCPUs as EC2 says" in quota_sentence(unsized, region="us-east-1")
    with pytest.raises(InputError, match="p9"):
        quota_needed({"p9.large": 1}, CATALOGUE, spot=True)


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 64)), st.booleans())
def test_vcpus_are_counted_once(plan: dict[str, int], spot: bool) -> None:
    needs = quota_needed(plan, CATALOGUE, spot=spot)
    assert sum(need.vcpus or 0 for need in needs) == sum(
        (CATALOGUE.types[name].vcpus or 0) * count for name, count in plan.items()
    )
    assert len({need.quota for need in needs}) == len(needs)
