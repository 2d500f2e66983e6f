"""A local cloud that has begun looks at the model: in a fork of its fork server, which stays as it
was for the workers to come."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo import wiring
from bamboo.errors import BambooError, InputError
from bamboo.wiring import torch_process
from bamboo.wiring.begun import Begun, Forked
from testbed.waiting import wait_until
from tests.cloud.local.local_world import alive
from tests.jobs import tiny_job

ROOT = Path(__file__).parents[2]
ENTRIES = "tests.wiring.test_begun"
TIMES = ("forward_ms", "backward_ms", "optimizer_ms")
MINE = """
import os, sys
import torch
os.environ["SET_BY_THE_MODEL"] = "1"
sys.path.append("added by the model")
torch.manual_seed(1)
def embed(): return torch.nn.Embedding(256, 16)
def head(): return torch.nn.Linear(16, 256)
def build(job): return [embed, head]
"""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    job = tiny_job(tmp_path_factory.mktemp("job"))
    with pytest.MonkeyPatch.context() as patch, Begun() as begun:
        patch.setenv("PYTHONPATH", str(ROOT))
        begun.begin(job, preload=(*wiring.preloaded(job), ENTRIES))
        yield begun


def asked(begun: Begun, entry: str) -> Forked:
    forked = begun.fork(f"{ENTRIES}:{entry}")
    assert forked is not None
    return forked


# ---------------------------------------------------------------- what forks do


def tells(_config: Mapping[str, str]) -> None:
    import torch

    found = {
        "modules": sorted(sys.modules),
        "environment": dict(os.environ),
        "path": sys.path,
        "folder": str(Path.cwd()),
        "threads": len(os.listdir("/proc/self/task")),
        "draw": torch.rand(1).item(),
    }
    sys.stdout.write(json.dumps(found))


def killed(_config: Mapping[str, str]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def breaks(_config: Mapping[str, str]) -> int:
    sys.stderr.write("first\nlast\n")
    return 7


def lasts(_config: Mapping[str, str]) -> None:
    other = os.fork()
    if other:
        sys.stderr.write(json.dumps({"step": other, "steps": os.getpid()}) + "\n")
        sys.stderr.flush()
    signal.pause()


# ---------------------------------------------------------------- tests


def test_it_finds_what_a_new_interpreter_finds_and_none_is_started(
    begun: Begun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tiny_job(tmp_path)
    plain = wiring.run_preflight(job)
    monkeypatch.setattr(torch_process, "Started", lambda _: pytest.fail("an interpreter started"))
    told: list[tuple[int, int]] = []
    forked = wiring.run_preflight(job, told=lambda *step: told.append(step), begun=begun)
    assert told
    assert told[-1][0] == told[-1][1]
    for layer in (*plain["layers"], *forked["layers"]):
        assert all(layer.pop(time) > 0 for time in TIMES)
    assert forked == plain


def test_a_model_that_was_looked_at_changes_nothing_for_the_forks_after_it(
    begun: Begun, tmp_path: Path
) -> None:
    before = torch_process.ask(asked(begun, "tells"), "", what="it")
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    job = tiny_job(tmp_path, ["model.model=mine.py:build"])
    assert len(wiring.run_preflight(job, begun=begun)["layers"]) == 2
    assert torch_process.ask(asked(begun, "tells"), "", what="it") == before
    assert before["threads"] == 1


def test_a_job_that_cannot_be_trained_is_refused_with_its_line(
    begun: Begun, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("raise ValueError('not today')\n", encoding="utf-8")
    job = tiny_job(tmp_path, ["model.model=mine.py:build"])
    with pytest.raises(InputError, match=r"mine\.py.*not today"):
        wiring.run_preflight(job, begun=begun)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("breaks", r"^it ended with status 7: first \| last$"),
        ("killed", r"^it was killed by SIGKILL, as Linux does when memory"),
        ("missing", r"^it ended with status 70: .*has no attribute 'missing'$"),
    ],
)
def test_a_fork_that_breaks_is_told_in_one_line(begun: Begun, entry: str, says: str) -> None:
    with pytest.raises(BambooError, match=says):
        torch_process.ask(asked(begun, entry), "", what="it")


def test_a_fork_that_does_not_end_is_ended_with_all_that_it_began(begun: Begun) -> None:
    pids: list[int] = []
    with pytest.raises(BambooError, match=r"^too long$"):
        torch_process.ask(
            asked(begun, "lasts"),
            "",
            what="it",
            told=lambda *both: pids.extend(both),
            deadline_s=0.5,
            too_long="too long",
        )
    assert len(pids) == 2
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid), what=f"the end of {pid}")


def test_an_interrupt_ends_the_fork(begun: Begun) -> None:
    def interrupt(*_both: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    forked = asked(begun, "lasts")
    try:
        with pytest.raises(KeyboardInterrupt):
            torch_process.ask(forked, "", what="it", told=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not alive(forked.pid)


def test_a_job_of_an_account_begins_nothing(tmp_path: Path) -> None:
    """There is no fork server where its workers run, and the look is at the launcher's machine."""
    job = tiny_job(tmp_path)
    with Begun() as begun:
        begun.begin(replace(job, cloud=replace(job.cloud, provider="ec2")), preload=("missing",))
        assert begun.fork("a:b") is None
        assert begun.take() is None


def test_where_it_cannot_begin_the_launch_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    with (
        pytest.raises(BambooError, match=r"(?s)did not start; its log ends:\n.*named 'missing'"),
        Begun() as begun,
    ):
        begun.begin(tiny_job(tmp_path), preload=("missing",))
    assert list((tmp_path / "tmp").iterdir()) == []
