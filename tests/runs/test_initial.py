"""`train.init`: which weights it names, what is refused before a start, and what bits follow."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bamboo.checkpoint.final import write_manifest, write_stage
from bamboo.checkpoint.initial import load_layers
from bamboo.config.load import job_to_json
from bamboo.config.resolve import semantics
from bamboo.config.tree import JobConfig
from bamboo.controller import launching
from bamboo.data.dataset import load_data
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.kept_weights import INIT_FOLDER
from bamboo.models import build_model
from bamboo.runs import initial
from bamboo.runs.run_folder import RunFolder, write_json
from bamboo.runtime.check.reference import CalmRun
from bamboo.runtime.check.verify import calm_run, job_of_run, verify
from bamboo.runtime.step.numerics import prepare
from bamboo.runtime.step.slots import SlotBuilder
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import Placement, Strategy
from tests.attested import write_attested
from tests.jobs import tiny_job
from tests.runtime.check.kept_run import STEPS, flip, write_run
from tests.study.on_paper import body_of, nothing_is_looked_at, refused

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run of 12 steps that is done, with a checkpoint every third."""
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    folder = RunFolder(id=RunId("run"), path=write_run(tmp_path))
    body = json.loads(folder.resolved.read_text()) | {"started_s": 1.0}
    write_json(folder.resolved, body)
    write_json(folder.receipt, {"step": STEPS, "outcome": "done"})
    return folder


def job_with(folder: RunFolder, init: str, *overrides: str) -> JobConfig:
    return tiny_job(folder.path.parent, (f"train.init={init}", *overrides))


def kept_in(folder: RunFolder, job: JobConfig) -> tuple[JobConfig, RunFolder]:
    """As a launch does it; the job, and the new run's folder."""
    job, weights = initial.begin_with(job)
    assert weights is not None
    new = RunFolder(id=RunId("new"), path=folder.path.parent / "new")
    new.path.mkdir()
    initial.keep(job, weights, new)
    return job, new


def test_the_first_loss_is_the_next_one_of_the_other_run(other: RunFolder, tmp_path: Path) -> None:
    """With the data at the same place, and the same keys of randomness; the other run is gone."""
    job, new = kept_in(other, job_with(other, "run:run"))
    before = calm_run(other.path, job_of_run(other.path), build_model(job), data := load_data(job))
    for _ in range(STEPS):
        before.step()
    other.path.rename(tmp_path / "elsewhere")
    after = calm_run(new.path, job, build_model(job), data)
    after.steps_done = STEPS
    assert after.step().hex() == before.step().hex()
    fresh = CalmRun(job, build_model(job), data)
    assert fresh.step().hex() != calm_run(new.path, job, build_model(job), data).step().hex()


def test_a_node_begins_its_stage_with_them_and_with_moments_of_zero(other: RunFolder) -> None:
    job, new = kept_in(other, job_with(other, "run:run@6"))
    prepare(job.cluster)
    data = load_data(job)
    strategy = Strategy(
        semantics=semantics(job, data_digest=data.digest),
        placement=Placement(cut=(0, 2, 4), grid=Grid(pipelines=1, stages=2), redundancy="stash"),
    )
    builder = SlotBuilder(
        job=job,
        strategy=strategy,
        workload=build_model(job),
        dataset=data,
        initial=lambda layers: load_layers(new.path / INIT_FOLDER, layers, digest=job.weights),
    )
    calm = calm_run(new.path, job, build_model(job), data).tensors()
    wide = builder.laid_out(Grid(pipelines=1, stages=3), (0, 1, 3, 4), ())
    for made in (builder, wide):
        for stage in range(made.strategy.placement.grid.stages):
            run = made.build(Slot(pipeline=0, stage=stage), owner=True)
            for name, tensor in run.tensors().items():
                assert tensor.equal(calm[name]), name
                assert name.startswith("param/") or not tensor.any()


def test_the_semantics_hold_the_digest_of_the_weights(other: RunFolder) -> None:
    def hash_of(job: JobConfig) -> str:
        return semantics(job, data_digest="").hash()

    jobs = {
        init: initial.begin_with(job_with(other, init))[0]
        for init in ("", "run:run", "run:run@12", "run:ru@9", "run:last@6")
    }
    assert len({hash_of(job) for job in jobs.values()}) == 4
    assert hash_of(jobs["run:run"]) == hash_of(jobs["run:run@12"]), "the same weights"
    assert initial.begin_with(jobs[""]) == (jobs[""], None)


def test_a_run_that_began_with_them_is_verified(other: RunFolder) -> None:
    job, new = kept_in(other, job_with(other, "run:run@9", "train.steps=2"))
    data = load_data(job)
    placement = Placement(cut=(0, 2, 4), grid=Grid(pipelines=1, stages=2), redundancy="stash")
    ours = semantics(job, data_digest=data.digest)
    write_attested(new.path, job)
    strategy = Strategy(semantics=ours, placement=placement)
    new.strategy.write_text(strategy.to_json())
    new.resolved.write_text(job_to_json(job))
    prepare(job.cluster)
    calm = calm_run(new.path, job, build_model(job), data)
    losses = [{"v": 1, "step": step, "loss": calm.step()} for step in range(2)]
    new.metrics.write_text("".join(json.dumps(one) + "\n" for one in losses))
    write_stage(new.final, 0, calm.tensors(), 2)
    write_manifest(new.final, stages=1, step=2)
    initial.check_kept(new, job, job)
    assert verify(new.path, lambda *told: None)["equal"] is True
    flip(new.path / INIT_FOLDER / "layer-00001.safetensors")
    for reads in (
        lambda: initial.check_kept(new, job, job),
        lambda: verify(new.path, lambda *told: None),
    ):
        with pytest.raises(InputError, match="the run begins with must be put back"):
            reads()
    with pytest.raises(InputError, match="other weights than run new began with, 'run:run@9'"):
        initial.check_kept(new, job, job_with(other, "run:run@6"))


