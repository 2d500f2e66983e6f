"""`ended` is true from when a receipt stands: a script that waits for it may verify at once."""

import json
from pathlib import Path
from typing import NoReturn

import pytest

from bamboo.errors import InputError, StoreUnavailable
from bamboo.runs import lock, run_folder
from bamboo.runs.run_status import status_of
from cli import main
from tests.controller.world import World, finished, job, joined, step
from tests.runs.test_reading import folder_of, live


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    return tmp_path


def test_a_run_has_ended_when_its_receipt_stands_and_not_when_its_members_have_finished(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, world = folder_of(home), World(job())
    live(folder, world, monkeypatch)
    world.do([joined(), step(0), step(1), step(2), finished(2, 0, 1, 2, 3)])

    def seen() -> tuple[str, bool, bool]:
        """Phase, and `ended` as `status` and `list` have it."""
        assert main.run(["status", "r", "--json"]) == 0
        status = json.loads(capsys.readouterr().out)
        assert main.run(["list", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        return status["phase"], status["ended"], row["ended"]

    assert seen() == ("finished", False, False)
    assert main.run(["status", "r"]) == 0
    assert "its receipt is not written yet" in capsys.readouterr().out
    body = status_of(folder)
    run_folder.write_json(
        folder.receipt, {"status": {k: v for k, v in body.items() if k != "ended"}}
    )
    assert seen() == ("finished", True, True)


def test_a_receipt_that_comes_while_the_store_is_asked_counts(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(home)
    run_folder.write_json(folder.endpoint, {"store_url": "redis://there/0"})

    def goes(run: str, url: str) -> NoReturn:
        run_folder.write_json(folder.receipt, {"status": {"phase": "finished"}})
        raise StoreUnavailable(f"the store at {url} cannot be reached")

    monkeypatch.setattr("bamboo.wiring.store_of", goes)
    assert status_of(folder) == {"phase": "finished", "ended": True}


def test_a_launcher_that_has_written_the_receipt_is_let_leave(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for `ended` and then resumes is not told that the run is going on."""
    folder = folder_of(home)
    held = lock.take(folder)
    assert held is not None
    with pytest.raises(InputError, match="is going on"):
        lock.refuse_while_led(folder)
    run_folder.write_json(folder.receipt, {"status": {"phase": "finished"}})
    monkeypatch.setattr("time.sleep", lambda _: held.close())
    lock.refuse_while_led(folder)
