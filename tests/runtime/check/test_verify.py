"""`verify`: equal runs are equal, and every planted difference is found and named."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bamboo.checkpoint.final import stage_file, write_manifest, write_stage
from bamboo.config.load import job_from_json, job_to_json
from bamboo.config.resolve import semantics
from bamboo.config.tree import JobConfig
from bamboo.coord.attested import FILE
from bamboo.data.dataset import load_data
from bamboo.errors import InputError
from bamboo.models import build_model
from bamboo.runtime.check.compared import Recorded, compare
from bamboo.runtime.check.reference import CalmRun
from bamboo.runtime.check.verify import verify
from bamboo.runtime.step.numerics import local_numerics, prepare
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Placement, Strategy
from bamboo.user_code.bundle import CODE_FOLDER, identity_here
from tests.attested import write_attested
from tests.jobs import tiny_job, with_code
from tests.warm import ran

STEPS = 4
NOISY = """
import os
from torch import nn
os.write(1, b"{}")
def build(job):
    print("built")
    make = lambda: nn.Linear(16, 16)
    return [lambda: nn.Embedding(256, 16), make, make, lambda: nn.Linear(16, 256)]
"""


def _write_run(folder: Path, overrides: tuple[str, ...] = (), steps: int = STEPS) -> Path:
    """The files of a run of two stages that trained `steps` steps."""
    job = tiny_job(folder, [f"train.steps={STEPS}", *overrides])
    run = folder / "run"
    run.mkdir()
    data = load_data(job)
    prepare(job.cluster)
    calm = CalmRun(job, build_model(job), data)
    lines = []
    for step in range(steps):
        record = {"v": 1, "step": step, "loss": calm.step(), "tokens_per_s": 1.0}
        lines.append(json.dumps(record) + "\n")
    (run / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    job = with_code(job, run)
    (run / "resolved.json").write_text(job_to_json(job), encoding="utf-8")
    _write_strategy(run, job)
    write_attested(run, job)
    for stage in range(2):
        own = {n: t for n, t in calm.tensors().items() if _layer(n) // 2 == stage}
        write_stage(run / "final", stage, own, steps)
    write_manifest(run / "final", stages=2, step=steps)
    return run


def _layer(name: str) -> int:
    return int(name.split("/")[1].split(".", maxsplit=1)[0])


def _write_strategy(run: Path, job: JobConfig, numerics: Mapping[str, Any] | None = None) -> None:
    strategy = Strategy(
        semantics=semantics(
            job,
            data_digest=load_data(job).digest,
            numerics=numerics,
            code=identity_here(run / CODE_FOLDER) if job.code else None,
        ),
        placement=Placement(cut=(0, 2, 4), grid=Grid(pipelines=1, stages=2), redundancy="stash"),
    )
    (run / "strategy.json").write_text(strategy.to_json(), encoding="utf-8")


def _verify(run: Path) -> tuple[dict[str, Any], list[int]]:
    seen: list[int] = []
    return verify(run, lambda done, steps, loss: seen.append(done)), seen


def test_an_equal_run_is_equal(tmp_path: Path) -> None:
    result, seen = _verify(_write_run(tmp_path))
    assert result["equal"] is True
    assert result["first_difference"] is None
    assert result["steps"] == STEPS
    assert result["damaged_files"] == []
    assert seen == [1, 2, 3, 4]


@pytest.mark.parametrize("override", ["model.tied=true", "train.virtual_nodes=4"])
def test_other_semantics_are_repeated_too(tmp_path: Path, override: str) -> None:
    assert _verify(_write_run(tmp_path, (override,)))[0]["equal"] is True


def test_a_run_that_was_stopped_early_is_compared_up_to_there(tmp_path: Path) -> None:
    result, seen = _verify(_write_run(tmp_path, steps=2))
    assert result["equal"] is True
    assert seen == [1, 2]


def test_one_flipped_bit_is_named(tmp_path: Path) -> None:
    run = _write_run(tmp_path)
    path = run / "final" / stage_file(1)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    result, _ = _verify(run)
    assert result["equal"] is False
    assert result["first_difference"]["step"] == STEPS - 1
    assert result["first_difference"]["tensor"].startswith("param/")
    assert result["damaged_files"] == [stage_file(1)]


def test_a_tensor_that_is_missing_is_a_difference(tmp_path: Path) -> None:
    run = _write_run(tmp_path)
    job = tiny_job(tmp_path, [f"train.steps={STEPS}"])
    calm = CalmRun(job, build_model(job), load_data(job))
    for _ in range(STEPS):
        calm.step()
    own = {n: t for n, t in calm.tensors().items() if _layer(n) >= 2}
    own.pop("exp_avg/2.qkv.bias")
    write_stage(run / "final", 1, own, STEPS)
    write_manifest(run / "final", stages=2, step=STEPS)
    result, _ = _verify(run)
    assert result["first_difference"]["tensor"] == "exp_avg/2.qkv.bias"
    assert result["first_difference"]["run"] is None


def _change_metrics(run: Path, change: Any) -> None:
    path = run / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    changed = change(records)
    path.write_text("".join(json.dumps(r) + "\n" for r in changed), encoding="utf-8")


def test_the_last_bit_of_a_loss_is_seen_at_its_step(tmp_path: Path) -> None:
    import math

    run = _write_run(tmp_path)

    def nudge(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        records[2]["loss"] = math.nextafter(records[2]["loss"], 0.0)
        return records

    _change_metrics(run, nudge)
    result, seen = _verify(run)
    first = result["first_difference"]
    assert result["equal"] is False
    assert (first["step"], first["tensor"]) == (2, "loss")
    assert first["calm"] != first["run"][0]
    assert seen[-1] == 3


def test_a_loss_recorded_twice_must_be_the_same_twice(tmp_path: Path) -> None:
    run = _write_run(tmp_path)
    _change_metrics(run, lambda records: [*records, records[1]])
    assert _verify(run)[0]["equal"] is True
    _change_metrics(run, lambda records: [*records, records[1] | {"loss": 3.0}])
    assert _verify(run)[0]["first_difference"]["step"] == 1


def test_what_is_measured_beside_the_loss_is_compared() -> None:
    calm = Recorded(loss=1.0, metrics={"hits": 0.5})
    assert compare(3, calm, [calm, calm]) == {}
    for other in ({"hits": math.nextafter(0.5, 1)}, {}, {"hits": 0.5, "more": 1.0}):
        found = compare(3, calm, [calm, Recorded(loss=1.0, metrics=other)])
        assert found["first_difference"]["tensor"].startswith("metric ")
    nan = Recorded(loss=1.0, metrics={"hits": math.nan})
    assert compare(3, nan, [nan]) == {}


def test_a_loss_that_was_never_recorded_is_a_difference(tmp_path: Path) -> None:
    run = _write_run(tmp_path)
    _change_metrics(run, lambda records: [records[0], *records[2:]])
    first = _verify(run)[0]["first_difference"]
    assert (first["step"], first["tensor"], first["run"]) == (1, "loss", [])


def test_another_machine_is_refused_with_what_differs(tmp_path: Path) -> None:
    run = _write_run(tmp_path)
    job = tiny_job(tmp_path, [f"train.steps={STEPS}"])
    write_attested(run, job, cpu_capability="Z80")
    wrong = r"cpu_capability is .* here and Z80 in the run; verify .*, with its release of torch$"
    with pytest.raises(InputError, match=wrong):
        _verify(run)
    (run / FILE).unlink()
    with pytest.raises(InputError, match=r"numerics\.json: is missing, so nobody knows"):
        _verify(run)
    (run / FILE).write_text("{}")
    with pytest.raises(InputError, match=r"numerics\.json: is damaged: it has schema None"):
        _verify(run)


def test_a_run_on_a_gpu_is_verified_where_there_is_one(tmp_path: Path) -> None:
    run = _write_run(tmp_path)
    job = job_from_json((run / "resolved.json").read_text())
    cloud = replace(job.cloud, provider="ec2")
    job = replace(job, cluster=replace(job.cluster, device="cuda"), cloud=cloud)
    (run / "resolved.json").write_text(job_to_json(job), encoding="utf-8")
    if torch.cuda.is_available():
        wrong = r"device is cuda here and cpu in the run"
    else:
        wrong = r"computed on a GPU, and torch .*GPU.*; .*verify RUN --rent`"
    with pytest.raises(InputError, match=wrong):
        _verify(run)


def test_a_run_of_an_older_release_is_verified_by_the_numerics_in_its_strategy(
    tmp_path: Path,
) -> None:
    run = _write_run(tmp_path)
    job = tiny_job(tmp_path, [f"train.steps={STEPS}"])
    (run / FILE).unlink()
    today = Strategy.from_json((run / "strategy.json").read_text()).semantics.hash()
    _write_strategy(run, job, local_numerics(job))
    found = _verify(run)[0]
    assert found["equal"]
    assert found["semantic_hash"] != today, "its own hash counts them, and so do its checkpoints"
    _write_strategy(run, job, local_numerics(job) | {"torch": "1.0"})
    with pytest.raises(InputError, match=r"torch is .* here and 1\.0 in the run"):
        _verify(run)


def test_other_data_are_refused(tmp_path: Path) -> None:
    run = _write_run(tmp_path)
    with (tmp_path / "text.txt").open("a", encoding="utf-8") as file:
        file.write("one more line")
    with pytest.raises(InputError, match="data_digest is"):
        _verify(run)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("resolved.json", None, "name the folder of a run"),
        ("resolved.json", "{", "is not JSON"),
        ("strategy.json", "{}", "schema None"),
        ("metrics.jsonl", '{"step": 0, "lo', "line 1 is not JSON"),
        ("final/manifest.json", None, "only a run that ended in order has a final state"),
    ],
)
def test_what_is_no_finished_run_is_refused(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    run = _write_run(tmp_path)
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        _verify(run)


def test_the_command_says_what_the_code_that_a_run_took_along_gives(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(NOISY, encoding="utf-8")
    run = _write_run(tmp_path, ("model.model=mine.py:build",))
    (tmp_path / "mine.py").unlink()
    done = ran("bamboo.runtime.check.verify", str(run))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["equal"] is True
    told = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"')]
    assert [line["step"] for line in told] == [1, 2, 3, 4]
    own = run / "code/0/mine.py"
    own.unlink()
    own.write_text(NOISY.replace("16, 256", "16, 257"), encoding="utf-8")
    with pytest.raises(InputError, match=r"run/code/0/mine\.py was changed after the launch"):
        _verify(run)
