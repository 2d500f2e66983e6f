"""`bamboo trace` through the command line: figures, other forms, made-up markets, bad input."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.sim.market.trace import parse_trace, read_trace
from bamboo.sim.market.trace_shape import tiled
from bamboo.sim.market.trace_stats import stats
from cli.main import run
from tests.full_disk import files_up_to

pytestmark = pytest.mark.timeout(60)
MARKET = Path(__file__).parents[2] / "examples" / "spot-market.csv"
ZONED = (
    "0,add,a,east\n0,add,b,west\n0,add,c,west\n60000,remove,a\n60000,remove,b\n90000,add,d,east\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said where the arguments are refused: one line, after nothing was written."""
    before = sorted(Path().iterdir())
    assert run(["trace", *arguments]) == 2
    assert sorted(Path().iterdir()) == before
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


def test_the_figures_of_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "stats", str(MARKET)]) == 0
    assert capsys.readouterr().out == (
        "spot-market.csv: 0.33 h, 8.32 nodes alive on average, 9 at most\n"
        "  9 nodes at the start, 7 came later; 7 preemptions, 2.52 per node-hour\n"
        "  4 preemption instants, 2 of them (50%) take 2 nodes or more; 1.75 nodes on average, "
        "3 at most\n"
        "    instants by the nodes they took: 1: 2, 2: 1, 3: 1\n"
        "  of the nodes alive an instant takes 19% on average, 33% at most; none takes all of "
        "them\n"
        "  from one instant to the next: median 4 min 00 s, mean 4 min 20 s, nine in ten within "
        "6 min 00 s\n"
        "  as many nodes as before an instant: after 2 min 30 s (median)\n"
    )


def test_figures_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("z.csv").write_text(ZONED)
    assert run(["trace", "stats", "z.csv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema_version"], found["trace"]) == (1, "z.csv")
    assert (found["preemptions"], found["instants"], found["spans"]) == (2, 1, 1.0)
    assert found["bulk"] == [{"nodes": 2, "instants": 1}]
    assert [zone["zone"] for zone in found["zones"]] == ["east", "west"]
    assert run(["trace", "stats", "z.csv"]) == 0
    said = capsys.readouterr().out
    assert "  1 of 1 instant (100%) span zones\n" in said
    assert "in most cases never again; after 1 of 1 never\n" in said


def test_a_market_that_takes_nobody(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("calm.csv").write_text("0,add,a\n3600000,end\n")
    assert run(["trace", "stats", "calm.csv"]) == 0
    assert capsys.readouterr().out == (
        "calm.csv: 1.00 h, 1.00 nodes alive on average, 1 at most\n"
        "  1 node at the start, 0 came later; 0 preemptions, 0.00 per node-hour\n"
    )


def test_from_form_to_form(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "convert", str(MARKET), "a.json", "--to", "json"]) == 0
    assert "cannot be seen" not in capsys.readouterr().out
    assert run(["trace", "convert", "a.json", "a.txt", "--to", "counts"]) == 0
    assert run(["trace", "convert", "a.txt", "a.csv"]) == 0
    first, last = stats(read_trace(MARKET)), stats(read_trace(Path("a.csv")))
    assert (last.preemptions, last.bulk, last.gaps) == (first.preemptions, first.bulk, first.gaps)
    assert Path("a.txt").read_text().startswith("2000-01-01, 00:00:00, 9\n2000-01-01, 00:03:00, 8")


def test_what_counts_cannot_say_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    series = ["a.json", "--to", "json", "--gap-seconds", "420"]
    assert run(["trace", "convert", str(MARKET), *series]) == 0
    out = capsys.readouterr().out
    assert "of 7 preemptions cannot be seen in counts" in out


def test_longer_and_wider(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "convert", str(MARKET), "a.csv", "--hours", "24", "--times", "2"]) == 0
    out = capsys.readouterr().out
    assert "tiled: 0.33 h played 72 times to fill 24 h; at each seam nobody comes or goes" in out
    assert "a.csv: 24.00 h, " in out
    assert stats(read_trace(Path("a.csv"))).peak == 18
    assert run(["trace", "convert", "a.csv", "b.csv", "--hours", "0.1"]) == 0
    assert "cut from 24.00 h to 0.1 h" in capsys.readouterr().out
    assert read_trace(Path("b.csv")).length_s == 360.0


def test_what_could_not_be_read_again_is_not_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = ["convert", str(MARKET), "a.txt", "--to", "counts", "--times", "12000"]
    assert "at most 100,000 nodes may be alive" in refused(wide, capsys)


def test_standard_output_has_the_trace_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", "convert", str(MARKET), "-", "--hours", "1"]) == 0
    said = capsys.readouterr()
    assert parse_trace(said.out, Path("-")) == replace(
        tiled(read_trace(MARKET), hours=1.0), source="-"
    )
    assert "tiled: " in said.err
    assert sorted(folder.iterdir()) == []


