"""What benchmarks say of their limits: by medians, with the interval beside them."""

from typing import Any

from benchmarks import executor_vs_torch, redundancy_overhead, virtual_bound
from benchmarks.failover.recovery_tables import claims as of_recovery
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.report import interval_name


def test_an_interval_across_the_limit_is_said() -> None:
    inside = Claim(about="x", found=0.96, limit=0.95, at_most=False, interval=(0.955, 0.97))
    assert inside.line().endswith("reached")
    across = Claim(about="x", found=0.96, limit=0.95, at_most=False, interval=(0.94, 0.97))
    assert across.line().endswith("reached, but the interval lies across the limit")
    short = Claim(about="x", found=0.94, limit=0.95, at_most=False, interval=(0.93, 0.949))
    assert short.line().endswith("NOT REACHED")


def test_few_values_have_a_range() -> None:
    assert interval_name(5) == "range of 5"
    assert interval_name(6) == "95 %"


def test_the_executor_is_held_against_torch_by_mode() -> None:
    row: dict[str, Any] = {"size": "8x256", "grid": "1x2", "1f1b_over_it_wall_s": (0.98, 0.9, 1.1)}
    rows = [{**row, "contender": name} for name in ("1f1b", "off", "stash", "gpipe")]
    found = executor_vs_torch.claims(rows)
    assert [claim.holds for claim in found] == [False, True]
    assert all("across" in claim.line() for claim in found)


def test_the_bound_is_held_at_eight_stages() -> None:
    row: dict[str, Any] = {"mode": "off", "forward_ms": 20.0, "share_of_bound": (0.94, 0.93, 0.95)}
    rows = [{**row, "case": case} for case in ("1x4x8", "1x8x16")]
    (found,) = virtual_bound.claims(rows)
    assert not found.holds
    assert "1x8x16" in found.about


def test_redundancy_is_held_on_a_fast_link_and_its_bytes_everywhere() -> None:
    def row(ratio: float, sent: float = 100.0) -> dict[str, Any]:
        return {
            "ratio_to_off": [ratio, ratio, ratio],
            "sent_bytes": {"act": sent},
            "formula_bytes": {"act": 100.0},
        }

    modes = {"off": row(1.0), "stash": row(1.02), "gap": row(1.02), "eager": row(1.2)}
    slow = {"off": row(1.0), "stash": row(1.3, sent=98.0)}
    found = redundancy_overhead.claims(
        {"equal, fast link": {"modes": modes}, "equal, as XL at 2.5 Gbps": {"modes": slow}}
    )
    assert [claim.holds for claim in found] == [False, True, False]
    assert "2.5 Gbps, stash" in found[-1].about


def test_recovery_is_held_against_copies_beside_it_and_for_its_stall() -> None:
    ways = ("tcp 1 at once", "tcp 2 at once", "zmq tcp 2 at once")

    def played(pace: float, stall_s: float = 0.0, *copies: list[float]) -> dict[str, Any]:
        beside = dict(zip(ways, copies, strict=False))
        return {"gb_per_s": pace, "stall_s": stall_s, "copies": beside}

    judged = [
        # Twice as fast a machine in the second play: the share is the same.
        played(1.3, 0.3, [1.5, 2.5], [1.6, 1.8], [1.5, 1.7]),
        played(2.6, 0.3, [4.0, 4.0], [3.4, 3.4], [3.2, 3.2]),
    ]
    grow = {"1": [played(0.1, 0.02)], "512": judged}
    fastest_tcp, as_many, by_zmq, stall = of_recovery({"grow": grow})
    assert [round(one.found, 2) for one in (fastest_tcp, as_many, by_zmq)] == [0.65, 0.76, 0.81]
    assert [one.holds for one in (fastest_tcp, as_many, by_zmq, stall)] == [
        True,
        True,
        True,
        False,
    ]
    assert "2 at once" in as_many.about
    assert of_recovery({"grow": {"64": [played(0.1)]}}) == []
    assert len(of_recovery({"grow": {"1": [played(0.1)], "512": [played(1.3)]}})) == 1
