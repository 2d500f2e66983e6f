"""The one answer of a program: it ends with whoever was to read it."""

import os
import subprocess
import sys
from select import select

import pytest

WAITS = """
import sys, threading
from bamboo.runtime.answer import one_answer
with one_answer() as answer:
    answer({"ready": True})
    threading.Event().wait(25)
"""
ASKS = """
import subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
assert child.stdout.readline()
print(child.pid, flush=True)
threading.Event().wait(25)
"""


@pytest.mark.timeout(60)
def test_a_program_whose_asker_is_killed_ends_too() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ASKS, WAITS], stdout=subprocess.PIPE, text=True
    ) as asker:
        assert asker.stdout is not None
        watched = os.pidfd_open(int(asker.stdout.readline()))
        asker.kill()
        asker.wait(10)
    try:
        # A pidfd can be read from when its process is over.
        assert select([watched], [], [], 15)[0], "the program went on without its asker"
    finally:
        os.close(watched)


@pytest.mark.timeout(60)
def test_an_answer_that_was_given_and_read_ends_nothing() -> None:
    program = "\n".join(
        [
            "from bamboo.runtime.answer import one_answer",
            "with one_answer() as answer:",
            "    answer({'n': 1})",
            "print('after')",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout == '{"n": 1}\nafter\n'
