"""The fork server and its client: what a child has, what it must not have, how it ends."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bamboo.errors import BambooError
from bamboo.loading import interpreter
from cloud.ec2.process_starter import ProcessStarter
from cloud.local import fork_starter
from cloud.local.fork_starter import ForkedWorker, ForkStarter, fork, log_to
from cloud.local.services import start_zygote
from cloud.local.zygote import Request, run_entry
from testbed.waiting import wait_until
from tests.cloud.local.local_world import ACTORS, alive, lines


class Server:
    """A fork server of one test."""

    def __init__(self, path: Path) -> None:
        self.socket_path = path / "z.sock"
        self.log = path / "child.log"
        self.process = subprocess.Popen(
            interpreter("cloud.local.zygote", str(self.socket_path), "forked"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ACTORS)},
        )
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], 30)
        assert readable
        assert self.process.stdout.readline() == b"ready\n"

    def starter(self, entry: str) -> ForkStarter:
        return ForkStarter(socket_path=self.socket_path, entry=f"forked:{entry}", log=self.log)

    def run(self, entry: str, **config: str) -> int:
        """Start a child and wait for its status."""
        worker = self.starter(entry).start(config=config)
        return ended(worker)

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self.process.wait(timeout=10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


def ended(worker: ForkedWorker) -> int:
    wait_until(lambda: worker.poll() is not None, what="the worker has ended")
    status = worker.poll()
    assert status is not None
    worker.close()
    return status


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.end()


def test_a_child_is_a_fork_in_the_callers_group_with_its_own_output(server) -> None:
    assert server.run("tells", run="calm-fox") == 0
    (fact,) = lines(server.log)
    assert fact["imported_by"] == server.process.pid != fact["pid"]
    assert fact["group"] == os.getpgid(0)
    assert fact["session"] == os.getsid(0)
    assert fact["threads"] == 1
    assert fact["config"] == {"run": "calm-fox"}


def test_a_child_holds_none_of_the_servers_files(server) -> None:
    waiting = server.starter("waits").start(config={})
    server.run("tells")
    (fact,) = lines(server.log)
    # Input, output, errors, and the listing of the directory itself.
    assert fact["files"] == ["0", "1", "2", "3"]
    waiting.kill()
    assert ended(waiting) == -signal.SIGKILL


@pytest.mark.parametrize("entry", ["exits", "leaves"])
def test_the_childs_status_comes_back(server, entry) -> None:
    assert server.run(entry, status="7") == 7


def test_a_child_that_breaks_leaves_a_traceback_in_its_log(server) -> None:
    assert server.run("breaks", word="crooked") == 70
    assert "ValueError: crooked" in server.log.read_text()
    assert server.run("exits", status="0") == 0


def test_many_children_each_get_their_own_status(server) -> None:
    starter = server.starter("exits")
    workers = [starter.start(config={"status": str(n)}) for n in range(8)]
    assert [ended(worker) for worker in workers] == list(range(8))


def test_killing_a_worker_twice_is_fine(server) -> None:
    worker = server.starter("waits").start(config={})
    assert worker.poll() is None
    worker.kill()
    assert ended(worker) == -signal.SIGKILL
    worker.kill()


def test_a_child_whose_group_is_gone_does_not_start(server) -> None:
    request = Request(entry="forked:waits", config={}, group=4194303, log=str(server.log))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(server.socket_path))
        connection.sendall(request.line())
        with connection.makefile() as answers:
            assert '"pid"' in answers.readline()
            assert answers.readline() == '{"exit": 70}\n'


def files_of(server: Server) -> list[str]:
    """What its descriptors are; it may be closing one just now."""
    folder, files = f"/proc/{server.process.pid}/fd", []
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            files.append(os.readlink(f"{folder}/{name}"))
    return files


def forked(
    server: Server, entry: str, pipes: Sequence[tuple[int, int]], *, group: int = 0
) -> ForkedWorker:
    """A child with our pipes for input, output and errors, of which we keep the other ends."""
    theirs = (pipes[0][0], pipes[1][1], pipes[2][1])
    request = Request(entry=f"forked:{entry}", config={}, group=group, log="")
    try:
        return fork(server.socket_path, request, theirs)
    finally:
        for end in theirs:
            os.close(end)


def test_a_child_with_streams_is_asked_and_answers_and_nothing_of_its_group_is_left(server) -> None:
    pipes = [os.pipe() for _ in range(3)]
    worker = forked(server, "answers", pipes)
    os.write(pipes[0][1], b"who?")
    os.close(pipes[0][1])
    assert worker.wait() == 3
    with os.fdopen(pipes[1][0]) as output, os.fdopen(pipes[2][0]) as errors:
        answer = json.loads(output.read())  # to the end: whoever held it is gone
        assert errors.read() == "said\n"
    assert answer["asked"] == "who?"
    wait_until(lambda: not alive(answer["other"]), what="the end of what it began")
    worker.close()


def test_a_child_with_streams_holds_no_other_files_and_the_server_none_of_them(server) -> None:
    pipes = [os.pipe() for _ in range(3)]
    ours = {os.readlink(f"/proc/self/fd/{end}") for pipe in pipes for end in pipe}
    worker = forked(server, "tells", pipes)
    wait_until(lambda: ours.isdisjoint(files_of(server)), what="the server to hold none of them")
    assert worker.wait() == 0
    worker.close()
    with os.fdopen(pipes[1][0]) as output:
        fact = json.loads(output.read())
    for end in (pipes[0][1], pipes[2][0]):
        os.close(end)
    assert fact["files"] == ["0", "1", "2", "3"]
    assert fact["group"] == fact["pid"], "its group is its own"


def test_who_waits_for_a_child_hears_of_its_end_when_the_server_has_gone(tmp_path) -> None:
    server = Server(tmp_path)
    worker = server.starter("waits").start(config={})
    assert server.end() == 0
    assert worker.poll() is None
    threading.Timer(0.1, worker.kill).start()
    assert worker.wait() == 255
    worker.close()


@pytest.mark.timeout(60)
def test_who_waits_for_a_child_hears_of_its_end_when_the_server_is_stopped(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_starter, "TOLD_DEADLINE_S", 0.2)
    worker = server.starter("waits").start(config={})
    server.process.send_signal(signal.SIGSTOP)
    try:
        worker.kill()
        assert worker.wait() == 255
    finally:
        server.process.send_signal(signal.SIGCONT)
    worker.close()


def test_the_servers_own_words_go_to_the_log_that_it_is_given(server, tmp_path) -> None:
    log_to(server.socket_path, tmp_path / "own.log")
    assert os.readlink(f"/proc/{server.process.pid}/fd/2") == str(tmp_path / "own.log")
    assert server.run("exits", status="0") == 0
    with pytest.raises(BambooError, match="did not open its log"):
        log_to(server.socket_path, tmp_path / "missing" / "own.log")
    assert server.run("exits", status="0") == 0


def test_a_child_has_a_log_or_three_streams(server, tmp_path) -> None:
    request = Request(entry="forked:exits", config={"status": "0"}, group=0, log="")
    logged = Request(entry="forked:exits", config={"status": "0"}, group=0, log=str(server.log))
    for asked, streams in ((request, ()), (request, (0, 1)), (logged, (0, 1, 2))):
        with pytest.raises(BambooError, match=rf"{len(streams)} streams came"):
            fork(server.socket_path, asked, streams)


def test_nonsense_is_answered_and_the_server_goes_on(server) -> None:
    for nonsense in (b"hello\n", b'{"entry": 1}\n', b"[]\n"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(server.socket_path))
            connection.sendall(nonsense)
            assert b"error" in connection.recv(1000)
    assert server.run("exits", status="0") == 0


def test_when_the_server_goes_its_children_live_on_and_can_be_killed(tmp_path) -> None:
    server = Server(tmp_path)
    worker = server.starter("waits").start(config={})
    assert server.end() == 0
    assert worker.poll() is None
    assert alive(worker.pid)
    worker.kill()
    assert ended(worker) == 255


def test_a_missing_server_is_a_clear_error(tmp_path) -> None:
    starter = ForkStarter(socket_path=tmp_path / "none", entry="a:b", log=tmp_path / "log")
    with pytest.raises(BambooError, match=r"did not start a worker.*zygote\.log"):
        starter.start(config={})


def test_text_hashes_alike_in_every_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "says.py").write_text("print(hash('text'), flush=True)\n", encoding="utf-8")
    said = []
    for _ in range(2):
        with subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            zygote = start_zygote(
                socket_path=tmp_path / "z.sock",
                preload=("says",),
                lifeline=holder.stdout.fileno(),
                log=tmp_path / "log",
            )
            assert zygote.stdout is not None
            with zygote.stdout as output:
                said.append(output.readline())
            holder.kill()
        zygote.wait(timeout=10)
        monkeypatch.setenv("PYTHONHASHSEED", "random")
    assert said[0].strip()
    assert said[0] == said[1]


def test_an_entry_may_return_a_status_or_nothing_or_leave_with_words(monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(str(ACTORS))
    assert run_entry("forked:exits", {"status": "3"}) == 3
    assert run_entry("forked:returns_nothing", {}) == 0
    assert run_entry("forked:leaves_with_words", {}) == 1
    assert "no way" in capsys.readouterr().err


def test_a_process_starter_hands_the_configuration_over_and_no_variable_that_leads_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = (
        "import json, os, sys\n"
        "assert not sys.flags.hash_randomization, 'text hashes alike in every worker'\n"
        "assert [n for n in os.environ if n.startswith('PYTHON')] == ['PYTHONHASHSEED']\n"
        "sys.exit(int(json.loads(sys.stdin.readline())['status']))\n"
    )
    (tmp_path / "look.py").write_text(look)
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho "$@" >{tmp_path}/words\nexec {sys.executable} $1 $2 {tmp_path}/look.py\n'
    )
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    for name in ("PYTHONPATH", "PYTHONSTARTUP", "PYTHONWARNINGS"):
        monkeypatch.setenv(name, str(tmp_path))
    worker = ProcessStarter(module="told").start(config={"status": "6"})
    wait_until(lambda: worker.poll() is not None, what="the worker has ended")
    assert worker.poll() == 6
    assert (tmp_path / "words").read_text() == "-P -s -m bamboo.loading told\n"
