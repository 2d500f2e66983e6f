"""The best goodput with a loss now and then, played on the figures of a device."""

import itertools

import pytest

from benchmarks.failover.failover_oracle import Device, oracle

EQUAL = Device(forward_s=(0.02,) * 4, backward_s=(0.04,) * 4, microbatches=8)
"""A step takes 8 x 60 + 3 x 60 ms."""


def test_on_equal_stages_it_is_what_was_found_with_a_prototype() -> None:
    found = oracle(EQUAL, phases=24)
    assert found.step_s == pytest.approx(0.66)
    assert all(0.3 < hit.extra_s < 0.5 for hit in found.hits)
    assert all(
        merged_s - found.step_s == pytest.approx(0.4, abs=0.07) for merged_s in found.merged_s
    )
    assert found.goodput([0, 1, 2, 3], for_s=40.0) == pytest.approx(0.956, abs=0.006)


def test_more_losses_in_the_same_time_cost_more_and_none_costs_nothing() -> None:
    found = oracle(EQUAL, phases=6)
    shares = [found.goodput([1] * kills, for_s=30.0) for kills in range(4)]
    assert shares[0] == 1.0
    assert all(b < a for a, b in itertools.pairwise(shares))


def test_what_the_shadow_has_computed_ahead_makes_a_hit_step_shorter() -> None:
    stash, eager = (
        oracle(
            Device(forward_s=EQUAL.forward_s, backward_s=EQUAL.backward_s, microbatches=8, mode=m),
            phases=12,
        )
        for m in ("stash", "eager")
    )
    for ours, theirs in zip(eager.hits, stash.hits, strict=True):
        assert ours.extra_s < theirs.extra_s


def test_it_scales_with_the_figures_of_the_device() -> None:
    twice = Device(forward_s=(0.04,) * 4, backward_s=(0.08,) * 4, microbatches=8)
    one, two = oracle(EQUAL, phases=4), oracle(twice, phases=4)
    assert two.step_s == pytest.approx(2 * one.step_s)
    assert two.hits[2].extra_s == pytest.approx(2 * one.hits[2].extra_s)
