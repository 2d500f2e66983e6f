"""Rates of losses that commands use: of the user's own runs, and never broken by any of them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo.config.load import load_job
from bamboo.config.resolve import resolve
from bamboo.ids import RunId
from bamboo.planner.risks.hazards import Lived, LossRate, OwnRuns, said
from bamboo.study.hazards import own_runs, rate_of
from bamboo.study.planning import Planned, plan_job
from cli import main
from cli.views.plan import plan_body, plan_text
from cli.views.simulate import planned_for
from tests.jobs import tiny_job
from tests.study.facts import seen

REGION = "us-east-1"
KIND = "g4dn.xlarge"
Record = Mapping[str, Any]


def started(instance: str, t: float, *, zone: str = "a", market: str = "spot") -> Record:
    return {
        **{"kind": "start", "t": t, "instance": instance, "zone": f"{REGION}{zone}"},
        **{"instance_type": KIND, "market": market, "usd_per_hour": 0.2},
    }


def ended(instance: str, t: float, cause: str = "interrupted") -> Record:
    return {"kind": "end", "t": t, "instance": instance, "cause": cause}


TEN_HOURS = (
    started("i-1", 0.0),
    ended("i-1", 18_000.0),
    started("i-2", 0.0, zone="b"),
    {"kind": "seen", "t": 10_800.0, "instance": "i-2"},
    started("i-3", 0.0, zone="b"),
    ended("i-3", 7200.0, "terminated"),
    started("i-4", 0.0, market="on-demand"),
    ended("i-4", 7200.0, "terminated"),
)


def ran(
    home: Path,
    name: str,
    *records: Record,
    provider: str = "ec2",
    region: str = REGION,
) -> Path:
    folder = home / name
    folder.mkdir(parents=True)
    cloud = {"provider": provider, "region": region}
    body = {"schema_version": 1, "started_s": 1.0, "cloud": cloud}
    (folder / "resolved.json").write_text(json.dumps(body))
    lines = "".join(f"{json.dumps(one)}\n" for one in records)
    (folder / "cloud.jsonl").write_text(lines)
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    return tmp_path / "runs"


def test_hours_and_losses_on_spot_are_counted_by_type_and_zone(home: Path) -> None:
    assert own_runs(REGION) == {}
    ran(home, "one", *TEN_HOURS)
    ran(home, "two", started("i-9", 0.0), ended("i-9", 3600.0))
    zones = {
        f"{REGION}a": Lived(hours=6.0, losses=2),
        f"{REGION}b": Lived(hours=5.0, losses=0),
    }
    assert own_runs(REGION) == {KIND: OwnRuns(runs=2, by_zone=zones)}


def test_runs_of_this_machine_of_elsewhere_and_damaged_ones_are_none(home: Path) -> None:
    ran(home, "good", *TEN_HOURS)
    only = own_runs(REGION)
    ran(home, "here", *TEN_HOURS, provider="local")
    ran(home, "there", *TEN_HOURS, region="eu-west-1")
    ran(home, "unbegun")
    (ran(home, "odd", *TEN_HOURS) / "resolved.json").write_text('{"schema_version": 1}')
    (ran(home, "torn", *TEN_HOURS) / "resolved.json").write_text("{")
    (ran(home, "binary", *TEN_HOURS) / "resolved.json").write_bytes(b"\xff\x00")
    (ran(home, "garbled", *TEN_HOURS) / "cloud.jsonl").write_text("[1]\n{}\n")
    ran(home, "unknown", {**started("i-1", 0.0), "instance_type": "no.such"})
    ran(home, "endless", started("i-1", 0.0), ended("i-1", float("inf")))
    logless = ran(home, "folder", *TEN_HOURS) / "cloud.jsonl"
    logless.unlink()
    logless.mkdir()
    (ran(home, "prices", *TEN_HOURS) / "prices.json").write_text("no JSON")
    assert own_runs(REGION) == only
    assert rate_of(KIND, REGION).word == "by your own runs"
    assert rate_of("g5.xlarge", REGION).word == "modelled by its band"


def planned(home: Path, rate: LossRate | None = None) -> Planned:
    job = resolve(load_job(home.parent / "job.toml", ()))
    return plan_job(job, seen(job), run=RunId("r"), now_s=1000.0, rate=rate)


def test_a_plan_names_the_runs_that_it_was_made_with(home: Path) -> None:
    ran(home, "one", *TEN_HOURS)
    words = " ".join(plan_text("r", planned(home)).split())
    # (10 h x 0.461 + 1 loss) / (10 h + 10 h)
    assert (
        "losses: 0.281 per node-hour, by your own runs: 1 loss in 10 instance-hours of g4dn.xlarge "
        "in 1 run (0.254 in us-east-1a, 0.187 in us-east-1b), after 10 h at 0.461, modelled by"
    ) in words
    assert "(0.281 losses per node-hour, by your own runs)" in words
    body = plan_body("r", planned(home, said(0.2)))
    assert body["losses"] == {"per_node_hour": 0.2, "by_zone": {}, "source": "as --hazard says"}


def test_a_zone_in_which_own_runs_lost_much_has_the_more_fatal_losses(home: Path) -> None:
    ran(home, "one", started("i-7", 0.0, zone="c"), ended("i-7", 60.0), *TEN_HOURS)

    def fatal(zone: str) -> float:
        sets = (f'cloud.zones=["{REGION}{zone}"]', "cluster.redundancy=stash")
        job = resolve(load_job(home.parent / "job.toml", sets))
        plan = plan_job(job, seen(job), run=RunId("r"), now_s=0.0).plan
        assert plan.chosen is not None
        return plan.chosen.fatal_per_hour / plan.rate.of(f"{REGION}{zone}")

    assert fatal("a") == pytest.approx(fatal("b")) == pytest.approx(fatal("c"))
    assert fatal("c") > 0
    rate = rate_of(KIND, REGION)
    assert rate.of(f"{REGION}b") < rate.of(f"{REGION}a") < rate.of(f"{REGION}c")


FAST = ("--seeds", "1", "--rows", "1", "--max-nodes", "3")


def test_cost_has_a_rate_for_each_type_and_says_what_it_did_not_compare(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = ("--type", KIND, "--type", "g5.xlarge", "--type", "p5.4xlarge")
    assert main.run(["cost", "job.toml", *FAST, *kinds, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    rates = {name: round(one["per_node_hour"], 3) for name, one in body["losses"].items()}
    assert rates.items() <= {KIND: 0.461, "g5.xlarge": 0.611}.items()
    assert rates
    name, rate = next(iter(rates.items()))
    assert f"{rate} on {name}, each by the ratio of the type's band" in body["market"]
    assert body["not_considered"] == (
        "Not considered on spot, without a price in the data: p5.4xlarge."
    )
    taken = next(row for row in body["options"] if row["market"] == "spot")
    spot = taken["nodes"] * body["losses"][taken["instance_type"]]["per_node_hour"]
    assert taken["preemptions"] == pytest.approx(spot * taken["hours"])


def test_a_simulation_says_which_losses_its_plan_is_for(home: Path) -> None:
    words = " ".join(" ".join(planned_for(planned(home), interval_is_open=True)).split())
    assert words.startswith(
        "what the job leaves to its plan is for losses of 0.461 per node-hour, "
    )
    settled = replace(planned(home), redundancy_why="")
    assert planned_for(settled, interval_is_open=True)
    assert planned_for(settled, interval_is_open=False) == []
