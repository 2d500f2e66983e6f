"""`--gpu`: layers modelled for a GPU in `plan`, `simulate` and a dry run, the same as `cost` has
them; when they are modelled though nobody asks; and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo import wiring
from bamboo.config.load import load_job
from bamboo.config.tree import JobConfig
from bamboo.controller import launching
from bamboo.planner.profiles.profiled import Profile
from bamboo.study import modelled
from bamboo.study.workload import MODELLED
from cli.main import run
from tests.planner.profiles.made_up import layer, profile
from tests.study.facts import seen
from tests.study.on_paper import body_of, in_folder, refused, sets

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_folder(tmp_path, monkeypatch)


def test_the_layers_are_modelled_and_none_is_looked_at(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def look(
        job: object, *, told: object = None, note: object = None, model: bool = True
    ) -> object:
        del told, note
        looks.append(model)
        return seen(load_job(Path("job.toml")), model=model)

    monkeypatch.setattr(wiring, "run_preflight", look)
    body = body_of(capsys, "plan", "job.toml", "--gpu", "--json")
    assert looks == [False]
    assert body["modelled_gpu"] == "T4"
    assert body["samples_per_s_source"] == (
        "modelled for T4 by published figures, from the model's shape"
    )
    assert body["expected"]["samples_per_usd"] > 0
    assert run(["plan", "job.toml", "--gpu", "t4"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "modelled for T4 by published figures" in words
    assert "this machine has" not in words, "it runs on none of this machine's cores"


@pytest.mark.parametrize("hazard", ["0", "0.611"])
def test_the_same_grid_mode_and_price_are_worth_the_same_in_a_plan_and_in_cost(
    capsys: pytest.CaptureFixture[str], hazard: str
) -> None:
    own = sets("model.width=512")
    market = ["--hazard", hazard, "--seeds", "1", "--max-nodes", "8", "--type", "g5.xlarge"]
    priced = body_of(capsys, "cost", "job.toml", *market, "--json", *own)
    on_spot = [
        row for row in priced["options"] if (row["market"], row["spread"]) == ("spot", "one")
    ]
    modes = set()
    for row in on_spot:
        mode, grid = row["resilience"], (row["pipelines"], row["stages"])
        modes.add(mode)
        there = sets(
            f"cluster.pipelines={grid[0]}",
            f"cluster.stages={grid[1]}",
            f"cluster.redundancy={mode}",
            "cluster.spread=one",
            'cloud.instance_types=["g5.xlarge"]',
        )
        taken = ["--gpu", "--hazard", hazard, "--json"]
        planned = body_of(capsys, "plan", "job.toml", *taken, *own, *there)
        expected = planned["expected"]
        assert row["cut"] == planned["cut"]
        assert row["usd_per_hour"] == pytest.approx(planned["usd_per_hour"], rel=1e-3)
        assert row["samples_per_s"] == pytest.approx(expected["expected_samples_per_s"], rel=1e-3)
        assert row["samples_per_usd"] == pytest.approx(expected["samples_per_usd"], rel=1e-3)
        assert row["source"] == planned["samples_per_s_source"]
    assert len(modes) >= 3


def test_its_strategy_places_a_launch_and_a_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["job.toml", "--gpu", "--json"]
    planned = body_of(capsys, "plan", *asked, "--max-nodes", "6")
    Path("plan.json").write_text(json.dumps(planned))
    placed = [*asked, "--strategy", "plan.json"]
    launched = body_of(capsys, "launch", *placed, "--dry-run")
    for name in ("grid", "cut", "redundancy", "semantic_hash", "samples_per_usd", "step_s"):
        assert launched[name] == planned[name]
    calm = ["--hazard", "0", "--hours", "1"]
    simulated = body_of(capsys, "simulate", *placed, *calm)
    figures = simulated["systems"]["bamboo"]["figures"]
    expected = planned["expected"]
    assert figures["samples_per_s"]["mean"] == pytest.approx(expected["samples_per_s"], rel=1e-3)
    # Who has looked at the layers takes it, too: the training is the same one.
    measured = ["job.toml", "--strategy", "plan.json", "--dry-run", "--json"]
    assert body_of(capsys, "launch", *measured)["cut"] == planned["cut"]


def test_a_step_ends_when_its_busiest_node_has_sent_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = ("cluster.redundancy=stash", "cluster.sync=tree")
    own = sets("model.width=1024", "cluster.pipelines=2", *whole)
    planned = body_of(capsys, "plan", "job.toml", "--gpu", "--json", *own)
    for node in planned["nodes"]:
        spent = node["useful_s"] + node["redundant_s"] + node["bubble_s"]
        assert spent == pytest.approx(planned["step_s"])
    gradient_bytes = max(stage["gradients"] for stage in planned["memory"])
    # To its shadow, and to the other pipeline half of its own and half of the other's, at 5 Gbps.
    assert planned["step_s"] >= gradient_bytes * 2 / (5e9 / 8)


def test_what_this_machine_cannot_look_at_is_modelled_and_says_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = modelled._Machine

    def limited(memory_bytes: int, deadline_s: float) -> None:
        monkeypatch.setattr(
            modelled,
            "_this_machine",
            lambda: machine(memory_bytes=memory_bytes, deadline_s=deadline_s),
        )

    measured = "measured on this machine's CPU"
    for memory_bytes, deadline_s, word in (
        (2**20, 300.0, " GiB and this machine has 0.000977, so their times are modelled."),
        (2**40, 1e-6, " min, more than 1e-06 s, so their times are modelled."),
    ):
        limited(memory_bytes, deadline_s)
        body = body_of(capsys, "plan", "job.toml", "--json")
        assert body["modelled_gpu"] == "T4"
        assert [note for note in body["notes"] if note.endswith(word)]
    limited(2**40, 300.0)
    body = body_of(capsys, "plan", "job.toml", "--json")
    assert body["modelled_gpu"] is None
    assert body["samples_per_s_source"].startswith(measured)
    assert not [note for note in body["notes"] if "modelled" in note]


def test_for_ec2_they_are_modelled_whatever_this_machine_has_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = sets("cloud.provider=ec2")
    monkeypatch.setattr(launching, "_check_surroundings", lambda *_, **__: None)
    planned = body_of(capsys, "plan", "job.toml", "--json", *own)
    launched = body_of(capsys, "launch", "job.toml", "--dry-run", "--json", *own)
    assert planned["modelled_gpu"] == launched["modelled_gpu"] == "T4"
    assert planned["step_s"] == launched["step_s"]
    assert [note for note in planned["notes"] if "on the GPU of their instance" in note]
    assert [n for n in planned["notes"] if n.endswith(": modelled, not yet measured on this card.")]
    monkeypatch.setattr(modelled, "kept_profile", _kept)
    assert body_of(capsys, "plan", "job.toml", "--json", *own)["modelled_gpu"] == "T4"
    idle = sets("cluster.device=cpu", "cluster.allow_idle_gpu=true")
    body = body_of(capsys, "plan", "job.toml", "--json", *own, *idle)
    assert body["modelled_gpu"] is None
    assert body["samples_per_s_source"].startswith("measured on this machine's CPU")


def test_a_launch_looks_at_every_layer_and_takes_the_times_of_the_cards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = load_job("job.toml", ["cloud.provider=ec2"])
    looked = {"layers": [{"name": "looked at"}], "data_digest": "d"}
    devices = []

    def seen_of(job: JobConfig, *, begun: object = None, note: object) -> dict[str, Any]:
        del note
        assert begun is None
        devices.append(job.cluster.device)
        return looked

    monkeypatch.setattr(modelled, "seen_of", seen_of)
    seen = modelled.seen_for_launch(job)
    assert devices == ["cuda"]
    assert seen["layers"] == looked["layers"]
    assert seen[MODELLED].gpu == "T4"
    assert modelled.seen_for_launch(load_job("job.toml")) == looked, "on this machine"
    own = replace(job, model=replace(job.model, model="layers.py:build"))
    monkeypatch.setattr(modelled, "kept_profile", lambda job: None)
    assert modelled.seen_for_launch(own) == looked, "the work of its layers is unknown"
    monkeypatch.setattr(modelled, "kept_profile", _kept)
    assert modelled.seen_for_launch(own)[MODELLED].workload.source.endswith("counted on a CPU")


def test_cost_leaves_out_what_lacks_the_precision(capsys: pytest.CaptureFixture[str]) -> None:
    types = ("--type", "g4dn.xlarge", "--type", "g5.xlarge")
    own = ["job.toml", *sets("train.precision=bf16"), *types]
    body = body_of(capsys, "cost", *own, "--seeds", "1", "--json")
    why = body["do_not_fit"]["types"]["g4dn.xlarge"]
    assert why.startswith("train.precision = 'bf16' begins at sm_80 and one T4 is sm_75")
    assert {row["instance_type"] for row in body["options"]} == {"g5.xlarge"}


def _kept(job: object) -> Profile:
    del job
    return profile(*(layer(index) for index in range(8)))


def test_layers_of_the_users_own_need_a_kept_profile(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("layers.py").write_text("")
    own = ["job.toml", *sets("model.model=layers.py:build")]
    error = refused(capsys, ["plan", *own, "--gpu"])
    assert "no profile of it is kept" in error
    assert "bamboo profile " in error
    monkeypatch.setattr(modelled, "kept_profile", _kept)
    body = body_of(capsys, "plan", *own, "--gpu", "--json")
    assert body["samples_per_s_source"] == (
        "modelled for T4 by published figures, from work counted on a CPU"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "--gpu", "job.toml"], "job.toml is no GPU: write the job file before --gpu"),
        (["plan", "job.toml", "--gpu", "Z9"], "GPU 'Z9' is not in the table"),
        (
            ["plan", "job.toml", "--gpu", "A10G"],
            "on g4dn.xlarge, which has one T4; give --set 'cloud.instance_types=[\"g5.xlarge",
        ),
        (["plan", "job.toml", "--gpu", *sets("cluster.device=virtual")], "leave --gpu out"),
        (["launch", "job.toml", "--gpu"], "add --dry-run"),
    ],
)
def test_what_means_nothing_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, arguments)
