"""The claim on a run's id, between the plan and the start."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from bamboo.controller.launching import Prepared, claim
from bamboo.errors import RunExists
from bamboo.ids import RunId
from bamboo.runs import lock, run_folder
from bamboo.runs.lock import Lock
from bamboo.runs.run_folder import RunFolder
from tests.study.test_planning import plan

LAUNCHES = 8


def test_of_launches_of_one_id_at_once_one_gets_it_and_the_others_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    planned, source = plan(), tmp_path / "job.toml"
    source.write_text("")
    prepared = Prepared(run=RunId("a"), job=planned.job, planned=planned, trace=None)
    at_once = Barrier(LAUNCHES)

    def launch(number: int) -> tuple[RunFolder, Lock] | str:
        at_once.wait(timeout=30)
        try:
            return claim(prepared, source=source, started_s=float(number), detached=True)
        except RunExists as error:
            return str(error)

    with ThreadPoolExecutor(LAUNCHES) as pool:
        found = list(pool.map(launch, range(LAUNCHES)))
    ((winner, (folder, held)),) = [
        (number, one) for number, one in enumerate(found) if not isinstance(one, str)
    ]
    said = [one for one in found if isinstance(one, str)]
    assert len(said) == LAUNCHES - 1
    assert all("run a exists already" in one for one in said)
    assert run_folder.started_at_s(folder) == winner
    assert lock.take(folder) is None
    held.close()
