"""`bamboo launch` for real: processes, mock EC2, a store; every end leaves nothing behind."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli import main
from cloud.local.session import members
from testbed.store_server import start_store
from testbed.waiting import wait_until
from tests.exposed import files_with, processes_with
from tests.jobs import SMALL, TEXT
from tests.security.open_files import done_by_another, open_to_others
from tests.warm import Process, warm

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

GONE_WITHIN_S = 15.0
JOB = f"""{SMALL}[train]
steps = 40
batch = 8
microbatch = 2
[cluster]
stages = 4
redundancy = "eager"
"""
PASSWORD = "Zq7-of-this-test"
LONG = (
    "train.steps=100000",
    "checkpoint.every_steps=0",
    'cluster.device="virtual"',
    "cluster.virtual_forward_ms=[10.0]",
    "cluster.virtual_backward_ms=[20.0]",
)
"""A run that goes on until it is ended, and leaves the processors to those who end it."""


PACED = (
    "cluster.device=virtual",
    "cluster.virtual_forward_ms=[20.0]",
    "cluster.virtual_backward_ms=[40.0]",
)
"""A step takes as long on any machine, so that a notice is over before the run is."""


class Bench:
    """A folder with a job and a home of its own; runs command lines there, with a umask that takes
    no right from anybody."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "runs"
        self.environment = {**os.environ, "BAMBOO_HOME": str(self.home), "PYTHONPATH": os.getcwd()}
        self.environment.pop("BAMBOO_REDIS_URL", None)
        (folder / "text.txt").write_text(TEXT, encoding="utf-8")
        (folder / "job.toml").write_text(JOB, encoding="utf-8")

    def run(self, *arguments: str, timeout_s: float = 150) -> subprocess.CompletedProcess[str]:
        return warm().run(
            ["cli.main", *arguments],
            folder=self.folder,
            environment=self.environment,
            timeout_s=timeout_s,
            umask=0,
        )

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def launched(self, run: str, *overrides: str) -> Iterator["Launched"]:
        """A launch that has finished its first step; ended by force if the test does not."""
        sets = [part for override in (*LONG, *overrides) for part in ("--set", override)]
        with (self.folder / f"{run}.out").open("w") as out:
            process = warm().begin(
                ["cli.main", "launch", "job.toml", "--run", run, *sets],
                folder=self.folder,
                environment=self.environment,
                output=out.fileno(),
                errors=out.fileno(),
                umask=0,
            )
        launched = Launched(self, run, process)
        try:
            wait_until(launched.under_way, what="the first step", timeout_s=90.0)
            launched.look_up()
            yield launched
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            if launched.cloud_pid:
                launched.assert_gone()


