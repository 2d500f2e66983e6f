"""Where nobody reads what is printed, a run goes on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launches.test_launch import Bench
from tests.launches.test_resume import QUICK
from tests.warm import warm

pytestmark = pytest.mark.timeout(150)

PRINTS = """
import sys
from cli.echo import echo
sys.stdin.readline()
for number in range(3):
    echo(f"line {number}", err=sys.argv[1] == "err")
with open("went-on", "w") as file:
    file.write("yes")
"""


@pytest.mark.parametrize("stream", ["out", "err"])
def test_progress_that_nobody_reads_is_lost_and_that_is_all(tmp_path: Path, stream: str) -> None:
    read, unread = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", PRINTS, stream],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        stdin=subprocess.PIPE,
        **{f"std{stream}": unread},
    ) as process:
        os.close(unread)
        os.close(read)
        assert process.stdin
        process.stdin.write(b"go\n")
        process.stdin.close()
        assert process.wait(60) == 0
    assert (tmp_path / "went-on").read_text() == "yes"


@pytest.mark.e2e
def test_a_launch_goes_on_when_its_reader_has_gone(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    read, unread = os.pipe()
    with open(read) as out, (tmp_path / "errors").open("w+") as errors:
        process = warm().begin(
            ["cli.main", "launch", "job.toml", "--run", "unread", *QUICK],
            folder=bench.folder,
            environment=bench.environment,
            output=unread,
            errors=errors.fileno(),
        )
        os.close(unread)
        try:
            assert out.readline()
            out.close()
            status = process.wait(120)
        finally:
            process.kill()
        said = errors.read()
    assert (status, "Traceback" in said) == (0, False), said
    assert bench.json("status", "unread")["outcome"] == "done"
