"""A store that stops answering while a new launcher takes up its run: nothing ends by that."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bamboo import wiring
from bamboo.controller import attempt
from bamboo.coord.driver import Driver
from bamboo.ids import run_id
from bamboo.ports import Store
from bamboo.runs import live
from bamboo.runs.run_folder import RunFolder
from bamboo.signals import Interrupts
from cli.screen import PlainScreen
from tests.launches.test_detach import Detached, detached
from tests.launches.test_launch import Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class _Listening(PlainScreen):
    """Does something when the launcher first says that the store is away."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self._then: Callable[[], None] | None = then

    def note(self, text: str) -> None:
        if "store is away" in text and self._then is not None:
            then, self._then = self._then, None
            then()


@contextmanager
def store_stopped(run: Detached) -> Iterator[None]:
    folder = RunFolder(id=run_id(run.run), path=run.folder)
    pid = live.local_cloud_of(folder).control.services()["store"]
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_it_stops_answering_between_the_first_look_and_the_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with detached(bench, "between") as run:
        run.kill_launcher()
        folder = RunFolder(id=run_id(run.run), path=run.folder)
        first_look = wiring.driver
        with ExitStack() as stack:

            def then_stop(store: Store, me: str) -> Driver:
                monkeypatch.setattr(wiring, "driver", first_look)
                found = first_look(store, me)
                stack.enter_context(store_stopped(run))
                return found

            monkeypatch.setattr(wiring, "driver", then_stop)
            screen = _Listening(lambda: os.kill(os.getpid(), signal.SIGTERM))
            left = attempt.take_up(folder, screen, Interrupts(detached=True), ready=lambda: None)
        assert left is None  # it was told to leave while it waited, and settled nothing
        assert not folder.receipt.exists()
        run.wait_for_steps(1)
