"""`bamboo launch --detach` and `bamboo attach` for real: processes, SIGKILL, and what is left."""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bamboo.ids import run_id
from bamboo.runs.run_folder import RunFolder
from bamboo.runs.run_status import status_of
from cloud.local.session import is_member, members
from testbed.waiting import wait_until
from tests.launches.test_launch import LONG, Bench
from tests.warm import Process, warm

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

GONE_S = 15.0
END_S = 90.0


class Detached:
    """A detached run that has finished its first step."""

    def __init__(self, bench: Bench, run: str) -> None:
        self.bench, self.run = bench, run
        self.folder = bench.home / run
        endpoint = self._endpoint()
        self.cloud_pid = int(endpoint["cloud"]["pid"])
        self.socket_dir = Path(endpoint["cloud"]["socket_dir"])

    def _endpoint(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "endpoint.json").read_text())
        return found

    @property
    def launcher_pid(self) -> int:
        return int(self._endpoint()["launcher_pid"])

    def steps(self) -> list[int]:
        """The steps in the books."""
        path = self.folder / "metrics.jsonl"
        return [json.loads(line)["step"] for line in path.read_text().splitlines()]

    def status(self) -> dict[str, Any]:
        return status_of(RunFolder(id=run_id(self.run), path=self.folder))

    def wait_for_steps(self, more: int) -> None:
        """Wait until so many more are finished, says the store: no launcher is needed for that."""
        aim = self.status()["step"] + more
        wait_until(lambda: self.status()["step"] >= aim, what=f"step {aim}", timeout_s=60.0)

    def kill_launcher(self) -> None:
        pid = self.launcher_pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_member(pid, pid), what="the launcher is dead")

    def receipt(self) -> dict[str, Any]:
        path = self.folder / "receipt.json"
        wait_until(path.exists, what="the receipt", timeout_s=END_S)
        body: dict[str, Any] = json.loads(path.read_text())
        return body

    def assert_gone(self) -> None:
        wait_until(
            lambda: not members(self.cloud_pid) and not self.socket_dir.exists(),
            what="no process and no socket of the run",
            timeout_s=GONE_S,
        )
        assert not (self.folder / "endpoint.json").exists()

    def end(self) -> None:
        """By force, where the test did not come to its end."""
        if (self.folder / "endpoint.json").exists():
            for pid in (self.launcher_pid, self.cloud_pid):
                if is_member(pid, pid):
                    os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not members(self.cloud_pid), what="all gone", timeout_s=GONE_S)


@contextmanager
def detached(
    bench: Bench, run: str, *overrides: str, first_step: bool = True
) -> Iterator[Detached]:
    sets = [part for override in (*LONG, *overrides) for part in ("--set", override)]
    body = bench.json("launch", "job.toml", "--run", run, "--detach", *sets)
    assert body == {"run": run, "detached": True}
    found = Detached(bench, run)
    try:
        if first_step:
            wait_until(lambda: found.status()["step"] >= 1, what="the first step", timeout_s=90.0)
        yield found
    finally:
        found.end()


@contextmanager
def attached(bench: Bench, run: str, name: str) -> Iterator[Process]:
    """`bamboo attach`, its output in a file of that name."""
    with (bench.folder / name).open("w") as out:
        process = warm().begin(
            ["cli.main", "attach", run],
            folder=bench.folder,
            environment=bench.environment,
            output=out.fileno(),
            errors=out.fileno(),
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def says(bench: Bench, name: str, words: str) -> None:
    wait_until(
        lambda: words in (bench.folder / name).read_text(), what=f"{words!r}", timeout_s=30.0
    )


def intents(folder: Path) -> Sequence[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "intents.jsonl").read_text().splitlines()]


def decided(folder: Path) -> list[int]:
    """The versions in the launcher's events: each decision once."""
    path = folder / "events" / "launcher.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [r["data"]["version"] for r in records if "version" in r["data"]]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_it_returns_and_the_run_goes_on_to_its_receipt(bench: Bench) -> None:
    with detached(bench, "calm", "train.steps=36") as run:
        assert run.launcher_pid != os.getpid()
        assert [(r["phase"], r["ended"]) for r in bench.json("list")] == [("running", False)]
        done = bench.run("attach", "calm")
        assert done.returncode == 0, done.stderr
        assert "Ctrl-C leaves it running" in done.stderr
        assert "  bill        $" in done.stdout
        run.assert_gone()
        assert run.receipt()["outcome"] == "done"
        assert run.steps() == list(range(36))
    again = bench.run("attach", "calm", "--verbose")
    assert (again.returncode, "run calm has ended" in again.stderr) == (0, True)
    assert "receipt (modelled dollars" in again.stdout
    assert bench.json("verify", "calm")["equal"] is True


