"""`bamboo simulate` through the command line: figures, seeds, rivals, a picture, bad input."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bamboo import wiring
from cli.main import run
from tests.full_disk import files_up_to
from tests.study.facts import seen

pytestmark = pytest.mark.timeout(120)
EXAMPLES = Path(__file__).parents[2] / "examples"
JOB, MARKET = str(EXAMPLES / "trace-local.toml"), str(EXAMPLES / "spot-market.csv")


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The preflight measures layers in a process of its own; here it says what it is told to."""
    monkeypatch.setattr(wiring, "run_preflight", seen)


def body_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["simulate", JOB, "--json", *arguments]) == 0
    body = json.loads(capsys.readouterr().out)
    assert isinstance(body, dict)
    return body


def figure(body: dict[str, Any], name: str, system: str = "bamboo") -> float:
    return float(body["systems"][system]["figures"][name]["mean"])


def test_a_trace_is_played_to_the_last_step_of_the_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = body_of(["--trace", MARKET], capsys)
    assert body["simulated"] is True
    assert "virtual device" in body["step_times"]
    assert figure(body, "steps") == 1500
    assert body["systems"]["bamboo"]["ended"] == ["all 1,500 steps are done"]


def test_a_trace_that_is_too_short_is_played_again_and_that_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["simulate", JOB, "--trace", MARKET, "--hours", "1", "--endless"]) == 0
    text = capsys.readouterr().out
    assert "played 3 times over: it has 0.3333 h" in text
    assert "simulated" in text.splitlines()[0]
    assert "modelled" in text


def test_seeds_are_counted_and_the_same_seeds_give_the_same_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--hazard", ".5", "--bulk", "2", "--hours", "2", "--seeds", "4", "--endless"]
    body = body_of(arguments, capsys)
    assert body["runs"] == 4
    assert figure(body, "preemptions") > 0
    assert body["systems"]["bamboo"]["figures"]["steps"]["confidence"] > 0
    assert body_of(arguments, capsys) == body


def test_the_text_names_the_instance_its_price_where_that_is_from_and_the_seeds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--hazard", ".1", "--hours", "2"]
    body = body_of([*arguments, "--first-seed", "7"], capsys)
    assert (body["instance_type"], body["first_seed"]) == ("g4dn.xlarge", 7)
    price = figure(body, "instance_usd_per_hour")
    assert 0 < price < body["on_demand_usd_per_instance_hour"]
    for more, seeds in (([], "seed 0"), (["--seeds", "3", "--first-seed", "7"], "seeds 7 to 9")):
        assert run(["simulate", JOB, *arguments, *more]) == 0
        text = capsys.readouterr().out
        assert f"({seeds}), simulated" in text.splitlines()[0]
        assert f"a g4dn.xlarge is ${price:.4f} an hour on average on the spot market" in text
        assert "(spot by the catalogue of 2026, on demand by the catalogue of 2026-07-20)" in text
    assert body_of(["--trace", MARKET], capsys)["first_seed"] is None


def test_dollars_that_the_least_bill_adds_are_said_where_they_matter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for hours, said in (("0.004", True), ("1", False)):
        arguments = ["--hazard", "0", "--hours", hours, "--endless"]
        body = body_of(arguments, capsys)
        used_usd = figure(body, "usd") - figure(body, "minimum_usd")
        hourly = figure(body, "instance_usd_per_hour") * figure(body, "mean_nodes")
        assert used_usd / figure(body, "seconds") * 3600 == pytest.approx(hourly, rel=0.01)
        assert run(["simulate", JOB, *arguments]) == 0
        text = capsys.readouterr().out
        assert ("as an instance is paid for 60 s at least" in text) is said
        assert ("76% of the dollars" in text) is said


def test_instances_on_demand_are_paid_in_full_whatever_takes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "market.csv"
    nodes = "".join(f"0,add,n{n},z{n % 2}\n" for n in range(8))
    path.write_text(f"{nodes}1800000,remove,n7,z1\n3600000,end\n")
    on_demand = ["--set", 'cloud.market="on-demand"', "--trace", str(path), "--endless"]
    body = body_of(on_demand, capsys)
    price = body["on_demand_usd_per_instance_hour"]
    assert figure(body, "instance_usd_per_hour") == pytest.approx(price)
    instances_usd = figure(body, "usd") - figure(body, "transfer_usd")
    assert instances_usd == pytest.approx(7.5 * price, rel=1e-4)
    assert run(["simulate", JOB, *on_demand]) == 0
    text = capsys.readouterr().out
    assert f"a g4dn.xlarge is ${price:.4f} an hour on demand" in text
    assert "spot" not in text
    prices = tmp_path / "prices.csv"
    prices.write_text("0,,0.1\n")
    assert run(["simulate", JOB, *on_demand, "--prices", str(prices)]) == 2
    assert 'cloud.market = "on-demand"' in capsys.readouterr().err