@pytest.mark.parametrize(
    ("init", "says"),
    [
        ("run", "train.init = 'run': names no run; write \"run:ID\""),
        ("run:", "names no run"),
        ("run:a b", "names no run"),
        ("run:run@", "names no run"),
        ("run:run@-1", "names no run"),
        ("run:none", "train.init = 'run:none': unknown run 'none' in"),
        ("run:run@7", r"run has no checkpoint of step 7; take one that is there \(3, 6, 9, 12\)"),
    ],
)
def test_what_names_no_weights_is_refused(other: RunFolder, init: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        initial.begin_with(job_with(other, init))


def test_a_state_that_is_not_there_or_damaged(other: RunFolder) -> None:
    flip(other.final / "stage-01.safetensors")
    with pytest.raises(InputError, match='is damaged; take a checkpoint of it, "run:run@12"'):
        initial.begin_with(job_with(other, "run:run"))
    # The checkpoint of the same step is whole.
    job, weights = initial.begin_with(job_with(other, "run:run@12"))
    assert (weights is not None and weights.step, len(job.weights)) == (STEPS, 64)


def seen_with(shapes: dict[str, list[int]]) -> dict[str, Any]:
    """As the preflight says it, a layer after the other."""
    layers: dict[int, dict[str, list[int]]] = {}
    for name, shape in shapes.items():
        layer, _, short = name.partition(".")
        layers.setdefault(int(layer), {})[short] = shape
    return {"layers": [{"index": index, "shapes": own} for index, own in layers.items()]}


def _narrower(shapes: dict[str, list[int]]) -> None:
    shapes["1.attention.weight"] = [1, 1]


def _fewer(shapes: dict[str, list[int]]) -> None:
    for name in [name for name in shapes if name.startswith("2.")]:
        del shapes[name]


def _more(shapes: dict[str, list[int]]) -> None:
    shapes["10.bias"] = [4]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            _fewer,
            r"model: 2\.\S+ is not there in this one and F32 of shape \[.*\] in those",
        ),
        (
            _more,
            r"10.bias is F32 of shape \[4\] in this one and not there in those weights; take we",
        ),
        (_narrower, r"1.attention.weight is F32 of shape \[1, 1\] in this one and not there"),
    ],
)
def test_another_model_is_refused_by_the_first_tensor_that_differs(
    other: RunFolder, change: Callable[[dict[str, list[int]]], None], says: str
) -> None:
    job, weights = initial.begin_with(job_with(other, "run:run"))
    assert weights is not None
    shapes = {name: list(shape) for name, (_, shape) in weights.shapes.items()}
    initial.check_fits(job, weights, seen_with(shapes))
    initial.check_fits(job, weights, {"layers": [{"index": 0}]})
    change(shapes)
    with pytest.raises(InputError, match=says):
        initial.check_fits(job, weights, seen_with(shapes))


def test_plan_launch_and_simulation_mean_one_training(
    other: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A strategy of the plan is one of the job's for a launch, which looks at the weights."""
    nothing_is_looked_at(monkeypatch)
    job = job_with(other, "run:run")
    path = Path(job.file).with_name("plan.json")
    planned = body_of(capsys, "plan", job.file, "--json", "--set", "train.init=run:run")
    path.write_text(json.dumps(planned))
    digest = initial.begin_with(job)[0].weights
    assert planned["strategy"]["semantics"]["init"] == digest
    for verb in (["launch", "--dry-run"], ["simulate", "--hazard", "0", "--hours", "1"]):
        words = [*verb, job.file, "--set", "train.init=run:run", "--strategy", str(path), "--json"]
        body_of(capsys, *words)
        said = refused(capsys, [*words, "--set", "train.init=run:none"])
        assert "unknown run 'none'" in said
    assert "unknown run" in refused(capsys, ["plan", job.file, "--set", "train.init=run:none"])


def test_a_full_disk_is_said_and_leaves_no_run(
    other: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, weights = initial.begin_with(job_with(other, "run:run"))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(initial, "keep_weights", full)
    prepared: Any = SimpleNamespace(
        run=RunId("new"), job=job, weights=weights, planned=SimpleNamespace(code=None)
    )
    with pytest.raises(InputError, match=r"new/init: No space left on device; make room there"):
        launching.claim(prepared, source=Path(job.file), started_s=1.0, detached=False)
    assert not (other.path.parent / "new").exists()


def test_where_they_come_from_is_said(other: RunFolder) -> None:
    job, weights = initial.begin_with(job_with(other, "run:run@3"))
    assert weights is not None
    said = initial.said(weights)
    assert said.startswith(f"begins with the weights of run run after step 3 ({job.weights[:12]})")
