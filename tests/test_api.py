"""The Python API does what the commands do, and touches nothing of the program that calls it."""

import os
import subprocess
import sys
from collections.abc import Callable
from inspect import isfunction
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from bamboo import api
from bamboo.controller import background, stop_wish
from bamboo.errors import BambooError, InputError
from bamboo.private_files import private
from bamboo.runs import run_folder
from bamboo.runs.lock import Lock, take
from bamboo.runs.run_folder import RunFolder
from bamboo.telemetry.records import MetricRecord
from tests.jobs import SMALL, TEXT
from tests.runs.test_reading import folder_of
from tests.study.on_paper import body_of, in_folder
from tests.warm import warm

ROOT = Path(__file__).parents[1]
OURS = ("bamboo.api", "bamboo.run_handle")
JOB = f"""{SMALL}[train]
steps = 16
batch = 8
microbatch = 2
[cluster]
stages = 4
redundancy = "eager"
[chaos]
kill = [{{ step = 8, stage = 1, phase = "backward", microbatch = 1 }}]
"""


def test_a_plan_is_that_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_folder(tmp_path, monkeypatch)
    shown = api.plan("job.toml", overrides={"cluster.stages": 3, "cluster.redundancy": "stash"})
    said = ("--set", "cluster.stages=3", "--set", "cluster.redundancy=stash")
    body = body_of(capsys, "plan", "job.toml", "--json", *said)
    assert shown.planned.plan.instances == body["instances"] == 3
    assert shown.planned.strategy.placement.redundancy == "stash"


def test_a_simulation_is_that_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_folder(tmp_path, monkeypatch)
    played = api.simulate("job.toml", hazard=2.0, hours=1, seeds=2, first_seed=3)
    said = ("--hazard", "2", "--hours", "1", "--seeds", "2", "--first-seed", "3")
    body = body_of(capsys, "simulate", "job.toml", "--json", *said)
    ours = [figures["bamboo"] for figures in played.runs]
    figures = body["systems"]["bamboo"]["figures"]
    assert mean(one.usd for one in ours) == pytest.approx(figures["usd"]["mean"], rel=1e-12)
    assert mean(one.steps for one in ours) == figures["steps"]["mean"]
    with pytest.raises(InputError, match="no market is named"):
        api.simulate("job.toml", hours=1)


def test_a_price_list_is_that_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_folder(tmp_path, monkeypatch)
    found = api.cost("job.toml", types=("g4dn.xlarge",), seeds=1)
    said = ("--type", "g4dn.xlarge", "--seeds", "1")
    body = body_of(capsys, "cost", "job.toml", "--json", *said)
    assert len(found.rows) == len(body["options"]) > 0


def test_overrides_have_the_types_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "job.toml").write_text(JOB)
    given = {
        "train.learning_rate": 0.5,
        "cluster.cut": [0, 1, 2, 3],
        "cluster.check_replicas": True,
        "cluster.redundancy": "stash",
        "data.path": tmp_path / "text.txt",
        "train.steps": np.int64(17),
    }
    job = api.load_job(tmp_path / "job.toml", overrides=given)
    assert job.train.learning_rate == 0.5
    assert job.train.steps == 17
    assert job.cluster.cut == (0, 1, 2, 3)
    assert job.cluster.check_replicas is True
    assert job.cluster.redundancy == "stash"
    with pytest.raises(InputError, match="steps"):
        api.load_job(tmp_path / "job.toml", overrides={"train.steps": "many"})


def test_a_run_is_read_as_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    folder = folder_of(tmp_path)
    losses = (2.5, 0.1 + 0.2)
    lines = [
        MetricRecord(step=n, loss=loss, tokens_per_s=9.0, usd=n / 8, tokens_per_usd=1.0)
        for n, loss in enumerate(losses)
    ]
    folder.metrics.write_text("".join(line.to_json() + "\n" for line in lines))
    run = api.open_run(folder.id)
    metrics = run.metrics()
    assert metrics.step.tolist() == [0, 1]
    assert metrics.loss.tolist() == list(losses)
    assert metrics.usd.tolist() == [0.0, 0.125]
    assert np.isnan(metrics.at_s).all()
    with pytest.raises(InputError, match="unknown run"):
        api.open_run("another")


def test_waiting_ends_with_the_receipt_or_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    folder = folder_of(tmp_path)
    run = api.open_run(folder.id)
    assert run.receipt() is None
    held = take(folder)
    assert held is not None
    try:
        with pytest.raises(BambooError, match=r"has not ended within 0\.3 s; it goes on"):
            run.wait(timeout_s=0.3)
    finally:
        held.close()
    with pytest.raises(InputError, match="has lost its launcher"):
        run.wait(timeout_s=60)
    with pytest.raises(InputError, match="has no final state"):
        run.final_state()
    run_folder.write_json(folder.receipt, {"run": folder.id, "outcome": "done"})
    assert run.wait(timeout_s=0)["outcome"] == "done"


def test_an_umask_is_the_programs_own_again() -> None:
    before = os.umask(0o027)
    try:
        with private():
            assert os.umask(0o077) == 0o077
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_importing_it_costs_nothing_and_sets_no_signal_handler(tmp_path: Path) -> None:
    heavy = ("torch", "numpy", "boto3", "redis", "click", "rich", "cloud", "cli", "bamboo.study")
    done = python(
        "import signal, sys\n"
        "before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)\n"
        "import bamboo.api\n"
        "assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))\n"
        f"print([name for name in {heavy!r} if name in sys.modules])\n",
        tmp_path,
    )
    assert done.stdout == "[]\n", done.stderr


