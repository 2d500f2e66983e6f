"""What a run takes along of the user's code, as a value and as JSON.

Rule: nothing in here is trusted to be a path until it was checked; a file lies below its folder.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFile:
    """One file: a module, or one that the model reads while it is built."""

    path: str
    """Where it lies in the bundle, with `/`; the first part is the number of its root."""
    origin: str
    """Where it was at launch."""
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A user's model, complete."""

    entry: str
    """The module with the model's function, as Python names it."""
    entry_path: str
    """Its file in the bundle."""
    search: tuple[str, ...]
    """Folders of the bundle that modules are looked for in, in this order."""
    folder: str
    """The working directory of the launch: what relative paths meant."""
    files: tuple[CodeFile, ...]
    """In the order of their paths."""
    requires: Mapping[str, str]
    """Distribution -> version, of all that the user's code imports from installed packages."""

    environment: Mapping[str, str | None]
    """Environment variable -> value at launch, of those that the user's code reads; None: unset."""

    absent: tuple[str, ...]
    """Paths that the model looked for at launch, and that were not there."""
    present: Mapping[str, tuple[int, ...]]
    """Path -> (mode, inode, device, bytes, time of the last change in ns) of what it looked at, and
    what was there and is not taken along, folders above all."""
    links: Mapping[str, str]
    """Folder that files lie in -> where it leads, of those that lie behind a link."""

    def identity(self) -> dict[str, Any]:
        """The part of a run's semantics: digests and versions, without places and values."""
        return {
            "files": {file.path: file.sha256 for file in self.files},
            "requires": dict(sorted(self.requires.items())),
            "environment": {name: _digest(value) for name, value in self.environment.items()},
        }

    def to_json(self) -> str:
        return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Read what `to_json` wrote. Raises ValueError for anything else."""
        try:
            raw = json.loads(text)
        except RecursionError as error:
            raise ValueError("it is nested too deep") from error
        return cls.from_dict(raw)

    @classmethod
    def from_dict(cls, raw: Any) -> "Manifest":
        """The same from the values of the JSON. Raises ValueError."""
        if not isinstance(raw, dict) or raw.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"it has another schema than {SCHEMA_VERSION}")
        try:
            found = cls(
                entry=str(raw["entry"]),
                entry_path=_inside(raw["entry_path"]),
                search=tuple(_inside(path) for path in raw["search"]),
                folder=str(raw["folder"]),
                files=tuple(_file(file) for file in raw["files"]),
                requires={str(name): str(v) for name, v in raw["requires"].items()},
                environment={
                    str(name): None if value is None else str(value)
                    for name, value in raw["environment"].items()
                },
                absent=tuple(map(str, raw["absent"])),
                links={str(folder): str(real) for folder, real in raw["links"].items()},
                present={str(path): _status(status) for path, status in raw["present"].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it lacks something, or holds another type: {error}") from error
        if found.entry_path not in {file.path for file in found.files}:
            raise ValueError(f"it has no file {found.entry_path}")
        return found

    def to_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.to_json())
        return body


def _digest(value: str | None) -> str | None:
    return None if value is None else hashlib.sha256(value.encode()).hexdigest()


def _status(raw: Any) -> tuple[int, ...]:
    mode, inode, device, size, changed_ns = map(int, raw)
    return mode, inode, device, size, changed_ns


def _file(raw: Any) -> CodeFile:
    return CodeFile(
        path=_inside(raw["path"]),
        origin=str(raw["origin"]),
        sha256=str(raw["sha256"]),
        bytes=int(raw["bytes"]),
    )


def _inside(path: Any) -> str:
    if not isinstance(path, str):
        raise TypeError(f"{path!r} is no path")
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(f"{path!r} is no path below the folder of the code")
    return path
