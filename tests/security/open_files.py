"""Which files of a run are open to other users of the machine.

`.venv/bin/python -m tests.security.open_files FOLDER...` lists what lies below these folders, of a
live or an ended run (`runs/RUN`), that somebody but its owner may read, write or enter; its exit
status is 1 if there is any. `--as USER` before them, for root: become that user, and list what it
can do in fact, as though the folders above were open to it.
"""

import argparse
import os
import pwd
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

OTHERS = 0o077
ROOT = Path(__file__).resolve().parents[2]
ANOTHER = "nobody"
NO_OTHER = "" if os.geteuid() == 0 else "only root can become a second user"
"""Why nobody here can walk a run as another user; "" where somebody can."""


def open_to_others(folder: Path) -> list[str]:
    """Each file and folder from this folder on, with its rights, that is not its owner's alone;
    what ends meanwhile is left out. Where a link leads is another matter."""
    return [
        f"{path} {stat.filemode(status.st_mode)}"
        for path, status in _all(folder)
        if not stat.S_ISLNK(status.st_mode) and status.st_mode & OTHERS
    ]


def done_by_another(*folders: Path, user: str = ANOTHER) -> list[str]:
    """What another user does in these folders, where somebody can become one; else nothing. The
    process that becomes it is one of its own."""
    if NO_OTHER:
        return []
    command = [sys.executable, "-m", "tests.security.open_files", "--as", user, *map(str, folders)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines() if done.returncode else []


def _as_user(user: str, folders: Sequence[Path]) -> list[str]:
    """Become this user for good. Its every name is tried, whether or not the user could list it."""
    looked_at = []
    for folder in folders:
        names = [path.relative_to(folder) for path, _ in _all(folder)]
        looked_at.append((os.open(folder, os.O_PATH | os.O_DIRECTORY), folder, names))
    account = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    found = []
    for descriptor, folder, names in looked_at:
        try:
            os.fchdir(descriptor)
        except PermissionError:
            continue  # it is shut, with all that lies in it
        found += [f"{folder / name} {what}" for name in names for what in _done_to(name)]
    return found


def _done_to(path: Path) -> Iterator[str]:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode):
        return
    if stat.S_ISDIR(mode):
        for what, right in (("is listed", os.R_OK), ("is written to", os.W_OK)):
            if os.access(path, right):
                yield what
    elif stat.S_ISSOCK(mode):
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(5.0)
            if asking.connect_ex(str(path)) == 0:
                yield "answers"
    else:
        for what, flags in (("is read", os.O_RDONLY), ("is written to", os.O_WRONLY)):
            try:
                os.close(os.open(path, flags | os.O_NONBLOCK))
            except OSError:
                continue
            yield what


def _all(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    yield from _of(folder)
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            yield from _of(Path(where) / name)


def _of(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        yield path, path.lstat()
    except FileNotFoundError:
        return


def main(arguments: Sequence[str]) -> int:
    """The command; see the top of the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.security.open_files")
    parser.add_argument("folders", nargs="+", metavar="FOLDER", type=Path, help="runs/RUN")
    parser.add_argument("--as", dest="user", help="for root: what this user can do in fact")
    asked = parser.parse_args(arguments)
    for folder in asked.folders:
        if not os.path.lexists(folder):
            parser.error(f"{folder} is not there; nothing was looked at")
    if asked.user is not None and NO_OTHER:
        parser.error(f"--as {asked.user}: {NO_OTHER}")
    if asked.user is not None:
        found = _as_user(asked.user, asked.folders)
    else:
        found = [line for folder in asked.folders for line in open_to_others(folder)]
    sys.stdout.write("\n".join(found or ["nothing is open to other users"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