def test_the_package_has_the_functions_and_loads_them_late(tmp_path: Path) -> None:
    done = python(
        "import sys, bamboo\n"
        "assert 'bamboo.api' not in sys.modules\n"
        "assert bamboo.launch.__module__ == 'bamboo.api'\n"
        "try:\n    bamboo.open_run('last')\nexcept bamboo.InputError as error:\n    print(error)\n"
        "print(hasattr(bamboo, 'utils'))\n",
        tmp_path,
    )
    assert done.stdout.startswith("unknown run 'last'"), done.stderr
    assert done.stdout.endswith("False\n")


def test_a_package_of_the_programs_that_is_called_as_one_of_ours_is_named(tmp_path: Path) -> None:
    (tmp_path / "cloud.py").write_text("MINE = 1\n")
    done = python(
        "import sys\n"
        "sys.path.insert(0, '')\n"
        "import cloud\n"
        "assert cloud.MINE\n"
        "from bamboo import api\n"
        "api.open_run('last')\n",
        tmp_path,
    )
    assert "InputError: this program has imported a package 'cloud' that is not" in done.stderr


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_the_example_trains_and_compares(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "job.toml").write_text(JOB)
    done = warm().run(
        ["examples.from_python", "job.toml"],
        folder=tmp_path,
        environment={**os.environ, "PYTHONPATH": str(ROOT), "BAMBOO_HOME": str(tmp_path / "runs")},
        timeout_s=210,
    )
    assert done.returncode == 0, done.stderr
    assert "done, 1 nodes lost" in done.stdout
    assert "equal to a calm training, bit for bit: True\n" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert ": 26 steps, loss " in last, done.stdout


def test_the_page_names_every_function_and_method() -> None:
    helpers = {"named_file", "silent", "untold", "written"}
    page = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    functions = [
        name
        for owner in (api, *api.Run.__mro__)
        for name, value in vars(owner).items()
        if isfunction(value) and value.__module__ in OURS and not name.startswith("_")
    ]
    assert {"plan", "launch", "open_run", "wait", "final_state"} <= set(functions)
    assert [name for name in functions if f"`{name}" not in page and name not in helpers] == []


NO_PATH = "is no path; give the name of a file"


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda job: api.load_job(None), f"job = None: {NO_PATH}"),
        (lambda job: api.launch("a\0b"), rf"job = 'a\\x00b': {NO_PATH}"),
        (lambda job: api.plan(job, overrides="train.steps=5"), "is no mapping, and no list"),
        (lambda job: api.plan(job, overrides=[5]), "is no mapping, and no list"),
        (lambda job: api.plan(job, overrides={"train.steps": 10**5000}), "a value is wrong"),
        (lambda job: api.launch(job, strategy=5), f"strategy = 5: {NO_PATH}"),
        (lambda job: api.launch(job, trace="no.csv"), "there is no file no.csv"),
        (lambda job: api.profile(job, device="tpu"), "--device 'tpu' is no device"),
        (lambda job: api.simulate(job, hazard=1.0, restart_s={"a": 1}), "give rivals=True too"),
        (
            lambda job: api.simulate(job, hazard=1.0, rivals=True, restart_s={"a": 1}),
            "restart_s of 'a' = 1: is no restart",
        ),
        (lambda job: api.cost(job, samples_per_s=float("nan")), "--samples-per-s nan is no rate"),
        (lambda job: api.cost(job, samples_per_s=1e308), r"--samples-per-s 1e\+308 is no rate"),
        (lambda job: api.old_runs(keep=-1), "keep = -1: is no number of runs"),
    ],
)
def test_what_a_program_gives_wrong_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[str], object], said: str
) -> None:
    in_folder(tmp_path, monkeypatch)
    with pytest.raises(InputError, match=said) as error:
        ask("job.toml")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda run: run.wait(timeout_s=float("nan")), "timeout_s = nan: is no time"),
        (lambda run: run.verify(steps=(0.0, 1.5)), r"steps = \(0.0, 1.5\): is no segment"),
        (lambda run: run.verify(steps=5), "steps = 5: is no segment"),
        (lambda run: run.preempt(stage=0, notice_s=1e308), r"--notice 1e\+308 is no notice"),
        (lambda run: run.preempt(stage=0, notice_s=float("nan")), "--notice nan is no notice"),
    ],
)
def test_what_is_asked_of_a_run_is_checked_before_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[api.Run], object], said: str
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    with pytest.raises(InputError, match=said):
        ask(api.open_run(folder_of(tmp_path).id))


def test_a_stop_goes_on_when_the_launcher_dies_before_its_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path)
    held = take(folder)
    assert held is not None

    def settle(folder: RunFolder, held: Lock, begun: object, *, fresh: bool) -> None:
        run_folder.write_json(folder.receipt, {"run": folder.id})
        held.close()

    monkeypatch.setattr(background, "start", settle)
    monkeypatch.setattr(stop_wish, "RECEIPT_S", 5.0)
    monkeypatch.setattr(stop_wish, "LED_EVERY_S", 0.0)
    monkeypatch.setattr(stop_wish.time, "sleep", lambda _: held.close())  # it dies while we wait
    stop_wish.await_receipt(folder)
    assert folder.receipt.exists()
