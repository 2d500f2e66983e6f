"""A page as a picture, by an installed Chromium, which runs twice without a window.

    the page and a line that measures it  ->  its height     the page, so high  ->  PNG

Rule: the browser reads two files and has no network. It has a temporary folder of its own, and a
deadline, after which it and everything that it started are killed.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bamboo.errors import BambooError, InputError
from bamboo.new_files import write_whole
from cli.views.report import POLICY

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DEADLINE_S = 60.0
WIDTH_PX = 1240
HIGHEST_PX = 16_000
"""The highest picture that Chromium makes."""
_MEASURE = "<script>document.title = 'high:' + document.documentElement.scrollHeight</script>"
_HEIGHT = re.compile(r"<title>high:(\d+)</title>")


def find_browser() -> str:
    """The path of a Chromium. Raises InputError where there is none."""
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    raise InputError(
        f"--png: there is no browser that could draw it, none of {', '.join(BROWSERS)} is on the "
        "PATH; install Chromium, or leave --png out and open the HTML file"
    )


def page_png(
    page: str,
    *,
    browser: str,
    width_px: int = WIDTH_PX,
    flags: Sequence[str] = (),
) -> bytes:
    """The whole page at this width, as PNG. Raises BambooError where the browser does not draw it,
    or not within the deadline."""
    end_s = time.monotonic() + DEADLINE_S
    with tempfile.TemporaryDirectory(prefix="bamboo-", ignore_cleanup_errors=True) as folder:
        here = Path(folder)
        allowed = page.replace(POLICY, f"{POLICY}; script-src 'unsafe-inline'", 1)
        measured = here / "measured.html"
        write_whole(measured, allowed.replace("</body>", f"{_MEASURE}</body>", 1).encode())
        write_whole(here / "page.html", page.encode())

        def ask(height_px: int, *rest: str) -> str:
            command = [
                browser, "--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                *(["--no-sandbox"] if os.geteuid() == 0 else []),
                f"--user-data-dir={here / 'profile'}", f"--window-size={width_px},{height_px}",
                *flags, *rest,
            ]  # fmt: skip
            return _said(command, folder=here, within_s=end_s - time.monotonic())

        said = _HEIGHT.search(ask(800, "--dump-dom", measured.as_uri()))
        height_px = min(int(said[1]), HIGHEST_PX) if said else HIGHEST_PX // 4
        out = here / "page.png"
        ask(height_px, f"--screenshot={out}", (here / "page.html").as_uri())
        try:
            return out.read_bytes()
        except FileNotFoundError as error:
            raise BambooError(
                f"{browser} ended well and drew nothing; open the HTML file instead"
            ) from error


def _said(command: Sequence[str], *, folder: Path, within_s: float) -> str:
    """What the browser printed. Raises BambooError when it fails or is late."""
    with (folder / "out").open("w+b") as out, (folder / "err").open("w+b") as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        try:
            status = process.wait(timeout=max(within_s, 0.0))
        except subprocess.TimeoutExpired as error:
            raise BambooError(
                f"{command[0]} did not draw the page within {DEADLINE_S:g} s and was killed; open "
                "the HTML file instead"
            ) from error
        finally:
            # It leads its session, so the processes that it started end with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        err.seek(0)
        if status != 0:
            lines = err.read().decode(errors="replace").strip().splitlines()
            raise BambooError(
                f"{command[0]} ended with status {status}: {lines[-1] if lines else 'no word'}; "
                "open the HTML file instead"
            )
        return out.read().decode(errors="replace")
