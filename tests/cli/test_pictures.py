"""Pictures of markets: whole SVG, the same bytes from the same trace, whatever the settings are."""

import os
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib as mpl
import pytest

from bamboo.sim.market.presets import preset
from bamboo.sim.market.synth import hazard_market, synthesise
from bamboo.sim.market.trace import Trace
from cli.main import run
from cli.pictures.market import market_svg
from cli.pictures.simulation import DOTS, apart
from tests.full_disk import files_up_to
from tests.sim.markets import trace

pytestmark = pytest.mark.timeout(120)
MARKET = Path(__file__).parents[2] / "examples" / "spot-market.csv"


def drawn(market: Trace) -> str:
    picture = market_svg(market, title="a market").decode()
    assert ET.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    return picture


def test_the_picture_of_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "market.svg"
    assert run(["trace", "stats", str(MARKET), "--plot", str(out)]) == 0
    assert capsys.readouterr().out.startswith("spot-market.csv: ")
    picture = out.read_text()
    # matplotlib notes each text beside its outline.
    for text in ("spot-market.csv", "nodes alive", "nodes taken", "hours", "mean 8.3"):
        assert f"<!-- {text} -->" in picture
    assert "<!-- one zone -->" not in picture
    assert run(["trace", "stats", str(MARKET), "--plot", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert run(["trace", "stats", str(MARKET), "--plot", str(out), "--force"]) == 0
    assert out.read_text() == picture


def test_the_same_bytes_whatever_the_settings() -> None:
    market = synthesise(preset("storm", nodes=12, zones=("a", "b")), seed=1, hours=6)
    picture = drawn(market)
    with mpl.rc_context():
        mpl.rc("font", size=20)
        mpl.rc("axes", facecolor="black")
        mpl.rc("svg", hashsalt=None, fonttype="none")
        assert drawn(market) == picture
        assert mpl.rcParams["font.size"] == 20


def test_losses_of_several_zones_stand_out() -> None:
    picture = drawn(trace((0, "+a@x"), (0, "+b@y"), (9, "-a"), (9, "-b"), (12, "+c@x"), (15, "-c")))
    assert "<!-- several zones -->" in picture
    assert "<!-- one zone -->" in picture


def test_markets_of_any_shape_are_drawn() -> None:
    drawn(trace((0, "+a")))
    drawn(trace((0, "+a"), (9, "-a")))
    drawn(Trace(source="empty", events=(), length_s=60.0))


def test_a_long_trace_makes_no_long_file() -> None:
    long = synthesise(hazard_market(nodes=200, preemptions_per_node_hour=2.0), seed=1, hours=100)
    assert len(long.events) > 20_000
    assert len(drawn(long)) < 1_000_000


def test_marks_that_nobody_could_tell_apart_are_one() -> None:
    assert apart([0.0, 3600.0, 3601.0, 7200.0], 7200.0) == [0.0, 1.0, 2.0]
    assert len(apart([second / 10 for second in range(72_000)], 7200.0)) <= DOTS + 1
    assert apart([], 0.0) == []


@pytest.mark.parametrize("name", ["a.png", "a", "-"])
def test_a_picture_is_svg(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["trace", "stats", str(MARKET), "--plot", name]) == 2
    assert "give a name that ends in .svg" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_takes_no_half_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with files_up_to(1000):
        assert run(["trace", "stats", str(MARKET), "--plot", str(tmp_path / "a.svg")]) == 2
    assert "make room there" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [b"a\xff.csv", b"$x$_{.csv", b"\x1b[2J.csv"])
def test_any_name_of_a_file_can_be_a_title(name: bytes, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(name)
    path.write_text("0,add,a\n5000,remove,a\n")
    assert run(["trace", "stats", str(path), "--plot", str(tmp_path / "out.svg")]) == 0
    assert (tmp_path / "out.svg").read_bytes().startswith(b"<?xml")
