"""The script that sees to a redis-server: silent where it is, a remedy where it cannot be."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(tmp_path: Path, *commands: str) -> "subprocess.CompletedProcess[str]":
    for name in commands:
        kind = "1000" if name == "id" else ""
        (tmp_path / name).write_text(f'#!/bin/sh\necho {kind}\necho {name} "$@" >>"$CALLS"\n')
        (tmp_path / name).chmod(0o755)
    return subprocess.run(
        ["/bin/sh", ROOT / "infra" / "redis_server.sh"],
        env={"PATH": str(tmp_path), "CALLS": str(tmp_path / "calls")},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_where_it_is_nothing_is_done(tmp_path: Path) -> None:
    done = run(tmp_path, "redis-server", "apt-get", "id")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "calls").exists()


def test_who_is_not_root_is_told_what_to_install(tmp_path: Path) -> None:
    done = run(tmp_path, "apt-get", "id")
    assert done.returncode == 2
    assert "apt-get install redis-server" in done.stderr
    assert (tmp_path / "calls").read_text() == "id -u\n"
