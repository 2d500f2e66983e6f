"""The billing rules, each by figures worked out by hand."""

import pytest

from bamboo.billing.money import Rented, bill, rented_from_journal


def rented(**change: object) -> Rented:
    given: dict[str, object] = {
        "instance": "i-1",
        "instance_type": "g4dn.xlarge",
        "zone": "a",
        "market": "spot",
        "started_at_s": 1000.0,
        "usd_per_hour": 0.18,
        "on_demand_usd_per_hour": 0.526,
    }
    return Rented(**{**given, **change})  # type: ignore[arg-type]


def test_a_running_instance_is_billed_until_now() -> None:
    (line,) = bill([rented()], now_s=1000.0 + 7200, modelled=True).lines
    assert (line.seconds, line.billed_s) == (7200, 7200)
    assert line.usd == pytest.approx(0.36)
    assert line.on_demand_usd == pytest.approx(1.052)


def test_the_minimum_is_sixty_seconds() -> None:
    (line,) = bill([rented(ended_at_s=1012.0)], now_s=9999.0, modelled=True).lines
    assert (line.seconds, line.billed_s, line.note) == (12.0, 60.0, "60 s minimum")
    assert line.usd == pytest.approx(0.18 / 60)


@pytest.mark.parametrize(
    ("counted", "lived_s", "market", "interrupted", "free"),
    [
        (True, 3599.0, "spot", True, True),
        (False, 3599.0, "spot", True, False),
        (True, 3600.0, "spot", True, False),
        (True, 100.0, "spot", False, False),
        (True, 100.0, "on-demand", True, False),
    ],
)
def test_only_what_the_cloud_takes_in_the_first_hour_is_free(
    counted: bool, lived_s: float, market: str, interrupted: bool, free: bool
) -> None:
    item = rented(
        ended_at_s=1000 + lived_s,
        market=market,
        interrupted=interrupted,
        free_first_hour=counted,
    )
    result = bill([item], now_s=9e9, modelled=True)
    assert (result.usd == 0) is free
    assert result.on_demand_usd > 0
    assert result.instance_seconds == lived_s


def test_the_body_adds_up() -> None:
    body = bill([rented(), rented(instance="i-2")], now_s=4600.0, modelled=True).to_body()
    assert body["usd"] == pytest.approx(0.36)
    assert body["on_demand_usd"] == pytest.approx(1.052)
    assert [i["instance"] for i in body["instances"]] == ["i-1", "i-2"]
    assert body["modelled"] is True


START = {
    "kind": "start", "t": 100.0, "instance": "i-0", "zone": "a", "instance_type": "t",
    "market": "spot", "usd_per_hour": 0.4,
}  # fmt: skip
END = {"kind": "end", "t": 900.0, "instance": "i-0", "cause": "terminated"}


def test_a_record_that_stands_there_twice_counts_once() -> None:
    (item,) = rented_from_journal([START, START, END, END], on_demand_usd_per_hour={"t": 1.0})
    assert (item.started_at_s, item.ended_at_s) == (100.0, 900.0)


def test_to_be_seen_takes_an_end_back_that_was_written_before() -> None:
    seen, late = {"kind": "seen", "t": 950.0, "instance": "i-0"}, {**END, "t": 1000.0}
    prices = {"t": 1.0}
    (item,) = rented_from_journal([START, seen, END, seen], on_demand_usd_per_hour=prices)
    assert item.ended_at_s is None
    (item,) = rented_from_journal([START, END, seen, late], on_demand_usd_per_hour=prices)
    assert item.ended_at_s == 1000.0


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([START, END, {**END, "t": 9000.0}], "the end of 'i-0': it stands there twice, differ"),
        ([START, END, {**END, "cause": "interrupted"}], "the end of 'i-0': it stands there twice"),
        ([START, END, {**START, "t": 800.0}], "the start of 'i-0': it stands there twice, differ"),
        ([START, {**END, "t": 99.0}], "the end of 'i-0': it stands before its start"),
        ([END, START], "the end of 'i-0': it stands before its start"),
    ],
)
def test_a_start_or_an_end_that_another_record_denies_is_refused(
    records: list[dict[str, object]], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        rented_from_journal(records, on_demand_usd_per_hour={"t": 1.0})
