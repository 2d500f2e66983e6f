"""The hands, on real processes: what they stop goes on, what they fill is freed.

A process of somebody else is never touched.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo.chaos.hands import Hands
from testbed.waiting import wait_until

pytestmark = pytest.mark.timeout(60)

WRITER = """
import sys
for line in sys.stdin:
    try:
        with open(sys.argv[1], "ab") as file:
            file.write(b"x")
        print("written", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Appends a byte to a file whenever it is told a line; leader of a session of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "file")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        yield process
        process.kill()


def told(process: "subprocess.Popen[str]") -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    print(file=process.stdin, flush=True)
    return process.stdout.readline().strip()


def state(pid: int) -> str:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat[stat.rindex(")") + 2]


def test_a_full_disk_and_its_end(writer) -> None:
    hands = Hands(writer.pid)
    assert told(writer) == "written"
    hands.fill_disk(writer.pid)
    hands.fill_disk(writer.pid)
    assert told(writer) == "File too large"
    hands.undo_all()
    assert told(writer) == "written"


def test_what_was_stopped_goes_on(writer) -> None:
    hands = Hands(writer.pid)
    hands.stop(writer.pid)
    wait_until(lambda: state(writer.pid) == "T", what="it stands still")
    assert hands.stopped(writer.pid)
    hands.undo_all()
    assert not hands.stopped(writer.pid)
    assert told(writer) == "written"


def test_a_process_of_somebody_else_is_not_touched(writer) -> None:
    hands = Hands(writer.pid + 1)
    for act in (hands.kill, hands.stop, hands.fill_disk):
        with pytest.raises(ProcessLookupError):
            act(writer.pid)
    hands.kill_groups([writer.pid])
    assert told(writer) == "written"


def test_a_kill(writer) -> None:
    Hands(writer.pid).kill(writer.pid)
    assert writer.wait(timeout=10) == -9
