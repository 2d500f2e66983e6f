"""A bar of progress shows how many of how many from the start, and only while somebody looks."""

import pytest

from cli.bar import bar


def test_a_bar_says_how_many_of_how_many_from_the_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.bar.progress_is_hidden", lambda: False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with bar("simulating") as told:
        told(0, 10)
    assert "0/10" in capsys.readouterr().err


def test_where_nobody_looks_nothing_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("simulating") as told:
        told(0, 10)
    assert capsys.readouterr() == ("", "")