AUTOSCALED = (
    *("--hazard", "0", "--nodes", "16", "--hours", "12"),
    *("--set", "autoscale.enabled=true", "--set", "cluster.max_pipelines=3"),
)


def test_a_run_that_chooses_its_size_says_each_resize_and_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = body_of([*AUTOSCALED], capsys)
    chosen = body["autoscale"]
    assert (chosen["begin"], chosen["sizes"]) == (4, [4, 6, 8])
    (one,) = chosen["runs"]
    assert figure(body, "resizes") == len(one["resizes"]) > 0
    assert one["nodes_at_end"] == one["resizes"][-1]["nodes"] == 8
    assert figure(body, "mean_nodes") == pytest.approx(8, rel=0.05)
    assert run(["simulate", JOB, *AUTOSCALED]) == 0
    text = capsys.readouterr().out
    assert "autoscale: from 4 nodes to 8, of 4, 6, 8" in text
    for resize in one["resizes"]:
        assert f"after step {resize['step']}: {resize['reason'][:40]}" in text


def test_a_run_that_does_not_choose_its_size_says_nothing_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    calm = ["--hazard", "0", "--nodes", "16"]
    assert body_of(calm, capsys)["autoscale"] is None
    assert run(["simulate", JOB, *calm]) == 0
    assert "resize" not in capsys.readouterr().out


def test_of_many_runs_the_sizes_that_they_came_to_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["simulate", JOB, *AUTOSCALED, "--seeds", "3"]) == 0
    assert "of 3 runs came 3 to 8" in " ".join(capsys.readouterr().out.split())


def test_rivals_stand_beside_ours(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--trace", MARKET, "--endless", "--rivals"]
    body = body_of(arguments, capsys)
    assert figure(body, "usd", "on-demand") > figure(body, "usd")
    assert figure(body, "steps") <= figure(body, "steps", "no pauses at all")
    assert run(["simulate", JOB, *arguments]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in body["systems"])
    rivals = {name: one["terms"] for name, one in body["systems"].items() if name != "bamboo"}
    assert all(f"{name}: {terms}" in text for name, terms in rivals.items())
    assert "42 s a restart" in rivals["checkpoint and restart"]


def test_every_way_pays_for_the_bytes_that_it_sends_between_zones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--hazard", "0", "--hours", "1", "--endless", "--rivals", "--nodes", "8"]
    body = body_of([*arguments, "--zones", "a,b"], capsys)
    paid = {name: figure(body, "transfer_usd", name) for name in body["systems"]}
    assert {name for name, dollars in paid.items() if not dollars} == {"on-demand"}
    assert run(["simulate", JOB, *arguments, "--zones", "a,b"]) == 0
    assert "zones $/h" in capsys.readouterr().out


def test_the_nodes_lie_as_the_job_spreads_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "market.csv"
    nodes = (f"0,add,{zone}{n},us-east-1{zone}" for n in range(9) for zone in "abc")
    path.write_text("\n".join((*nodes, "600000,remove,a0,us-east-1a", "3600000,end")))
    paid = {}
    for spread in ("one", "pipelines", "neighbours"):
        zones = f"cloud.zones={[f'us-east-1{zone}' for zone in 'abc']}".replace("'", '"')
        keys = (zones, f"cluster.spread={spread}", "cluster.pipelines=2")
        given = [part for key in keys for part in ("--set", key)]
        body = body_of(["--trace", str(path), "--endless", *given], capsys)
        paid[spread] = figure(body, "transfer_usd")
    assert paid["one"] == 0 < paid["pipelines"] < paid["neighbours"]


def test_a_pair_of_zones_has_a_link_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    market = ["--hazard", "0", "--hours", "1", "--endless", "--nodes", "4", "--zones", "a,b"]
    alike = figure(body_of(market, capsys), "steps")
    assert figure(body_of([*market, "--far", "b,c=0.001"], capsys), "steps") == alike
    assert figure(body_of([*market, "--far", "b,a=0.0005"], capsys), "steps") < alike / 2


def test_a_time_scale_plays_the_market_faster_and_not_the_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    slow = body_of(["--trace", MARKET, "--endless"], capsys)
    fast = body_of(["--trace", MARKET, "--endless", "--time-scale", "10"], capsys)
    assert figure(fast, "preemptions") == figure(slow, "preemptions")
    assert figure(fast, "seconds") == pytest.approx(figure(slow, "seconds") / 10)
    assert figure(fast, "steps") < figure(slow, "steps") / 10


def test_the_picture_is_the_same_bytes_and_nothing_is_replaced_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, second):
        assert run(["simulate", JOB, "--trace", MARKET, "--plot", str(path)]) == 0
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(b"<?xml")
    picture = first.read_text()
    # matplotlib notes each text beside its outline.
    for text in ("failover", "reconfiguration"):
        assert f"<!-- {text} -->" in picture
    # The nodes of this job share the cores of the machine that plans, so its mean is not the same
    # on each.
    assert re.search(r"<!-- mean 7\d\.\d -->", picture)
    assert "<!-- restore -->" not in picture, "there was none"
    capsys.readouterr()
    assert run(["simulate", JOB, "--trace", MARKET, "--plot", str(first)]) == 2
    assert "--force" in capsys.readouterr().err


