"""What `benchmarks.value_on_trace` makes of a recorded market for a fleet of a few nodes."""

from pathlib import Path

import pytest

from bamboo.sim.market.trace import Trace, TraceEvent
from benchmarks.value_on_trace import held, main


def event(at_s: float, node: str, *, comes: bool = True) -> TraceEvent:
    return TraceEvent(at_s=at_s, node=node, comes=comes)


def test_a_fleet_holds_so_many_and_takes_the_next_where_one_goes() -> None:
    market = Trace(
        source="t",
        events=(
            *(event(0.0, name) for name in "abcd"),
            event(1.0, "c", comes=False),
            event(2.0, "a", comes=False),
            event(3.0, "b", comes=False),
            event(4.0, "d", comes=False),
            event(5.0, "a"),
        ),
        length_s=6.0,
    )
    told = [(one.at_s, one.node.split()[0], one.comes) for one in held(market, 2).events]
    # c waits and goes unseen; when b goes, nobody waits.
    assert told == [
        (0.0, "a", True),
        (0.0, "b", True),
        (2.0, "a", False),
        (2.0, "d", True),
        (3.0, "b", False),
        (4.0, "d", False),
        (5.0, "a", True),
    ]
    names = [one.node for one in held(market, 2).events if one.comes]
    assert len(set(names)) == len(names)


def test_without_the_trace_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--trace", str(tmp_path / "none.csv")])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "none.csv: cannot be read as a trace" in said
    assert "name a file that is there" in said
