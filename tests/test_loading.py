"""The start of a process of Bamboo, and children that outlive the one that started them."""

import os
import subprocess
from pathlib import Path

import pytest

from bamboo import loading
from bamboo.loading import let_outlive, script


def test_what_was_to_outlive_a_program_and_ended_is_no_zombie_after_the_next() -> None:
    first, second = (subprocess.Popen(["true"]) for _ in range(2))
    let_outlive(first)
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{first.pid}").exists()
    let_outlive(second)
    assert not Path(f"/proc/{first.pid}").exists()
    os.waitpid(second.pid, 0)
    let_outlive(subprocess.Popen(["true"]))  # somebody else has waited for the second one


def test_an_interrupt_before_the_command_is_loaded_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "main", interrupted)
    assert script() == 130
    assert capsys.readouterr().err == "error: interrupted\n"