def test_a_market_is_made_from_its_seed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--hazard", "0.5", "--bulk", "2", "--nodes", "12", "--zones", "a,b", "--hours", "48"]
    for name, seed in (("1.csv", "1"), ("again.csv", "1"), ("2.csv", "2")):
        assert run(["trace", "synth", name, *asked, "--seed", seed]) == 0
    assert Path("1.csv").read_bytes() == Path("again.csv").read_bytes()
    assert Path("1.csv").read_bytes() != Path("2.csv").read_bytes()
    out = capsys.readouterr().out
    assert "modelled: 12 nodes wanted in 2 zones, 0.5 preemptions per node-hour, 2.00 at an" in out
    assert "; seed 2\n" in out
    found = stats(read_trace(Path("1.csv")))
    assert (found.length_s, found.peak) == (48 * 3600, 12)
    assert [zone.zone for zone in found.zones] == ["a", "b"]


@pytest.mark.parametrize("asked", [["--preset", "storm"], ["--like", str(MARKET)]])
def test_a_market_by_name_or_like_another(
    asked: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", "synth", "made.csv", *asked, "--hours", "6"]) == 0
    out = capsys.readouterr().out
    # The seed that was drawn makes the same again.
    seed = out.splitlines()[0].rpartition(" ")[2]
    assert run(["trace", "synth", "again.csv", *asked, "--hours", "6", "--seed", seed]) == 0
    assert Path("made.csv").read_bytes() == Path("again.csv").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing given: a market is made --like FILE, by --preset calm|busy|storm, or by"),
        (["--preset", "calm", "--hazard", ".1"], "--preset and --hazard given: a market is made"),
        (["--preset", "wild"], "--preset 'wild' is no market; take one of calm, busy, storm"),
        (["--preset", "calm", "--bulk", "2"], "--bulk 2 belongs to --hazard; --preset has its own"),
        (["--like", str(MARKET), "--nodes", "4"], "--nodes 4 does not go with --like"),
        (["--like", "absent"], "absent: cannot be read as a trace: No such file"),
        (["--hazard", "-1"], "--hazard -1 is no rate; give losses per node-hour"),
        (["--hazard", "nan"], "--hazard nan is no rate"),
        (["--hazard", ".1", "--bulk", "17"], "--bulk 17: of a zone of 16 an instant takes 1 to 16"),
        (["--hazard", ".1", "--bulk", "9", "--zones", "a,b"], "--bulk 9: of a zone of 8"),
        (["--hazard", ".1", "--back-seconds", "-1"], "--back-seconds -1 is no time"),
        (["--hazard", ".1", "--nodes", "0"], "--nodes 0 is no market; give 1 to 100,000"),
        (["--hazard", ".1", "--zones", "a,,b"], "--zones 'a,,b': give different names"),
        (["--hazard", ".1", "--zones", "a,a"], "give different names"),
        (["--hazard", ".1", "--zones", "a,b", "--nodes", "1"], "at most one a node (1)"),
        (["--hazard", ".1", "--hours", "0"], "--hours 0 is no length"),
        (["--hazard", ".1", "--hours", "1e6"], "--hours 1e+06 is no length"),
        (["--hazard", "9", "--hours", "8e5"], "--hours 800000: more than 1,000,000 nodes would"),
        (["--hazard", ".1", "--gap-seconds", "5"], "--gap-seconds 5: events have no gap"),
        (["--hazard", ".1", "--to", "json", "--gap-seconds", "0"], "--gap-seconds 0 is no gap"),
    ],
)
def test_markets_that_are_none(
    arguments: list[str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(["synth", "out.csv", *arguments], capsys)


def test_nothing_is_replaced_unasked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.csv").write_text("mine")
    for arguments in (["convert", str(MARKET), "a.csv"], ["synth", "a.csv", "--preset", "calm"]):
        said = refused(arguments, capsys)
        assert "a.csv is there already; give another name, or --force to replace it" in said
        assert Path("a.csv").read_text() == "mine"
    assert run(["trace", "convert", str(MARKET), "a.csv", "--force"]) == 0
    assert Path("a.csv").read_text() == MARKET.read_text()


def test_where_nothing_can_be_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert = ["convert", str(MARKET)]
    assert "is no file that could be written" in refused([*convert, "/dev/null"], capsys)
    assert "is no file" in refused([*convert, ".", "--force"], capsys)
    assert "there is no folder absent; make it" in refused([*convert, "absent/a.csv"], capsys)
    assert "/proc/a.csv cannot be written: " in refused([*convert, "/proc/a.csv"], capsys)


def test_a_full_disk_leaves_what_was_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.csv").write_text("mine")
    with files_up_to(100):
        said = refused(["convert", str(MARKET), "a.csv", "--force"], capsys)
    assert "a.csv cannot be written: File too large; make room there" in said
    assert Path("a.csv").read_text() == "mine"


def test_a_line_that_cannot_be_meant(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.csv").write_text("0,add,a\n9,remove,b\n")
    for verb in (
        ["stats", "a.csv"],
        ["convert", "a.csv", "b.csv"],
        ["synth", "c", "--like", "a.csv"],
    ):
        assert "a.csv: line 2: '9,remove,b': b is not there" in refused(verb, capsys)


def test_matplotlib_comes_only_with_a_picture(folder: Path) -> None:
    code = (
        "import sys\nfrom cli.main import run\n"
        "for extra in ([], ['--plot', 'a.svg']):\n"
        f"    run(['trace', 'stats', {str(MARKET)!r}, *extra])\n"
        "    print('matplotlib' in sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert [line for line in out.stdout.splitlines() if line in ("True", "False")] == [
        "False",
        "True",
    ]
