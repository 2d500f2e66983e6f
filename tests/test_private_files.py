"""Files of a run are their owner's alone; those that a user names have the user's own rights."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.security.open_files import NO_OTHER, done_by_another, main, open_to_others

MAKES = """
import sys
from pathlib import Path
from bamboo.private_files import keep_private
from bamboo.runs import run_folder
from cli.new_file import write_new

keep_private()
base = Path(sys.argv[1])
folder = run_folder.create(base, "of-mine")
(folder.path / "part").mkdir()
(folder.path / "part" / "by-any-code").write_text("x")
run_folder.write_json(folder.receipt, {})
write_new(base / "asked-for.html", b"x", force=False)
write_new(base / "secret.toml", b"x", force=False, mode=0o600)
"""


def modes_of(base: Path) -> dict[str, int]:
    return {str(path.relative_to(base)): path.stat().st_mode & 0o777 for path in base.rglob("*")}


@pytest.mark.parametrize(("umask", "asked_for"), [(0, 0o666), (0o022, 0o644), (0o077, 0o600)])
def test_rights_of_what_is_written(tmp_path: Path, umask: int, asked_for: int) -> None:
    base = tmp_path / "runs"
    subprocess.run([sys.executable, "-c", MAKES, base], check=True, umask=umask, timeout=60)
    modes = modes_of(base)
    assert modes.pop("asked-for.html") == asked_for
    assert modes.pop("secret.toml") == 0o600
    assert modes.pop("of-mine") == modes.pop("of-mine/part") == 0o700
    assert modes
    assert set(modes.values()) == {0o600}


def test_what_is_open_is_found(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir(mode=0o700)
    (tmp_path / "inner" / "open").write_text("x")
    (tmp_path / "inner" / "open").chmod(0o604)
    (tmp_path / "link").symlink_to("inner")
    tmp_path.chmod(0o700)
    assert open_to_others(tmp_path) == [f"{tmp_path}/inner/open -rw----r--"]
    assert main([str(tmp_path)]) == 1
    (tmp_path / "inner" / "open").chmod(0o600)
    assert main([str(tmp_path)]) == 0


@pytest.mark.skipif(NO_OTHER != "", reason=NO_OTHER)
def test_what_another_user_does_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests/launches/test_launch.py` walks live and ended runs so."""
    shut, ajar = tmp_path / "shut", tmp_path / "open"
    for folder, mode in ((shut, 0o700), (ajar, 0o755)):
        folder.mkdir()
        for name, rights in (("read", 0o644), ("written", 0o622), ("mine", 0o600)):
            (folder / name).write_text("x")
            (folder / name).chmod(rights)
        with socket.socket(socket.AF_UNIX) as listening:
            monkeypatch.chdir(folder)  # a socket's path has little room
            listening.bind("socket")
        folder.chmod(mode)
    assert done_by_another(shut) == []
    assert sorted(done_by_another(shut, ajar)) == [
        f"{ajar} is listed",
        f"{ajar}/read is read",
        f"{ajar}/written is written to",
    ]