class Launched:
    """A launch in another process, and what of it must be gone afterwards."""

    def __init__(self, bench: Bench, run: str, process: Process) -> None:
        self.bench, self.run, self.process = bench, run, process
        self.folder = bench.home / run
        self.out = bench.folder / f"{run}.out"
        self.cloud_pid = 0

    def under_way(self) -> bool:
        assert self.process.poll() is None, self.out.read_text()
        metrics = self.folder / "metrics.jsonl"
        return metrics.exists() and metrics.stat().st_size > 0

    def look_up(self) -> None:
        path = self.folder / "endpoint.json"
        endpoint = json.loads(path.read_text())
        self.cloud_pid = endpoint["cloud"]["pid"]
        self.socket_dir = Path(endpoint["cloud"]["socket_dir"])
        assert open_to_others(self.folder) == []
        assert open_to_others(self.socket_dir) == []
        assert done_by_another(self.folder, self.socket_dir) == []
        assert len(members(self.cloud_pid)) >= 6  # of two nodes, one may be lost just now

    def wait(self) -> int:
        return self.process.wait(timeout=60)

    def assert_gone(self) -> None:
        wait_until(
            lambda: not members(self.cloud_pid) and not self.socket_dir.exists(),
            what="no process and no socket of the run",
            timeout_s=GONE_WITHIN_S,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_from_the_job_to_the_proof(bench: Bench) -> None:
    # So few samples that the run goes through them more than once.
    (bench.folder / "text.txt").write_text(TEXT[:2000], encoding="utf-8")
    kills = '[{step=10, stage=1, phase="backward"}, {step=16, stage=3, notice_s=1}]'
    # A step takes 42 ms at least, so the run is not over before the end of its notice.
    slow = ("cluster.virtual_forward_ms=[2.0]", "cluster.virtual_backward_ms=[4.0]")
    overrides = ("train.steps=56", f"chaos.kill={kills}", "budget.free_first_hour=true",
                 'cluster.device="virtual"', *slow)  # fmt: skip
    sets = [part for one in overrides for part in ("--set", one)]
    done = bench.run("launch", "job.toml", "--run", "proof", *sets)
    assert done.returncode == 0, done.stdout + done.stderr
    start = done.stdout.partition("training starts on 1 x 4\n")[0].splitlines()
    quiet = [line for line in start if not line.startswith(("  ", "forming: "))]
    assert quiet[1:-1] == ["proof: starting the local cloud"], "between the plan and the start"
    assert "proof: done after step 56/56" in done.stdout
    assert "(modelled)" in done.stdout
    receipt = json.loads((bench.home / "proof" / "receipt.json").read_text())
    assert [p["planned"] for p in receipt["preemptions"]] == [False, True]
    assert receipt["preemptions"][0]["parts_s"].keys() == {
        "disconnect", "decision", "promotion", "first operation",
    }  # fmt: skip
    assert sum(node["operations"]["FR"] for node in receipt["nodes"]) > 0
    assert receipt["last_loss"] < receipt["first_loss"]
    notes = [item["note"] for item in receipt["bill"]["instances"]]
    assert notes.count("interrupted by the cloud in its first hour: free") == 2
    metrics = (bench.home / "proof" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in metrics] == list(range(56))
    verified = bench.json("verify", "last")
    assert (verified["equal"], verified["first_difference"]) == (True, None)
    assert bench.json("verify", "proof", "--decisions")["equal"] is True
    used = bench.json("verify", "proof", "--samples")
    assert (used["equal"], used["steps"], used["samples"]) == (True, 56, 448)
    assert (used["epochs"], used["undone_steps"]) == (448 // used["samples_in_epoch"], 0)
    assert used["epochs"] > 0
    status = bench.json("status", "pro")
    assert (status["phase"], status["step"], status["outcome"]) == ("finished", 56, "done")
    assert [row["run"] for row in bench.json("list")] == ["proof"]
    assert bench.json("cost", "last")["usd"] == receipt["bill"]["usd"]
    assert open_to_others(bench.home / "proof") == done_by_another(bench.home / "proof") == []
    _flip_one_bit(bench.home / "proof" / "final" / "stage-02.safetensors")
    assert bench.run("verify", "last").returncode == 5


def _flip_one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _whole_again(status: dict[str, Any], lost: str) -> bool:
    """Every slot has an owner and a shadow, and the lost node has neither."""
    here = [node for node in status["nodes"] if node["id"] != lost]
    owned = [slot for node in here for slot in node["owns"]]
    shadowed = [slot for node in here for slot in node["shadows"]]
    return sorted(owned) == sorted(shadowed) == ["0.0", "0.1", "0.2", "0.3"]


def test_by_hand_with_a_store_of_ones_own(bench: Bench) -> None:
    store = start_store(bench.folder / "s", password=PASSWORD)
    try:
        bench.environment["BAMBOO_REDIS_URL"] = store.url
        with bench.launched("hand") as launched:
            status = bench.json("status", "hand")
            assert {"phase", "generation", "version", "step", "loss", "usd", "nodes"} <= (
                status.keys()
            )
            by_slot = {node["owns"][0]: node for node in status["nodes"]}
            assert sorted(by_slot) == ["0.0", "0.1", "0.2", "0.3"]
            assert by_slot["0.1"]["shadows"] == ["0.2"]
            assert bench.run("preempt", "hand", "--stage", "9").returncode == 2
            taken = bench.run("preempt", "hand", "--stage", "2", "--notice", "0")
            assert by_slot["0.2"]["instance"] in taken.stdout
            wait_until(
                lambda: _whole_again(bench.json("status", "hand"), by_slot["0.2"]["id"]),
                what="the failover, and a shadow for every slot",
                timeout_s=20.0,
            )
            assert bench.json("verify", "hand", "--decisions")["equal"] is True
            assert files_with(PASSWORD, launched.folder) == {"endpoint.json"}
            assert not processes_with(PASSWORD, members(launched.cloud_pid))
            stopped = bench.run("stop", "hand")
            assert stopped.returncode == 0, stopped.stderr
            assert launched.wait() == 130
            launched.assert_gone()
        assert not files_with(PASSWORD, launched.folder)
        assert PASSWORD not in launched.out.read_text()
        assert bench.json("verify", "hand")["equal"] is True
        assert bench.json("verify", "hand", "--decisions")["equal"] is True
        for line in ("stop", "preempt"):
            extra: Sequence[str] = ("--stage", "1") if line == "preempt" else ()
            assert bench.run(line, "hand", *extra).returncode == 2
        again = bench.run("launch", "job.toml", "--run", "hand")
        assert (again.returncode, "run hand exists already" in again.stderr) == (2, True)
        bench.environment["BAMBOO_REDIS_URL"] = store.url.replace(PASSWORD, "wrong")
        wrong = bench.run("launch", "job.toml", "--run", "wrong")
        assert wrong.returncode == 2
        assert "wrong@" not in wrong.stderr
    finally:
        store.stop()


def test_a_killed_launcher_takes_everything_with_it(bench: Bench) -> None:
    with bench.launched("orphan") as launched:
        launched.process.kill()
        launched.assert_gone()
    assert bench.json("status", "orphan")["phase"] == "lost"
    assert bench.run("stop", "orphan").returncode == 2


def test_a_killed_local_cloud_ends_the_launch(bench: Bench) -> None:
    with bench.launched("cloudless") as launched:
        os.kill(launched.cloud_pid, signal.SIGKILL)
        assert launched.wait() == 1
    receipt = json.loads((bench.home / "cloudless" / "receipt.json").read_text())
    assert receipt["outcome"] == "fault"
    assert "the local cloud ended" in receipt["sentence"]


def test_a_loss_without_a_copy_ends_with_3(bench: Bench) -> None:
    with bench.launched("bare", 'cluster.redundancy="off"') as launched:
        assert bench.run("preempt", "bare", "--stage", "0").returncode == 0
        assert launched.wait() == 3
    receipt = json.loads((bench.home / "bare" / "receipt.json").read_text())
    assert "no live node holds stage 0 (redundancy is off)" in receipt["sentence"]


BAD = [
    (["--set", "train.stepz=1"], "did you mean 'steps'?"),
    (["--set", "train.batch=7"], "train.batch = 7"),
    (["--set", "cluster.stages=9"], "cluster.stages = 9"),
    (["--set", 'cloud.provider="ec2"'], "cluster.transport = 'ipc'"),
    (["--set", 'cloud.instance_types=["x9.tiny"]'], "x9.tiny"),
    (["--run", "Not/Safe"], "run id 'Not/Safe'"),
]


@pytest.mark.parametrize(("arguments", "word"), BAD, ids=[word for _, word in BAD])
def test_bad_input_is_one_line_and_exit_2(
    bench: Bench,
    arguments: list[str],
    word: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(bench.folder)
    monkeypatch.setenv("BAMBOO_HOME", str(bench.home))
    monkeypatch.delenv("BAMBOO_REDIS_URL", raising=False)
    code = main.run(["launch", "job.toml", *arguments])
    _assert_refused(bench, code, capsys.readouterr().err, word)


def test_data_that_are_not_there_are_one_line_and_exit_2(bench: Bench) -> None:
    done = bench.run("launch", "job.toml", "--set", 'data.path="missing.txt"')
    _assert_refused(bench, done.returncode, done.stderr, "missing.txt")


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("[nn.Embedding(256, 16), Private(), nn.Linear(16, 256)]", "layer 1 (Private)"),
        ("nonsense", "mine.py"),
    ],
)
def test_layers_that_cannot_be_repeated_are_refused(bench: Bench, source: str, word: str) -> None:
    (bench.folder / "mine.py").write_text(
        "import random\nfrom torch import nn\n"
        "class Private(nn.Module):\n"
        "    def forward(self, x):\n        return x * random.random()\n"
        f"def build(config):\n    return {source}\n"
    )
    sets = ["--set", 'model.model="mine.py:build"', "--set", "cluster.stages=2"]
    done = bench.run("launch", "job.toml", *sets)
    _assert_refused(bench, done.returncode, done.stderr, word)


def _assert_refused(bench: Bench, code: int, said: str, word: str) -> None:
    first, *lines = said.splitlines()
    lines = [line for line in lines if not line.startswith("  still ")]
    assert first == "looking at model and data"
    assert code == 2, said
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert word in lines[0]
    assert not bench.home.exists()


def test_a_dry_run_starts_and_leaves_nothing(bench: Bench) -> None:
    done = bench.run("launch", "job.toml", "--dry-run")
    assert done.returncode == 0
    assert "RunInstances {" in done.stdout
    assert done.stdout.endswith("dry run: nothing was started\n")
    assert not bench.home.exists()
