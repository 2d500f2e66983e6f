"""A model that does not end is refused by the layer and the line, not waited for."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo.config.load import job_to_json
from bamboo.runtime.check.alone import Alone
from bamboo.runtime.device.time_limit import lift, limit
from tests.runtime.check.odd_models import assert_refused, in_forward, job_of

WAITS = {
    "a loop": (
        in_forward("while True: pass"),
        r"layer 2 (Odd) fails in its forward: TookTooLong: it was not over after 1 s, at mine.py, ",
    ),
    "an import": (
        "import threading\nthreading.Event().wait()\ndef build(job): return [embed, head]\n",
        "TookTooLong: it was not over after 1 s, at mine.py, line ",
    ),
}


@pytest.fixture(autouse=True)
def _lifted() -> Iterator[None]:
    yield
    lift()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("source", "message"), WAITS.values(), ids=WAITS)
def test_what_does_not_end_is_refused(
    tmp_path: Path, alone: Alone, source: str, message: str
) -> None:
    limit(1.0)
    assert_refused(job_of(tmp_path, source), alone, message)


@pytest.mark.full
@pytest.mark.timeout(120)
def test_what_does_not_end_alone_is_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path, in_forward("if sys.argv == ['another']: time.sleep(600)"))
    program = (
        "import sys, bamboo.runtime.check.preflight as p; p.LIMIT_S = 20.0; sys.exit(p.main({}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program.format([str(tmp_path)])],
        check=False,
        input=job_to_json(job),
        capture_output=True,
        text=True,
    )
    assert found.returncode == 2
    error = json.loads(found.stdout)["error"]
    assert "layer 2 (Odd) alone in another process" in error
    assert "in forward: if sys.argv == ['another']: time.sleep(600)" in error
    assert not list(tmp_path.glob("bamboo-look-*"))
