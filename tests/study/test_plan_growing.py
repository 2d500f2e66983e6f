"""`bamboo plan` of runs that do not begin with all their pipelines, and of another hazard: rate and
price are of one fleet, on paper, in a launch and simulated."""

import json
from pathlib import Path

import pytest

from bamboo import wiring
from bamboo.quantities import duration, rate, usd
from bamboo.study.hazards import rate_of
from cli.main import run
from tests.study.facts import seen, trained
from tests.study.on_paper import body_of, in_folder, refused, sets

pytestmark = pytest.mark.timeout(120)
ROOM = round(15.2 * 2**30)
"""Of the example's T4, for tensors."""
GROWING = sets("cluster.stages=2", "cluster.max_pipelines=4", "train.virtual_nodes=4")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_folder(tmp_path, monkeypatch)


def test_a_run_that_grows_is_promised_rate_and_price_of_the_grid_that_it_pays_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = [*GROWING, *sets("cluster.redundancy=stash", "train.steps=20000")]
    planned = body_of(capsys, "plan", "job.toml", "--json", *own)
    assert (planned["grid"], planned["instances"]) == ({"pipelines": 1, "stages": 2}, 8)
    expected = planned["expected"]
    assert (expected["grid"], expected["nodes"]) == ({"pipelines": 4, "stages": 2}, 8)
    assert expected["step_s"] == pytest.approx(planned["step_s"], rel=1e-3)
    assert expected["samples_per_usd"] * (1 + expected["losses_share"]) == pytest.approx(
        planned["samples_per_usd"], rel=1e-3
    )
    at_once = [*own, *sets("cluster.pipelines=4")]
    whole = body_of(capsys, "launch", "job.toml", "--dry-run", "--json", *at_once)
    launched = body_of(capsys, "launch", "job.toml", "--dry-run", "--json", *own)
    calm = ["--hazard", "0", "--hours", "10", "--endless"]
    simulated = body_of(capsys, "simulate", "job.toml", "--json", *calm, *own)
    figures = simulated["systems"]["bamboo"]["figures"]
    for name in ("samples_per_usd", "samples_per_s", "usd_per_hour"):
        assert launched[name] == planned[name] == whole[name]
        assert figures[name]["mean"] == pytest.approx(planned[name], rel=1e-3)


