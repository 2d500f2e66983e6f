"""The report as a picture: by a browser that is there, hangs, fails or is not there."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from bamboo.runs import run_folder
from cli import main
from cli.pictures import report_png
from testbed.waiting import wait_until
from tests.runs.test_reading import folder_of, home
from tests.study.test_report import spent

pytestmark = pytest.mark.timeout(180)
__all__ = ["home", "spent"]


def browser(folder: Path, script: str) -> Path:
    """A program that is found as Chromium is."""
    path = folder / "bin" / "chromium"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_without_a_browser_nothing_is_begun(
    spent: run_folder.RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main.run(["report", "spent", "--png", str(tmp_path / "a.png")]) == 2
    assert "install Chromium" in capsys.readouterr().err
    assert not (spent.path / "report.html").exists()


def test_a_browser_that_hangs_is_killed_with_all_it_started(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pids = tmp_path / "pids"
    path = browser(tmp_path, f"sleep 1000 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait")
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(report_png, "DEADLINE_S", 3.0)
    spent, png = folder_of(home, "spent"), tmp_path / "a.png"
    assert main.run(["report", "spent", "--png", str(png)]) == 1
    assert "did not draw the page within 3 s and was killed" in capsys.readouterr().err
    assert not png.exists()
    assert (spent.path / "report.html").exists()
    for pid in map(int, pids.read_text().split()):
        wait_until(lambda pid=pid: gone(pid), what=f"{pid} gone", timeout_s=30.0)  # type: ignore[misc]


def gone(pid: int) -> bool:
    """Whether it has ended; who waits for an orphan is not our business."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_browser_that_fails_is_quoted(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    spent = folder_of(home, "spent")  # without a picture its page is quickly written
    path = browser(tmp_path, "echo no room for it >&2; exit 7")
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    assert main.run(["report", spent.id, "--png", str(tmp_path / "a.png")]) == 1
    assert "ended with status 7: no room for it" in capsys.readouterr().err
    path.write_text("#!/bin/sh\nexit 0\n")
    assert main.run(["report", spent.id, "--png", str(tmp_path / "a.png")]) == 1
    assert "drew nothing" in capsys.readouterr().err


def test_drawn_by_a_browser_the_whole_page_is_there(
    spent: run_folder.RunFolder, tmp_path: Path
) -> None:
    if not any(map(shutil.which, report_png.BROWSERS)):
        pytest.skip("no Chromium on the PATH")
    from PIL import Image

    png = tmp_path / "a.png"
    assert main.run(["report", "spent", "--png", str(png)]) == 0
    with Image.open(png) as wide:
        assert wide.size[0] == report_png.WIDTH_PX
        assert 1000 < wide.size[1] < report_png.HIGHEST_PX
        assert len(wide.convert("RGB").getcolors(1 << 24) or ()) > 50
    page = (spent.path / "report.html").read_text()
    found = report_png.find_browser()
    narrow = tmp_path / "b.png"
    flags = ["--blink-settings=preferredColorScheme=0"]
    narrow.write_bytes(report_png.page_png(page, browser=found, width_px=390, flags=flags))
    with Image.open(narrow) as night, Image.open(png) as day:
        assert night.size[1] > day.size[1]
        assert sum(night.convert("RGB").getpixel((2, 2))) < 150  # type: ignore[arg-type]
        assert sum(day.convert("RGB").getpixel((2, 2))) > 600  # type: ignore[arg-type]
