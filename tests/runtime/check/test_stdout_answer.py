"""The one answer of a program: it ends with whoever was to read it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from select import select
from typing import Any

import pytest

from bamboo.errors import InputError
from bamboo.runtime.check.stdout_answer import answer_equal

WAITS = """
import subprocess, sys, threading
from pathlib import Path
from bamboo.runtime.check.stdout_answer import one_answer
with one_answer(Path(sys.argv[1])) as answer:
    subprocess.Popen(["sleep", "25"], stderr=int(sys.argv[2]), pass_fds=[int(sys.argv[2])])
    answer({"ready": True})
    threading.Event().wait(25)
"""
ASKS = """
import subprocess, sys, threading
child = subprocess.Popen(
    [sys.executable, "-c", *sys.argv[1:]],
    stdout=subprocess.PIPE, text=True, process_group=0, pass_fds=[int(sys.argv[3])],
)
assert child.stdout.readline()
print(child.pid, flush=True)
threading.Event().wait(25)
"""


@pytest.mark.timeout(60)
def test_a_program_whose_asker_is_killed_ends_too(tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    held, holds = os.pipe()  # by all that the program starts
    with subprocess.Popen(
        [sys.executable, "-c", ASKS, WAITS, str(room), str(holds)],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[holds],
    ) as asker:
        os.close(holds)
        assert asker.stdout is not None
        watched = os.pidfd_open(int(asker.stdout.readline()))
        asker.kill()
        asker.wait(10)
    try:
        # A pidfd can be read from when its process is over.
        assert select([watched], [], [], 15)[0], "the program went on without its asker"
        assert select([held], [], [], 15)[0], "what it started went on without it"
        assert not room.exists()
    finally:
        os.close(watched)
        os.close(held)


@pytest.mark.timeout(60)
def test_an_answer_that_was_given_and_read_ends_nothing() -> None:
    program = "\n".join(
        [
            "from bamboo.runtime.check.stdout_answer import one_answer",
            "with one_answer() as answer:",
            "    answer({'n': 1})",
            "print('after')",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout == '{"n": 1}\nafter\n'


@pytest.mark.parametrize(("equal", "status"), [(True, 0), (False, 5), (None, 2)])
def test_a_comparison_is_answered_and_its_status_says_how_it_came_out(
    equal: bool | None, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def compare() -> Mapping[str, Any]:
        sys.stdout.write("noise\n")
        os.write(1, b"and below")
        if equal is None:
            raise InputError("there is nothing to compare")
        return {"equal": equal}

    assert answer_equal(compare) == status
    said, beside = capfd.readouterr()
    wanted = {"error": "there is nothing to compare"} if equal is None else {"equal": equal}
    assert json.loads(said) == wanted
    assert "noise" in beside
    assert "and below" in beside
