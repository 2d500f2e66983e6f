"""A local cloud that is no run's yet: whatever ends it leaves nothing, and who holds it is told."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bamboo.errors import BambooError
from cloud.local.begun import begin_local_cloud
from cloud.local.session import members
from testbed.waiting import wait_until
from tests.cloud.local.local_world import ACTORS, GONE_S, alive, command_line, member, start

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _actors_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ACTORS}{os.pathsep}{ROOT}")


def test_one_that_has_begun_and_is_given_up_leaves_nothing(temporary_root) -> None:
    """A look at a model that is under way in it is ended too."""
    begun = begin_local_cloud(("forked",))
    pipes = [os.pipe() for _ in range(3)]
    theirs = (pipes[0][0], pipes[1][1], pipes[2][1])
    worker = begun.fork(entry="forked:waits", config={}, streams=theirs)
    assert worker.poll() is None
    begun.give_up()
    assert list(temporary_root.iterdir()) == []
    assert not alive(worker.pid)
    worker.close()
    for end in itertools.chain(*pipes):
        os.close(end)


@pytest.mark.parametrize("part", ["cloud.local.host", "cloud.local.zygote"])
def test_one_that_was_killed_before_it_is_a_runs_is_told_and_leaves_nothing(
    tmp_path, temporary_root, part
) -> None:
    begun = begin_local_cloud(("forked",))
    host = begun.held.pid
    (killed,) = [pid for pid in members(host) if part in command_line(pid)]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not alive(killed), what="its end")
    streams = (0, 1, 2)
    with pytest.raises(BambooError, match="did not start a worker"):
        begun.fork(entry="forked:waits", config={}, streams=streams)
    with pytest.raises(BambooError, match="the local cloud did not start; its log ends"):
        start(tmp_path, begun=begun)
    assert list(temporary_root.iterdir()) == []
    assert not members(host)


def test_one_that_was_handed_to_a_child_is_the_childs(temporary_root: Path) -> None:
    program = (
        "import sys; from cloud.local.begun import BegunCloud, Held;"
        "begun = BegunCloud(Held.from_json(sys.argv[1])); print('has it', flush=True);"
        "sys.stdin.read()"
    )
    begun = begin_local_cloud(("forked",))
    with subprocess.Popen(
        [sys.executable, "-c", program, begun.held.to_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=begun.held.descriptors,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"has it\n"
        begun.let_go()
        begun.fork(entry="forked:waits", config={}, streams=(0, 1, 2)).close()  # it lives
        child.kill()
    wait_until(lambda: not members(begun.held.pid), what="its end", timeout_s=GONE_S)
    assert begun.process is not None
    os.waitpid(begun.held.pid, 0)  # ours all the same, so it is no zombie of the tests
    assert list(temporary_root.iterdir()) == []


def test_what_it_said_before_it_was_a_runs_stands_in_the_runs_log(tmp_path, monkeypatch) -> None:
    (tmp_path / "says.py").write_text(
        "import sys; sys.stderr.write('imported with words\\n')", encoding="utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ACTORS}", prepend=os.pathsep)
    cloud = start(tmp_path, preload="says")
    try:
        assert "imported with words" in (tmp_path / "logs" / "cloud.log").read_text()
        assert os.readlink(f"/proc/{member(cloud, 'cloud.local.zygote')}/fd/2") == str(
            tmp_path / "logs" / "zygote.log"
        )
    finally:
        cloud.stop()
