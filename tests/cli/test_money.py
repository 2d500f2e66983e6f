"""The billing rules, each by figures worked out by hand."""

import pytest

from cli.money import Rented, bill


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
    ("lived_s", "market", "interrupted", "free"),
    [
        (3599.0, "spot", True, True),
        (3600.0, "spot", True, False),
        (100.0, "spot", False, False),
        (100.0, "on-demand", True, False),
    ],
)
def test_only_what_the_cloud_takes_in_the_first_hour_is_free(
    lived_s: float, market: str, interrupted: bool, free: bool
) -> None:
    item = rented(ended_at_s=1000 + lived_s, market=market, interrupted=interrupted)
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
