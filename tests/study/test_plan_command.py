"""`bamboo plan` through the command line: what it shows, the strategy that others take, the same
value everywhere, and what is refused."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo import wiring
from bamboo.config.load import load_job
from bamboo.config.tree import JobConfig
from bamboo.ports import Told
from bamboo.study import profiling
from bamboo.study.paper import Asked, plan_on_paper
from bamboo.topology.strategy import Strategy
from cli.main import run
from cli.views.brief import plan_lines
from tests.planner.profiles.made_up import layer, profile
from tests.study.facts import seen, trained
from tests.study.on_paper import body_of, in_folder, refused, sets

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_folder(tmp_path, monkeypatch)


def test_every_node_the_value_and_the_next_three_on_paper(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["plan", "job.toml"]) == 0
    text = capsys.readouterr().out
    words = " ".join(text.split())
    assert words.startswith("quota: 4 g4dn.xlarge need 16 vCPUs of the quota `All G and VT Spot")
    assert "1 pipeline of 4 stages, redundancy stash" in text
    assert "redundancy auto is stash (0.461 losses per node-hour, modelled by its band): " in words
    assert "    stage  nodes  layers  replica of " in text
    assert "    0      1  0 to 1  stage 1 " in text
    assert "expected overhead " in words
    assert "an hour are survived" in words
    assert "expected value " in words
    assert "The loss of any one of the 4 nodes is survived inside the step" in words
    assert "\n    1 x 4 stash " in text
    assert words.count(" than 1 x 4 stash, microbatches of 2") >= 3
    assert max(map(len, text.splitlines())) <= 100


def test_the_object_holds_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    body = body_of(capsys, "plan", "job.toml", "--json")
    assert [node["layers"] for node in body["nodes"]] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    for node in body["nodes"]:
        spent = node["useful_s"] + node["redundant_s"] + node["bubble_s"]
        assert spent == pytest.approx(body["step_s"])
        assert node["replicas"] == [{"pipeline": 0, "stage": (node["stage"] + 1) % 4}]
        assert node["bytes"]["total"] == body["memory"][node["stage"]]["total"]
    expected = body["expected"]
    assert expected["redundancy"] == body["redundancy"] == "stash"
    assert expected["step_s"] == pytest.approx(body["step_s"])
    assert expected["samples_per_usd"] == pytest.approx(
        body["samples_per_usd"] / (1 + expected["losses_share"])
    )
    assert len(body["next"]) == 3
    assert all(one["why"].endswith(".") for one in body["next"])
    assert body["samples_per_s_source"].startswith("measured on this machine's CPU")
    strategy = Strategy.from_json(json.dumps(body["strategy"]))
    assert strategy.placement.redundancy == "stash"
    assert list(strategy.placement.cut) == body["cut"]


def test_a_plan_over_zones_says_what_its_bytes_are_worth_beside_its_instances(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = sets('cloud.zones=["us-east-1a","us-east-1b"]', "cluster.spread=neighbours")
    body = body_of(capsys, "plan", "job.toml", "--json", *own)
    moved = body["transfer_usd_per_hour"]
    assert moved > 0
    price, samples = body["usd_per_hour"], body["samples_per_s"] * 3600
    assert body["samples_per_usd"] == pytest.approx(samples / price)
    assert body["samples_per_usd_with_transfer"] == pytest.approx(samples / (price + moved))
    assert run(["plan", "job.toml", *own]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "tokens per dollar of instances, " in words
    assert "samples with the bytes between zones" in words


@pytest.mark.parametrize("bare", [False, True])
def test_others_are_placed_by_it(bare: bool, capsys: pytest.CaptureFixture[str]) -> None:
    planned = body_of(capsys, "plan", "job.toml", "--max-nodes", "6", "--json")
    assert planned["grid"] != {"pipelines": 1, "stages": 4}, "the job's own grid is not the best"
    Path("plan.json").write_text(json.dumps(planned["strategy"] if bare else planned))
    placed = ["job.toml", "--strategy", "plan.json", "--json"]
    launched = body_of(capsys, "launch", *placed, "--dry-run")
    for name in ("grid", "cut", "redundancy", "semantic_hash", "samples_per_usd", "usd_per_hour"):
        assert launched[name] == planned[name]


def stepping(job: JobConfig, **_: object) -> dict[str, Any]:
    """As `seen`, but the optimizer takes its time, of each layer another."""
    body = seen(job)
    layers = [one | {"optimizer_ms": 0.7 * (one["index"] + 1)} for one in body["layers"]]
    return body | {"layers": layers}


@pytest.mark.parametrize("mode", ["off", "stash", "eager", "full", "full,stash,gap,eager"])
@pytest.mark.parametrize("device", ["cpu", "virtual"])
@pytest.mark.parametrize("steps", [False, True])
def test_the_value_of_a_strategy_is_the_same_on_paper_in_a_launch_and_simulated(
    device: str,
    mode: str,
    steps: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wiring, "run_preflight", stepping if steps else seen)
    own = sets(f"cluster.redundancy={mode}", f"cluster.device={device}", "train.steps=20000")
    planned = body_of(capsys, "plan", "job.toml", "--json", *own)
    Path("plan.json").write_text(json.dumps(planned))
    placed = ["job.toml", "--strategy", "plan.json", "--json", *own]
    launched = body_of(capsys, "launch", *placed, "--dry-run")
    calm = ["--hazard", "0", "--hours", "10", "--endless"]
    simulated = body_of(capsys, "simulate", *placed, *calm)["systems"]["bamboo"]["figures"]
    for name in ("samples_per_usd", "samples_per_s", "usd_per_hour"):
        assert launched[name] == planned[name]
        assert simulated[name]["mean"] == pytest.approx(planned[name], rel=1e-3)
    assert planned["expected"]["step_s"] == pytest.approx(planned["step_s"], rel=1e-3)


def test_on_the_virtual_device_layers_take_what_they_took_on_the_jobs_own_cut(
    capsys: pytest.CaptureFixture[str],
) -> None:
    virtual = sets("cluster.device=virtual", "cluster.virtual_forward_ms=[10,20,30,40]")
    own = [*virtual, *sets("train.virtual_nodes=1")]  # so that two nodes are two stages
    planned = body_of(capsys, "plan", "job.toml", "--nodes", "2", "--json", *own)
    Path("plan.json").write_text(json.dumps(planned))
    launched = body_of(
        capsys, "launch", "job.toml", "--strategy", "plan.json", "--dry-run", "--json", *own
    )
    assert launched["grid"] == {"pipelines": 1, "stages": 2}
    # 40 ms a backward of each of four stages of two layers; forwards as above.
    assert launched["cut"] == [0, 5, 8]
    stage_s = [0.010 + 0.020 + 0.015 + 0.100, 0.015 + 0.040 + 0.060]
    useful_s = [node["useful_s"] for node in planned["nodes"]]
    # Copies of gradients into messages to shadows take what they take.
    assert useful_s == pytest.approx([8 * one for one in stage_s], rel=1e-3)
    assert launched["step_s"] == pytest.approx(planned["step_s"])


def test_a_strategy_of_another_training_is_refused_by_the_names_of_what_differs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("plan.json").write_text(json.dumps(body_of(capsys, "plan", "job.toml", "--json")))
    for verb in (["launch", "--dry-run"], ["simulate", "--hazard", ".1", "--hours", "1"]):
        error = refused(
            capsys,
            [*verb, "job.toml", "--strategy", "plan.json",
             *sets("train.microbatch=4", "train.learning_rate=0.1")],
        )  # fmt: skip
        assert "plan.json: is a strategy of another training: " in error
        assert "train.microbatch is 2 there and 4 in the job" in error
        assert "train.learning_rate is 0.001 there and 0.1 in the job" in error
        assert "train.batch is" not in error


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda body: "{", "Expecting"),
        (lambda body: "[]", "schema None"),
        (lambda body: json.dumps({"strategy": 7}), "schema None"),
        (lambda body: json.dumps(body | {"schema_version": 9}), "schema 9"),
        (lambda body: json.dumps(body | {"placement": None}), "lacks something"),
        (lambda body: json.dumps(placed(body, cut=[0, 2, 4])), "does not make 4 stages"),
        (lambda body: json.dumps(placed(body, cut=[0, 2, 2, 6, 8])), "does not make 4 stages"),
        (lambda body: json.dumps(placed(body, cut=[0, 2, 4, 6.5, 8])), "whole numbers"),
        (lambda body: json.dumps(placed(body, cut=[])), "does not make 4 stages"),
        (lambda body: json.dumps(placed(body, grid={"pipelines": 0, "stages": 4})), "D >= 1"),
        (lambda body: json.dumps(placed(body, redundancy="auto")), "'auto' is no redundancy"),
        (lambda body: json.dumps(placed(body, redundancy="stash,gap")), "2 modes for 4 stages"),
        (lambda body: json.dumps(body | {"semantic_hash": "0"}), "hash does not match"),
        (lambda body: "[" * 100_000, "recursion"),
        (lambda body: '{"schema_version": ' + "9" * 5000 + "}", "limit"),
    ],
)
def test_a_file_that_is_no_strategy_is_refused(
    change: Any, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = body_of(capsys, "plan", "job.toml", "--json")["strategy"]
    Path("plan.json").write_text(change(good))
    error = refused(capsys, ["launch", "job.toml", "--dry-run", "--strategy", "plan.json"])
    assert "error: plan.json: is no strategy: " in error
    assert word in error
    assert "bamboo plan JOB --json" in error


def placed(body: dict[str, Any], **changes: object) -> dict[str, Any]:
    return body | {"placement": body["placement"] | changes}


def test_a_strategy_that_is_not_there_or_not_text_or_of_another_model_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = body_of(capsys, "plan", "job.toml", "--json")["strategy"]
    dry = ["launch", "job.toml", "--dry-run", "--strategy"]
    assert "none.json: No such file" in refused(capsys, [*dry, "none.json"])
    assert "/dev/zero: it is a device, no file" in refused(capsys, [*dry, "/dev/zero"])
    Path("plan.json").write_bytes(b"\xff\xfe\x00")
    assert "it is not text" in refused(capsys, [*dry, "plan.json"])
    Path("plan.json").write_text(json.dumps(placed(good, cut=[0, 2, 4, 6, 9])))
    assert "for 9 layers, and the model has 8" in refused(capsys, [*dry, "plan.json"])


def test_what_contradicts_a_strategy_is_refused_and_what_agrees_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = sets("cluster.redundancy=full")
    Path("plan.json").write_text(json.dumps(body_of(capsys, "plan", "job.toml", "--json", *own)))
    for verb in (["launch", "--dry-run"], ["simulate", "--hazard", ".1", "--hours", "1"]):
        placed_by = [*verb, "job.toml", "--strategy", "plan.json"]
        for override, there in (
            ("cluster.redundancy=off", "cluster.redundancy = 'full'"),
            ("cluster.stages=3", "cluster.stages = 4"),
            ("cluster.cut=[0,1,2,3]", "cluster.cut = [0, 2, 4, 6]"),
        ):
            error = refused(capsys, [*placed_by, *sets(override)])
            assert f"--set {override} contradicts plan.json, where {there}; leave one" in error
        same = sets("cluster.stages=4", "cluster.redundancy=auto", "cluster.standbys=1")
        assert run([*placed_by, *own, *same]) == 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--nodes", "0"], "--nodes 0 makes no grid"),
        (["--max-nodes", "9999999"], "makes no grid"),
        (["--nodes", "4", "--max-nodes", "4"], "give one of them"),
        (["--hazard", "-1"], "--hazard -1 is no number of losses"),
        (["--hazard", "nan"], "--hazard nan is no number of losses"),
        (["--nodes", "17"], "have no grid of 17 nodes"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert word in refused(capsys, ["plan", "job.toml", *arguments])


def test_where_nothing_is_lost_and_where_much_is_another_redundancy_is_taken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rarely = body_of(capsys, "plan", "job.toml", "--json", "--hazard", "0.0001")
    assert rarely["redundancy"] == "off"
    assert rarely["redundancy_reason"].startswith("redundancy auto is off (0.0001 losses per")
    often = body_of(capsys, "plan", "job.toml", "--json", "--hazard", "5")
    assert often["redundancy"] == "stash"
    paid = body_of(capsys, "plan", "job.toml", "--json", *sets("cloud.market=on-demand"))
    assert (paid["redundancy"], paid["expected"]["losses_share"]) == ("off", 0.0)
    said = body_of(capsys, "plan", "job.toml", "--json", *sets("cluster.redundancy=full"))
    assert (said["redundancy"], said["redundancy_reason"]) == ("full", None)


def large(job: JobConfig, **_: object) -> dict[str, Any]:
    """As `seen`, but each layer has 400 million parameters: 6.4 GB of state."""
    body = seen(job)
    return body | {"layers": [one | trained(400_000_000) for one in body["layers"]]}


def test_a_job_that_fits_nowhere_is_refused_with_the_layer_the_bytes_and_the_nearest_plans(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "run_preflight", large)
    for verb in (["plan"], ["launch", "--dry-run"], ["simulate", "--hazard", ".1"]):
        for mode in ("auto", "stash"):
            few = sets("cluster.stages=2", f"cluster.redundancy={mode}", "train.virtual_nodes=1")
            error = refused(capsys, [*verb, "job.toml", *few])
            assert "does not fit: however the 8 layers are cut into 2 stages" in error
            assert "bytes (" in error
            nearest = error.partition("nearest plans that fit: ")[2]
            assert nearest.count(" GiB)") == 3


@pytest.mark.parametrize("grid", [["--nodes", "1"], ["--max-nodes", "2"], ["--nodes", "2"]])
def test_a_number_of_nodes_that_fits_nothing_is_refused_with_plans_that_fit(
    grid: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "run_preflight", large)
    for mode in ("auto", "off"):
        job = sets(f"cluster.redundancy={mode}", "train.virtual_nodes=1")
        error = refused(capsys, ["plan", "job.toml", *grid, *job])
        assert f"however the 8 layers are cut into {grid[1]} stage" in error
        nearest = error.partition("nearest plans that fit: ")[2]
        assert nearest.count(" GiB)") == 3


def test_a_layer_too_large_for_the_type_is_refused_with_plans_on_larger_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def larger(job: JobConfig, **_: object) -> dict[str, Any]:
        body = seen(job)
        return body | {"layers": [one | trained(2 * 10**9) for one in body["layers"]]}

    monkeypatch.setattr(wiring, "run_preflight", larger)
    few = sets("cluster.redundancy=off", "train.virtual_nodes=1", "cluster.stages=8")
    error = refused(capsys, ["launch", "--dry-run", "job.toml", *few])
    assert "layer 0 (End) does not fit: however the 8 layers are cut into 8 stages" in error
    assert "at least 32,000,0" in error, "16 bytes a parameter"
    plans = error.partition("nearest plans that fit: ")[2]
    assert plans.count(" GiB)") == plans.count(" on ") == 3
    assert plans.count("1 x 8 off, microbatches of 2 on ") == 3


def wide(job: JobConfig, **_: object) -> dict[str, Any]:
    """As `seen`, but each layer holds 4 GiB of a microbatch, a quarter of it its input."""
    body, gib = seen(job), 2**30
    held = {"output_bytes": gib, "activation_bytes": 4 * gib}
    return body | {"layers": [one | held for one in body["layers"]]}


def test_layers_are_computed_again_where_a_plan_does_not_fit_without_and_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = sets("cluster.redundancy=off", "cluster.stages=4", "train.virtual_nodes=1")
    fits = body_of(capsys, "plan", "job.toml", "--json", *own)
    assert fits["recompute"] == "off"
    assert fits["saving_reason"].startswith("recompute auto is off: ")
    monkeypatch.setattr(wiring, "run_preflight", wide)
    again = body_of(capsys, "plan", "job.toml", "--json", *own)
    assert again["recompute"] == "layer"
    most = max(stage["total"] for stage in again["memory"])
    words = f"recompute auto is layer: a node needs {most / 2**30:.2f} GiB, and "
    assert again["saving_reason"].startswith(words)
    assert again["expected"]["recompute"]
    assert again["step_s"] > fits["step_s"]
    assert again["semantic_hash"] == fits["semantic_hash"]
    assert run(["plan", "job.toml", *own]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "1 pipeline of 4 stages, redundancy off, recompute layer" in text
    assert words in text
    overrides = tuple(own[1::2])
    brief = plan_lines("r", plan_on_paper(Path("job.toml"), Asked(overrides=overrides)).planned)
    assert any(line.split()[:3] == ["memory", "recompute", "layer:"] for line in brief)
    said = body_of(capsys, "plan", "job.toml", "--json", *own, *sets("cluster.recompute=layer"))
    assert (said["recompute"], said["saving_reason"]) == ("layer", None)
    error = refused(capsys, ["plan", "job.toml", *own, *sets("cluster.recompute=off")])
    assert error.count("recompute layer (") >= 1
    assert "cluster.recompute" in refused(
        capsys, ["plan", "job.toml", *sets("cluster.recompute=stage")]
    )


def test_a_cut_that_does_not_fit_is_refused_with_one_that_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "run_preflight", large)
    uneven = sets("cluster.cut=[0,1,2,3]", "cluster.redundancy=off")
    error = refused(capsys, ["plan", "job.toml", *uneven])
    assert "cluster.cut = [0, 1, 2, 3]: does not fit one T4 with redundancy" in error
    assert "take [0, 2, 4, 6]" in error


def test_the_optimizers_time_is_part_of_a_step_but_on_the_virtual_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def step_s(device: str) -> float:
        own = sets("cluster.redundancy=off", f"cluster.device={device}")
        return float(body_of(capsys, "plan", "job.toml", "--json", *own)["step_s"])

    without_s, given_s = step_s("cpu"), step_s("virtual")
    monkeypatch.setattr(wiring, "run_preflight", stepping)
    of_first_s = 0.7e-3 * (1 + 2)
    assert step_s("cpu") == pytest.approx(without_s + of_first_s, abs=0.01)
    assert step_s("cpu") >= without_s + of_first_s * 0.99
    assert step_s("virtual") == given_s


def test_the_stage_that_decides_on_redundancy_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = sets("cluster.cut=[0, 1, 2, 5]", "cluster.redundancy=eager")
    body = body_of(capsys, "plan", "job.toml", "--json", *own)
    nodes = body["nodes"]
    fullest = max(nodes, key=lambda node: node["bytes"]["total"])
    busiest = min(nodes, key=lambda node: node["bubble_s"])
    assert body["tightest"] == {"memory": fullest["stage"], "time": busiest["stage"]}
    assert run(["plan", "job.toml", *own]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"in memory stage {fullest['stage']} decides" in words
    assert f"and in time stage {busiest['stage']}, of" in words


def test_it_tells_how_far_it_is() -> None:
    heard: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def bar(what: str) -> Iterator[Told]:
        heard[what] = []
        yield lambda done, of_all: heard[what].append((done, of_all))

    plan_on_paper(Path("job.toml"), Asked(), bar=bar)
    assert list(heard) == [
        "looking at model and data",
        "planning",
        "comparing plans",
        "comparing microbatches",
    ]
    # It is one piece of work, and no share of it is known.
    assert heard.pop("planning") == []
    for told in heard.values():
        assert told
        assert all(0 <= done <= of_all for done, of_all in told)
        assert told == sorted(told)


def test_another_microbatch_is_named_and_never_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """On the virtual device an operation takes as long for any microbatch: fewer are faster."""
    own = sets("cluster.device=virtual", "train.microbatch=2")
    body = body_of(capsys, "plan", "job.toml", "--json", *own)
    best = body["microbatches"][0]
    assert {one["microbatch"] for one in body["microbatches"]} == {1, 4, 8}
    assert best["set"] == f"train.microbatch={best['microbatch']}"
    assert best["faster"] == pytest.approx(body["expected"]["step_s"] / best["step_s"] - 1)
    assert body["expected"]["microbatch"] == 2
    assert run(["plan", "job.toml", *own]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"microbatches of {best['microbatch']} instead of 2: " in words
    assert "it changes the numbers, so set it before the first launch: --set" in words
    taken = sets("cluster.device=virtual", best["set"])
    there = body_of(capsys, "plan", "job.toml", "--json", *taken)
    assert there["expected"]["step_s"] == pytest.approx(best["step_s"], rel=1e-3)
    assert all(one["faster"] <= 0.005 for one in there["microbatches"])
    assert run(["plan", "job.toml", *taken]) == 0
    assert "no other size of the same batch" in " ".join(capsys.readouterr().out.split())


def test_a_kept_profile_is_used_and_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = [replace(layer(i), forward_s=0.1 * (i + 1), backward_s=0.2) for i in range(8)]
    job = load_job("job.toml")
    key = profiling.content_key(
        job,
        device="cpu",
        machine=profiling.this_machine(with_gpus=False),
        torch_version=profiling.metadata.version("torch"),
    )
    file = tmp_path / "runs" / "profiles" / f"{key}.json"
    file.parent.mkdir(parents=True)
    before = body_of(capsys, "plan", "job.toml", "--json")
    file.write_text(profile(*slow).to_json())
    after = body_of(capsys, "plan", "job.toml", "--json")
    assert "(profile of " in after["samples_per_s_source"]
    assert after["step_s"] > 10 * before["step_s"]
    assert after["cut"] != before["cut"], "stages are balanced by the times of the profile"
    assert body_of(capsys, "launch", "job.toml", "--dry-run", "--json")["cut"] == after["cut"]
    file.write_text(profile(*slow[:3]).to_json())
    assert body_of(capsys, "plan", "job.toml", "--json")["step_s"] == before["step_s"]


def test_listed_losses_of_another_grid_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    kills = sets("chaos.kill=[{step=5,stage=3}]")
    assert not [n for n in body_of(capsys, "plan", "job.toml", "--json", *kills)["notes"]
                if "chaos" in n]  # fmt: skip
    body = body_of(capsys, "plan", "job.toml", "--json", "--nodes", "2", *kills)
    assert body["notes"][-1].startswith("chaos.kill names stages that are none of this grid")