def test_a_killed_launcher_is_followed_by_another_and_nothing_is_lost_or_doubled(
    bench: Bench,
) -> None:
    with detached(bench, "taken") as run:
        run.kill_launcher()
        run.wait_for_steps(20)  # training needs no launcher
        assert bench.json("list")[0]["phase"] == "running"
        assert bench.json("status", "taken")["led"] is False
        assert "it has no launcher" in bench.run("status", "taken").stdout
        with attached(bench, "taken", "a.out") as first:
            says(bench, "a.out", "it has no launcher; starting one")
            wait_until(lambda: is_member(run.launcher_pid, run.launcher_pid), what="a launcher")
            before = run.status()
            assert before["led"] is True
            victim = next(n for n in before["nodes"] if n["owns"] == ["0.2"])
            assert bench.run("preempt", "taken", "--stage", "2").returncode == 0

            def replaced() -> bool:
                live = [n for n in run.status()["nodes"] if n["status"] != "gone"]
                others = {n["id"] for n in before["nodes"]}
                return len(live) == 4 and any(n["id"] not in others for n in live)

            wait_until(replaced, what="a node in the place of the lost one", timeout_s=60.0)
            first.send_signal(signal.SIGINT)
            assert first.wait(timeout=20) == 130
            says(bench, "a.out", "left: run taken goes on in the background")
            run.kill_launcher()  # and once more: now with a loss to remember
            stopped = bench.run("stop", "taken")
            assert stopped.returncode == 0, stopped.stderr
        run.assert_gone()
        receipt = run.receipt()
        assert receipt["outcome"] == "stopped"
        assert [p["node"] for p in receipt["preemptions"]] == [victim["id"]]
        assert len(receipt["bill"]["instances"]) == 5
        assert run.steps() == list(range(receipt["step"]))
        assert decided(run.folder) == list(range(1, len(decided(run.folder)) + 1))
        told = [(i["intent"], i.get("count")) for i in intents(run.folder)]
        wished = [count for intent, count in told if intent == "launch"]
        assert (sum(wished[:-1]), wished[-1]) == (4, 1), "each instance once, one for the lost one"
        assert [intent for intent, _ in told].count("terminate") == 1
    assert bench.json("verify", "taken")["equal"] is True
    assert bench.json("verify", "taken", "--decisions")["equal"] is True


def test_a_launcher_killed_while_the_cluster_forms(bench: Bench) -> None:
    with detached(bench, "young", "train.steps=12", first_step=False) as run:
        run.kill_launcher()
        done = bench.run("attach", "young")
        assert done.returncode == 0, done.stdout + done.stderr
        run.assert_gone()
        assert len(run.receipt()["bill"]["instances"]) == 4
        assert sum(i["count"] for i in intents(run.folder) if i["intent"] == "launch") == 4
        assert run.steps() == list(range(12))


def test_two_attach_at_once_and_there_is_one_launcher(bench: Bench) -> None:
    with detached(bench, "two") as run:
        run.kill_launcher()
        with attached(bench, "two", "a.out"), attached(bench, "two", "b.out"):
            for name in ("a.out", "b.out"):
                says(bench, name, "two: running")
            wait_until(lambda: is_member(run.launcher_pid, run.launcher_pid), what="a launcher")
            log = (run.folder / "logs" / "launcher.log").read_text()
            assert log.count("a new launcher takes up the run") == 1
            run.kill_launcher()  # under the eyes of both
            wait_until(lambda: is_member(run.launcher_pid, run.launcher_pid), what="the next")
            run.wait_for_steps(5)
            log = (run.folder / "logs" / "launcher.log").read_text()
            assert log.count("a new launcher takes up the run") == 2
            assert bench.run("stop", "two").returncode == 0
        run.assert_gone()
        assert run.steps() == list(range(run.receipt()["step"]))


