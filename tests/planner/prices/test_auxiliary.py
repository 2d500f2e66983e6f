"""The dollars beside the instances: each part by hand, and all of them by law."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.config.catalogue import installed_catalogue
from bamboo.errors import InputError
from bamboo.planner.prices.auxiliary import (
    Extras,
    auxiliary_parts,
    auxiliary_usd_per_hour,
    extras_of,
)
from bamboo.planner.risks.checkpoint_cost import PART_BYTES, checkpoint_puts
from bamboo.planner.risks.zones import USD_PER_GB

PRICES = installed_catalogue().auxiliary
COUNTS = st.integers(0, 500)
AMOUNTS = st.floats(0, 1e15)
EXTRAS = st.builds(
    Extras,
    instances=COUNTS,
    disk_gib=st.floats(0, 1e5),
    public_addresses=st.none() | COUNTS,
    stored_bytes=AMOUNTS,
    puts_per_hour=st.floats(0, 1e7),
    gets_per_hour=st.floats(0, 1e7),
    crossing_bytes_per_hour=AMOUNTS,
    coordinator=st.booleans(),
)


def test_each_part_by_hand() -> None:
    extras = Extras(
        instances=8,
        disk_gib=100,
        stored_bytes=730 * 2**30,
        puts_per_hour=2000,
        gets_per_hour=10_000,
        crossing_bytes_per_hour=1.7e9 * 600,
    )
    parts = {part.name: part for part in auxiliary_parts(PRICES, extras)}
    assert parts["disks"].usd_per_hour == pytest.approx(8 * 100 * 0.08 / 730)
    assert parts["addresses"].usd_per_hour == pytest.approx(8 * 0.005)
    assert parts["object store"].usd_per_hour == pytest.approx(0.023 + 0.01 + 0.004)
    assert parts["coordinator"].usd_per_hour == pytest.approx(0.0208 + 0.005 + 20 * 0.08 / 730)
    # A boundary of GPT-2 XL moves 1.7 GB a step: about $20/h at a step in six seconds.
    assert parts["transfer"].usd_per_hour == pytest.approx(20.4)
    assert parts["disks"].why == "8 x 100 GiB of gp3 volumes at $0.08 per GB-month"
    assert parts["transfer"].why.startswith("1,020.0 GB an hour of bytes between zones")


def test_transfer_is_priced_as_spreads_are() -> None:
    assert PRICES["transfer"].usd == USD_PER_GB


def test_without_a_coordinator_and_addresses_neither_costs() -> None:
    extras = Extras(instances=4, public_addresses=0, coordinator=False)
    usd = {part.name: part.usd_per_hour for part in auxiliary_parts(PRICES, extras)}
    assert usd["addresses"] == usd["coordinator"] == usd["object store"] == usd["transfer"] == 0
    assert usd["disks"] > 0


@given(EXTRAS, EXTRAS)
def test_parts_are_never_negative_and_two_plans_cost_what_both_do(one: Extras, two: Extras) -> None:
    first, second = (auxiliary_parts(PRICES, extras) for extras in (one, two))
    assert [p.name for p in first] == [p.name for p in second]
    assert all(part.usd_per_hour >= 0 and part.why for part in first)
    assert auxiliary_usd_per_hour(first) == pytest.approx(sum(p.usd_per_hour for p in first))
    if one.stored_bytes <= two.stored_bytes and one.puts_per_hour <= two.puts_per_hour:
        reads = one.gets_per_hour <= two.gets_per_hour
        assert not reads or first[2].usd_per_hour <= second[2].usd_per_hour


def test_the_quantities_of_a_plan() -> None:
    extras = extras_of(
        instances=9,
        step_s=6.0,
        crossing_bytes=1.7e9,
        checkpoint_bytes=(2.0 * PART_BYTES, 100.0),
        every_steps=50,
        keep=2,
    )
    assert extras == Extras(
        instances=9,
        stored_bytes=3 * (2.0 * PART_BYTES + 100),
        puts_per_hour=(1 + 2 + 4 + 1) * 12.0,
        crossing_bytes_per_hour=1.7e9 * 600,
    )
    none = extras_of(instances=9, step_s=6.0, checkpoint_bytes=(1.0,), keep=2, coordinator=False)
    assert none == Extras(instances=9, coordinator=False)
    with pytest.raises(InputError, match="a step of 0 s"):
        extras_of(instances=1, step_s=0.0)


def test_a_price_that_is_missing_is_named() -> None:
    with pytest.raises(InputError, match="no price of disk, transfer"):
        auxiliary_parts(
            {k: v for k, v in PRICES.items() if k not in ("disk", "transfer")}, Extras(instances=1)
        )


def test_the_requests_of_a_checkpoint() -> None:
    assert checkpoint_puts(()) == 1
    assert checkpoint_puts((1.0, float(PART_BYTES))) == 1 + 2 + 2
    assert checkpoint_puts((PART_BYTES + 1.0,)) == 1 + 1 + 2 + 2
