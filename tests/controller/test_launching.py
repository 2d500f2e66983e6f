"""The claim on a run's id, and what an interrupt does to it and to the start."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from bamboo.controller import background, launching
from bamboo.controller.launching import Prepared, claim
from bamboo.errors import BooksUnwritable, RunExists
from bamboo.ids import RunId
from bamboo.runs import lock, run_folder
from bamboo.runs.lock import Lock
from bamboo.runs.run_folder import RunFolder
from bamboo.wiring.begun import Begun
from tests.runs.test_reading import folder_of
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


@pytest.mark.parametrize("ends", [KeyboardInterrupt(), BooksUnwritable("full"), OSError("full")])
def test_a_claim_that_is_cut_off_leaves_the_id_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: BaseException
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    planned, source = plan(), tmp_path / "job.toml"
    source.write_text("")
    prepared = Prepared(run=RunId("a"), job=planned.job, planned=planned, trace=None)

    def cut_off(*terms: object, **others: object) -> None:
        raise ends

    with monkeypatch.context() as patch:
        patch.setattr(launching, "save_terms", cut_off)
        with pytest.raises(type(ends)):
            claim(prepared, source=source, started_s=1.0, detached=False)
    _, held = claim(prepared, source=source, started_s=2.0, detached=False)
    held.close()


def test_an_interrupt_while_the_launcher_is_loading_is_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path)
    held = lock.take(folder)
    assert held is not None
    # It ends at the signal, without a word.
    monkeypatch.setattr(background, "interpreter", lambda *module: ["sh", "-c", "exec sleep 60"])
    real = background._line

    def interrupted_once(descriptor: int, *, deadline_s: float) -> bytes:
        if deadline_s == background.READY_DEADLINE_S:
            raise KeyboardInterrupt
        return real(descriptor, deadline_s=deadline_s)

    monkeypatch.setattr(background, "_line", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        background.start(folder, held, Begun(), fresh=True)
    assert lock.is_free(folder)
