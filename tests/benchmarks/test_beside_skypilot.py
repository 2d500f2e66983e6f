"""How two rankings of instance types are laid beside each other."""

from typing import Any

from bamboo.config.catalogue import installed_catalogue
from benchmarks.beside_skypilot import candidates, rows_of


def option(worth: float, nodes: int) -> dict[str, Any]:
    return {
        "option": f"on {nodes}",
        "nodes": nodes,
        "usd_per_hour": 0.5 * nodes,
        "simulated": {"samples_per_usd": worth},
    }


def test_their_order_stands_with_our_rank_beside_it() -> None:
    ranked = [
        {"type": "cheap", "spot": True, "usd_per_hour": 1.0},
        {"type": "small", "spot": True, "usd_per_hour": 2.0},
        {"type": "cheap", "spot": False, "usd_per_hour": 3.0},
        {"type": "fast", "spot": True, "usd_per_hour": 4.0},
    ]
    rows = rows_of(ranked, {"cheap": option(10.0, 8), "fast": option(30.0, 2)})
    assert [(row["type"], row["skypilot_rank"], row["our_rank"]) for row in rows] == [
        ("cheap", 1, 2),
        ("small", 2, None),
        ("fast", 3, 1),
    ]
    assert [row["skypilot_usd_per_hour"] for row in rows] == [1.0, 2.0, 4.0]


def test_candidates_are_types_of_one_gpu_that_have_a_spot_price() -> None:
    names = {one.name for one in candidates(installed_catalogue())}
    assert "g4dn.xlarge" in names
    assert not names & {"g4dn.12xlarge", "p4d.24xlarge"}
