"""Where a secret lies that should not: in the files of a folder, and in what anybody may read of a
process."""

from collections.abc import Iterable
from pathlib import Path


def files_with(secret: str, folder: Path) -> set[str]:
    """The files below `folder` that contain it, or have it in their name."""
    wanted = secret.encode()
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if secret in path.name or (path.is_file() and wanted in path.read_bytes())
    }


def processes_with(secret: str, pids: Iterable[int]) -> set[str]:
    """Command lines and environments that contain it, as `pid/environ`."""
    found, read = set(), 0
    for pid in pids:
        for name in ("cmdline", "environ"):
            try:
                text = Path(f"/proc/{pid}/{name}").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            read += bool(text)
            if secret.encode() in text:
                found.add(f"{pid}/{name}")
    assert read, "there was no process to look at"
    return found