def test_a_terminated_launcher_leaves_the_run_alone(bench: Bench) -> None:
    with detached(bench, "left") as run:
        pid = run.launcher_pid
        os.kill(pid, signal.SIGINT)
        run.wait_for_steps(5)
        assert is_member(pid, pid)
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not is_member(pid, pid), what="it leaves")
        assert (
            "this launcher leaves; the run goes on"
            in (run.folder / "logs" / "launcher.log").read_text()
        )
        run.wait_for_steps(5)
        assert bench.run("stop", "left").returncode == 0
        run.assert_gone()


def test_attach_to_an_attached_run_only_follows(bench: Bench) -> None:
    with bench.launched("plain") as launched:
        pid = json.loads((launched.folder / "endpoint.json").read_text())["launcher_pid"]
        with attached(bench, "plain", "a.out") as follower:
            says(bench, "a.out", "plain: running")
            follower.send_signal(signal.SIGINT)
            assert follower.wait(timeout=20) == 130
            says(bench, "a.out", "goes on with the launcher that started it")
        assert pid == launched.process.pid
        assert launched.process.poll() is None
        with attached(bench, "plain", "b.out") as follower:
            says(bench, "b.out", "plain: running")
            launched.process.kill()
            assert follower.wait(timeout=20) == 2
            says(bench, "b.out", "run plain has lost its launcher")
        launched.assert_gone()
    assert bench.run("attach", "plain").returncode == 2


@contextmanager
def detaching(bench: Bench, run: str) -> Iterator[tuple[Process, int, int]]:
    """`launch --detach` while the local cloud starts; itself, its launcher's pid, the cloud's."""
    said = bench.folder / "detaching.out"
    with said.open("w") as out:
        process = warm().begin(
            ["cli.main", "launch", "job.toml", "--run", run, "--detach"],
            folder=bench.folder,
            environment=bench.environment,
            output=out.fileno(),
            errors=out.fileno(),
            said=said,
        )
    cloud = 0
    try:
        log = bench.home / run / "logs" / "launcher.log"
        said = "starting the local cloud"
        wait_until(lambda: log.exists() and said in log.read_text(), what=said, timeout_s=60.0)
        # It had begun before there was a launcher, who has it now.
        cloud, launcher = children(process.pid)
        assert is_member(cloud, cloud)
        yield process, launcher, cloud
    finally:
        process.kill()
        process.wait()
        wait_until(lambda: not members(cloud), what="all gone", timeout_s=GONE_S)


def children(pid: int) -> list[int]:
    """The oldest first, by the kernel's own list: a scan of all processes may take too long."""
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_an_interrupt_undoes_the_start(bench: Bench) -> None:
    with detaching(bench, "undone") as (process, launcher, _):
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 130, said
        wait_until(lambda: not is_member(launcher, launcher), what="its launcher is gone")
    receipt = json.loads((bench.home / "undone" / "receipt.json").read_text())
    assert receipt["sentence"] == "interrupted before training began"


def test_a_launcher_that_dies_in_the_start_leaves_nothing(bench: Bench) -> None:
    with detaching(bench, "stillborn") as (process, launcher, cloud):
        os.kill(launcher, signal.SIGKILL)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "the launcher in the background ended" in said
        wait_until(lambda: not members(cloud), what="all gone", timeout_s=GONE_S)
    done = bench.run("attach", "stillborn")
    assert (done.returncode, "run stillborn has no local cloud" in done.stderr) == (2, True)


def test_a_run_that_lost_launcher_and_cloud_is_settled_by_what_its_store_holds(
    bench: Bench,
) -> None:
    with detached(bench, "embedded") as run:
        run.wait_for_steps(10)
        run.kill_launcher()
        os.kill(run.cloud_pid, signal.SIGKILL)
        done = bench.run("attach", "embedded")
        assert done.returncode == 1, done.stderr
        run.assert_gone()
        receipt = run.receipt()
        assert receipt["outcome"] == "fault"
        assert run.steps() == list(range(receipt["step"]))
        assert receipt["step"] >= 11
        assert len(receipt["bill"]["instances"]) == 4
    assert bench.json("verify", "embedded", "--decisions")["equal"] is True


def test_what_only_the_start_finds_to_be_wrong_is_told_where_it_was_asked(bench: Bench) -> None:
    bench.environment["BAMBOO_REDIS_URL"] = "redis://127.0.0.1:1/0"
    done = bench.run("launch", "job.toml", "--detach")
    assert done.returncode == 2
    assert "127.0.0.1:1" in done.stderr
    assert not bench.home.exists()
