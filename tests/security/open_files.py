"""Which files of a run are open to other users of the machine.

`python -m tests.security.open_files FOLDER...` lists what lies below these folders, of a live or
an ended run, that somebody but its owner may read, write or enter; its exit status is 1 if there
is any.
"""

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

OTHERS = 0o077


def open_to_others(folder: Path) -> list[str]:
    """Each file and folder from this folder on, with its rights, that is not its owner's alone;
    what ends meanwhile is left out. Where a link leads is another matter."""
    return [
        f"{path} {stat.filemode(status.st_mode)}"
        for path, status in _all(folder)
        if not stat.S_ISLNK(status.st_mode) and status.st_mode & OTHERS
    ]


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


def main(folders: Sequence[str]) -> int:
    """The command; see the top of the file."""
    found = [line for folder in folders for line in open_to_others(Path(folder))]
    sys.stdout.write("\n".join(found or ["nothing is open to other users"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