def test_a_trace_that_ends_where_it_begins_needs_hours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "still.csv"
    path.write_text("0,add,a\n")
    assert run(["simulate", JOB, "--trace", str(path)]) == 2
    assert "say with --hours how long" in capsys.readouterr().err
    assert run(["simulate", JOB, "--trace", str(path), "--hours", "1"]) == 0


def test_figures_that_cannot_be_written_are_not_lost_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate = ["simulate", JOB, "--trace", MARKET, "--json"]
    for arguments in (simulate, ["trace", "stats", MARKET]):
        with (tmp_path / "out").open("w") as full, files_up_to(0), monkeypatch.context() as patch:
            patch.setattr("sys.stdout", full)
            assert run(arguments) == 2
        assert "standard output cannot be written" in capsys.readouterr().err


def test_closed_standard_error_is_no_reason_to_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    assert run(["simulate", JOB, "--trace", MARKET]) == 0


def test_a_market_of_very_many_nodes_takes_no_longer_for_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    many = ["--hazard", ".01", "--nodes", "40000", "--hours", "1"]
    assert figure(body_of(many, capsys), "steps") == 1500


def test_counts_are_whole_and_a_run_that_never_began_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--hazard", "0", "--nodes", "2", "--hours", "1", "--rivals"]
    assert run(["simulate", JOB, *arguments]) == 0
    text = capsys.readouterr().out
    assert "(hazard 0) of 2 nodes" in text.splitlines()[0]
    assert "it never began: 4 nodes" in text
    assert " 0.0\n" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no market is named"),
        (["--trace", MARKET, "--hazard", ".1"], "--hazard 0.1 does not go with --trace"),
        (["--trace", MARKET, "--seeds", "3"], "a trace has no chance in it"),
        (["--hazard", ".1", "--times", "2"], "--times 2 belongs to --trace"),
        (["--hazard", "-1"], "--hazard -1 is no rate"),
        (["--hazard", ".1", "--seeds", "0"], "--seeds 0 is no number of runs"),
        (["--trace", MARKET, "--time-scale", "0"], "--time-scale 0 plays nothing"),
        (["--trace", MARKET, "--boot-seconds", "-1"], "--boot-seconds -1 is no time"),
        (["--trace", MARKET, "--times", "0"], "0 copies"),
        (["--trace", "missing.csv"], "missing.csv"),
        (["--trace", MARKET, "--plot", "x.png"], "ends in .svg"),
        (["--market", "wild"], "--market 'wild' is no market"),
        (["--market", "calm", "--hazard", "1"], "--market calm and --hazard 1 are two markets"),
        (["--market", "calm", "--bulk", "2"], "--bulk 2 belongs to --hazard; --market has its own"),
        (["--hazard", ".1", "--nodes", "0"], "--nodes 0 is no market"),
        (["--hazard", ".1", "--first-seed", "-1"], "--first-seed -1 is no seed"),
        (["--trace", MARKET, "--time-scale", "1e-320"], "plays nothing; give one from 1e-06"),
        (["--trace", MARKET, "--time-scale", "nan"], "--time-scale nan plays nothing"),
        (["--trace", MARKET, "--boot-seconds", "1e308"], "--boot-seconds 1e+308 is no time"),
        (["--trace", MARKET, "--far-gbps", "0"], "--far-gbps 0 is no link; give Gbit/s above 0"),
        (["--trace", MARKET, "--far-ms", "1e308"], "--far-ms 1e+308 is no link"),
        (["--trace", MARKET, "--far", "a,a=2"], "--far a,a=2 is no link; give two zones"),
        (["--trace", MARKET, "--far", "a,b=wide"], "--far a,b=wide is no link"),
        (["--trace", MARKET, "--far", "a,b=0,1"], "--far a,b=0,1: 0 is no link"),
        (["--trace", MARKET, "--far", "a,b=1,-1"], "--far a,b=1,-1: -1 is no link"),
        (["--trace", MARKET, "--far", "a,b=1", "--far", "b,a=2"], "given twice"),
        (["--trace", MARKET, "--restart-s", "paper=5"], "--restart-s paper=5 is of another way"),
        (["--trace", MARKET, "--rivals", "--restart-s", "x=1"], "is no restart; give one of"),
        (
            [
                *("--trace", MARKET, "--set", "cluster.virtual_forward_ms=[0.0]"),
                *("--set", "cluster.virtual_backward_ms=[0.0]"),
            ],
            "operations take 0 s by times given",
        ),
        (["--swarm", "3"], "No such option '--swarm'"),
        (["--preset", "nsdi23"], "No such option '--preset'"),
    ],
)
def test_bad_input_is_one_line_with_a_remedy(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", JOB, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert words in error