def test_the_text_of_a_run_that_grows_has_the_figures_of_one_grid(
    capsys: pytest.CaptureFixture[str],
) -> None:
    planned = body_of(capsys, "plan", "job.toml", "--json", *GROWING)
    assert run(["plan", "job.toml", *GROWING]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    words = " ".join(text.split())
    head = f"a calm step of all 4 pipelines takes {duration(planned['step_s'])}: "
    head += f"{rate(planned['samples_per_s'])} samples/s, {rate(planned['samples_per_usd'])} "
    assert head in words
    assert f"all steps {duration(planned['step_s'] * 200)}, " in words
    assert "step, value and comparison are those of that grid" in words


def test_a_short_job_has_the_least_that_is_billed_beside_its_dollars(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for steps, is_short in ((2, True), (2_000_000, False)):
        own = [*GROWING, *sets(f"train.steps={steps}")]
        planned = body_of(capsys, "plan", "job.toml", "--json", *own)
        assert (planned["step_s"] * steps < 60) is is_short
        assert run(["plan", "job.toml", *own]) == 0
        words = " ".join(capsys.readouterr().out.split())
        least = f"; at least {usd(planned['usd_per_hour'] / 60)} is billed: 60 s an instance"
        assert (least in words) is is_short


def test_a_run_never_grows_to_a_grid_that_its_memory_does_not_hold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = sets("cluster.stages=2", "cluster.max_pipelines=2", "cluster.redundancy=off")

    def most(pipelines: int) -> int:
        at_once = [*own, *sets(f"cluster.pipelines={pipelines}")]
        memory = body_of(capsys, "plan", "job.toml", "--json", *at_once)["memory"]
        return max(int(stage["total"]) for stage in memory)

    def of(parameters: int) -> None:
        layers = trained(parameters)
        monkeypatch.setattr(
            wiring,
            "run_preflight",
            lambda job, **_: seen(job) | {"layers": [one | layers for one in seen(job)["layers"]]},
        )

    of(1_000_000)
    one, two = most(1), most(2)
    assert two > one
    of(round(ROOM / ((one + two) / 2) * 1_000_000))
    planned = body_of(capsys, "plan", "job.toml", "--json", *own)
    assert planned["expected"]["grid"] == {"pipelines": 1, "stages": 2}
    assert planned["expected"]["most_bytes"] <= ROOM
    assert planned["expected"]["cut"] == planned["cut"]
    assert planned["instances"] == 2, "what has no work is not rented"
    (never,) = [note for note in planned["notes"] if "never grows" in note]
    assert never.startswith("The run never grows to 2 x 2 (18.6 GiB): ")
    assert never.endswith(
        "a node would need more than fits one T4, which has 15.2 GiB for tensors (of 16)."
    )
    scaled = [*own, *sets("autoscale.enabled=true")]
    assert body_of(capsys, "plan", "job.toml", "--json", *scaled)["autoscale"]["sizes"] == [2]
    simulated = ["simulate", "job.toml", "--hazard", "0", "--nodes", "8", "--json", *scaled]
    assert body_of(capsys, *simulated)["autoscale"]["sizes"] == [2]
    assert run(["launch", "job.toml", "--dry-run", *scaled]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "autoscale chooses among 2 nodes: each of these sizes fits one T4" in words
    refused(capsys, ["plan", "job.toml", *own, *sets("cluster.pipelines=2")])


def test_a_run_that_chooses_its_size_is_planned_at_the_size_that_it_is_launched_at(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = [*GROWING, *sets("autoscale.enabled=true", "cluster.redundancy=stash")]
    planned = body_of(capsys, "plan", "job.toml", "--json", *own)
    launched = body_of(capsys, "launch", "job.toml", "--dry-run", "--json", *own)
    assert planned["instances"] == launched["instances"] == 2
    assert planned["expected"]["nodes"] == 2
    for name in ("samples_per_usd", "samples_per_s", "usd_per_hour"):
        assert launched[name] == planned[name]


def test_a_run_that_chooses_its_size_begins_with_the_grid_of_its_strategy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    four = body_of(capsys, "plan", "job.toml", "--json", *GROWING, *sets("cluster.pipelines=4"))
    Path("plan.json").write_text(json.dumps(four))
    dry = ["launch", "job.toml", "--autoscale", "--strategy", "plan.json", "--dry-run", "--json"]
    launched = body_of(capsys, *dry, *GROWING)
    assert launched["grid"] == {"pipelines": 4, "stages": 2}
    assert launched["instances"] == 8
    error = refused(capsys, [*dry, *GROWING, "--max-instances", "1"])
    assert "needs 8 instances, for a grid of 4 x 2;" in error


def test_a_refusal_names_the_grid_that_it_counted(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["launch", "job.toml", "--autoscale", "--max-instances", "1", "--dry-run", *GROWING]
    assert "needs 2 instances, for a grid of 1 x 2;" in refused(capsys, few)


def test_the_spread_is_priced_for_the_hazard_that_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fatal = {}
    launched = rate_of("g4dn.xlarge", "us-east-1").per_node_hour
    for hazard in (0.0, launched, 5.0):
        asked = ["plan", "job.toml", "--hazard", str(hazard), *sets("cluster.redundancy=stash")]
        body = body_of(capsys, *asked, "--json")
        taken = next(one for one in body["spreads"] if one["name"] == body["spread"])
        assert body["expected"]["spread"] == body["spread"]
        assert f" {hazard:.3g} losses per node-hour on spot" in body["spread_reason"]
        assert body["expected"]["fatal_per_hour"] == pytest.approx(taken["fatal_losses_per_hour"])
        fatal[hazard] = body["spreads"][0]["fatal_losses_per_hour"]
        said = f"give it --set cluster.spread={body['spread']} to have this one"
        assert any(said in note for note in body["notes"]) is (hazard != launched)
    assert fatal[0.0] == 0
    assert fatal[5.0] == pytest.approx(fatal[launched] * 5 / launched)
    assert fatal[5.0] > 0
