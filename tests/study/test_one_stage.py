"""`cluster.stages = 1` through the command line: what is planned, priced, played and refused."""

import json
from pathlib import Path

import pytest

from cli.main import run
from tests.study.on_paper import body_of, in_folder, refused, sets

pytestmark = pytest.mark.timeout(180)

FLAT = ("cluster.stages=1", "cluster.redundancy=auto")
THREE = sets(*FLAT, "cluster.pipelines=3", "train.virtual_nodes=4")
ALONE = sets(*FLAT, "cluster.pipelines=1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_folder(tmp_path, monkeypatch)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("more", "mode"),
    [
        ((*THREE,), "peer"),
        ((*ALONE,), "off"),
        ((*ALONE, *sets("cluster.max_pipelines=2")), "peer"),
        ((*THREE, *sets("cloud.market=on-demand")), "off"),
        ((*ALONE, *sets("cluster.max_pipelines=2", "cloud.market=on-demand")), "off"),
    ],
)
def test_auto_is_one_of_the_two(
    more: tuple[str, ...], mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = body_of(capsys, "launch", "job.toml", "--dry-run", "--json", *more)
    assert body["redundancy"] == mode
    assert body["grid"]["stages"] == 1


@pytest.mark.usefixtures("folder")
def test_the_plan_of_three_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "job.toml", *THREE]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "3 pipelines of 1 stage, redundancy peer" in words
    assert "any one of the 3 nodes is survived from another pipeline" in words
    assert "3 x 1 peer" in words
    assert "neighbours" not in words
    assert "stash" not in words.split("this plan and the next")[0]


@pytest.mark.usefixtures("folder")
def test_the_plan_of_one_node_says_what_a_loss_costs(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("launch", "job.toml", "--dry-run", "--verbose", *ALONE)
    assert run([*arguments, *sets("checkpoint.every_steps=0")]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "The loss of the only node ends the run. Redundancy is 'off', and no periodic" in words
    assert "on average, modelled: half of the run, and the start of another one." in words
    assert run([*arguments, *sets("checkpoint.every_steps=10")]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "The loss of the only node is restored from the newest checkpoint" in words
    assert "half of the work between two checkpoints, and the start of another node." in words


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("every", [0, 10])
def test_one_node_is_planned_with_and_without_a_checkpoint(
    every: int, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = sets(f"checkpoint.every_steps={every}")
    for asked in (ALONE, ("--nodes", "1"), ("--max-nodes", "1")):
        body = body_of(capsys, "plan", "job.toml", "--json", *keys, *asked)
        assert (body["grid"], body["redundancy"]) == ({"pipelines": 1, "stages": 1}, "off")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("mode", ["stash", "gap", "eager", "full"])
def test_replicas_are_refused_by_every_command(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = sets("cluster.stages=1", f"cluster.redundancy={mode}")
    says = "needs two stages: with one, every peer already holds the exact state; take off, or peer"
    for command in (("launch", "--dry-run"), ("plan",), ("cost",), ("simulate", "--hazard", "1")):
        name, *options = command
        assert says in refused(capsys, [name, "job.toml", *options, *flat])
    assert says in refused(capsys, ["schedule", "--stages", "1", "--redundancy", mode])


@pytest.mark.usefixtures("folder")
def test_a_strategy_of_one_stage_places_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    planned = body_of(capsys, "plan", "job.toml", "--json", *THREE)
    assert planned["grid"] == {"pipelines": 3, "stages": 1}
    Path("plan.json").write_text(json.dumps(planned))
    same = sets("train.virtual_nodes=4")
    launched = body_of(
        capsys, "launch", "job.toml", "--dry-run", "--json", "--strategy", "plan.json", *same
    )
    for name in ("grid", "cut", "redundancy", "samples_per_usd"):
        assert launched[name] == planned[name]
    planned["strategy"]["placement"]["redundancy"] = "stash"
    Path("plan.json").write_text(json.dumps(planned))
    error = refused(capsys, ["launch", "job.toml", "--dry-run", "--strategy", "plan.json", *same])
    assert "redundancy 'stash' needs two stages: with one, every peer already holds" in error


@pytest.mark.usefixtures("folder")
def test_it_is_priced_and_played_beside_the_other_ways(capsys: pytest.CaptureFixture[str]) -> None:
    for job, nodes in ((THREE, 3), (ALONE, 1)):
        quick = ("--seeds", "1", "--rows", "3", "--type", "g4dn.xlarge")
        rows = body_of(capsys, "cost", "job.toml", "--json", *quick, *job)["options"]
        assert rows
        assert all(row["nodes"] <= nodes for row in rows)
        assert any(row["stages"] == 1 for row in rows)
        market = ("--hazard", "2", "--hours", "2", "--endless", "--rivals")
        systems = body_of(capsys, "simulate", "job.toml", "--json", *market, *job)["systems"]
        assert all(one["figures"]["steps"]["mean"] > 0 for one in systems.values())
        assert systems["bamboo"]["figures"]["failovers"]["mean"] == 0
