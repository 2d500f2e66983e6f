"""What takes a while is said, and nothing else."""

from queue import SimpleQueue

import pytest

from bamboo.wiring import slow_work
from bamboo.wiring.slow_work import SlowWork


def test_what_takes_a_while_is_said_with_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_work, "SLOW_S", 0.005)
    said: SimpleQueue[str] = SimpleQueue()
    with SlowWork(said.put, "importing torch") as work:
        assert said.get(timeout=30) == "  still importing torch (0 s)"
        work.begins("running each layer")
        work.reached(3, 8)
        while (line := said.get(timeout=30)) != "  still running each layer, 3 of 8 (0 s)":
            assert line in ("  still importing torch (0 s)", "  still running each layer (0 s)")


def test_quick_work_is_silent_and_so_is_what_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_work, "SLOW_S", 3600.0)
    said: list[str] = []
    with SlowWork(said.append, "importing torch") as work:
        work.begins("another")
    assert not work._thread.is_alive()
    assert not said
