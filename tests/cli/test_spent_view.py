"""The lines of `bamboo cost RUN`: bars, micro-dollars in full, and every sentence that can come."""

from typing import Any

from bamboo.quantities import micro_text
from cli.views.cost import BAR, bar, spent_lines

BESIDE: dict[str, Any] = {
    "coordinator_micro_usd": 100,
    "disks_micro_usd": 30,
    "addresses_micro_usd": 20,
    "transfer_micro_usd": 0,
    "transfer_bytes": 0,
    "micro_usd": 150,
}


def body(**change: object) -> dict[str, Any]:
    given: dict[str, Any] = {
        "bill_micro_usd": 1_500_000,
        "on_demand_micro_usd": 6_000_000,
        "saved_micro_usd": 4_500_000,
        "instance_seconds": 7200.0,
        "sources": ["events"],
        "uses": [
            {"use": "useful", "seconds": 3600.0, "micro_usd": 1_000_000},
            {"use": "booting", "seconds": 3600.0, "micro_usd": 1_000_000},
            {"use": "free", "seconds": 0.0, "micro_usd": -500_000},
        ],
        "busy_measured": 1,
        "instances": [{"seconds": {"useful": 3600.0}}, {"seconds": {"booting": 3600.0}}],
        "not_members": [],
        "beside": BESIDE,
        "usd_per_hour": 0.75,
        "budget": None,
        "unknown": "",
    }
    return {**given, **change}


def text(*, ended: bool = True, **change: object) -> str:
    return "\n".join(spent_lines(body(**change), ended=ended))


def test_a_bar_is_true_to_an_eighth_and_never_hides_what_there_is() -> None:
    assert (bar(1.0), bar(0.0), bar(-0.5)) == ("█" * BAR, "", "")
    assert (bar(0.5, width=2), bar(0.25, width=2), bar(1e-9)) == ("█", "▌", "▏")


def test_micro_dollars_are_shown_in_full() -> None:
    assert micro_text(12_916) == "$0.012916"
    assert micro_text(-9_687) == "-$0.009687"
    assert micro_text(1_234_567_890) == "$1,234.567890"


def test_the_parts_and_the_bill_under_them() -> None:
    lines = spent_lines(body(), ended=True)
    assert lines[0] == "  where it went, by use, of 2:00:00 of all instances:"
    assert lines[1].split() == ["useful", "1:00:00", "$1.000000", "50.0%", "█" * BAR]
    assert lines[2].split()[:2] == ["waiting:", "booting"]
    assert lines[3].split() == ["free", "first", "hour", "-$0.500000", "-25.0%"]
    assert lines[4].split() == ["the", "bill", "$1.500000"]
    assert "as measured by the nodes" in text()
    assert "saved against on-demand: $4.500000 of $6.000000, 75%" in text()


def test_what_is_estimated_is_said() -> None:
    said = " ".join(text(busy_measured=0).split())
    assert "useful and redundant time of 1 instance of 1 that trained is from leases" in said
    steps = [{"use": "steps", "seconds": 60.0, "micro_usd": 7}]
    assert "useful, redundancy and bubble in one" in " ".join(text(uses=steps).split())
    assert "where it went is not known: why" in text(uses=[], unknown="why")


def test_rates_and_budget() -> None:
    assert "instances for $0.7500/h on average, while any ran" in text()
    budget = {"left_usd": 0.5, "left_s": 90.0, "lasts_s": 2400.0}
    now = " ".join(text(ended=False, budget=budget).split())
    assert "instances for $0.7500/h now; $0.5000 of the budget left, which lasts 40 min 00 s" in now
    assert "1 min 30 s of budget.max_hours left" in now
    over = {"left_usd": -0.1, "left_s": None, "lasts_s": None}
    assert "$0.00 of the budget left" in text(budget=over)


def test_who_takes_no_part_is_named_up_to_eight() -> None:
    found = [
        {"instance": f"i-{n}", "zone": "a", "duty": "booting", "seconds": 3.0, "bill_micro_usd": 9}
        for n in range(10)
    ]
    said = " ".join(text(ended=False, not_members=found).split())
    assert "10 instances tagged as the run's and no member: i-0 in a (booting for 3.0 s" in said
    assert "i-7 in a" in said
    assert said.endswith("and 2 more")
    assert "paid for from which no node ever came" in text(not_members=found)


def test_what_is_beside_the_bill_is_called_modelled() -> None:
    some = {"transfer_micro_usd": 20_000, "transfer_bytes": 2**30, "micro_usd": 20_150}
    said = " ".join(text(beside=BESIDE | some).split())
    assert "not in the bill, modelled: coordinator $0.000100, disks $0.000030, addresses " in said
    assert "$0.000020, transfer between zones $0.020000 (1.0 GiB, " in said
    assert "steps at the planned grid of the newest part); $0.020150 in all" in said
    assert "transfer between zones $0; $0.000150 in all" in " ".join(text().split())
