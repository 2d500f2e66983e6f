"""Describes the data of a job before anything is trained on it: files, bytes, kinds, and what was
left out.

Rule: this changes no byte of what is read. Only its bytes decide whether a file is text. A file
that is not text, or has a syntax around its text, is trained on as it stands, and is named.
"""

import codecs
from collections import Counter
from pathlib import PurePath
from typing import Any

NAMED = 3
"""How many files of each kind are named; of more only the number is given."""
SYNTAX = {
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".json": "JSON",
    ".csv": "CSV",
    ".tsv": "TSV",
    ".html": "HTML",
    ".xml": "XML",
}
"""Endings of text files in a syntax: quotes, keys and tags become tokens like the words."""


class Description:
    """Is filled while the data is read. Of a file that was cut, only the part that was read is
    judged."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._left_out: Counter[str] = Counter()
        self._not_text: list[str] = []
        self._syntax: dict[str, list[str]] = {}
        self._files = self._bytes = self._all_files = self._all_bytes = 0

    def left_out(self, what: str) -> None:
        """Count something below the folder that is left out: `hidden`, `link to a folder`, ...."""
        self._left_out[what] += 1

    def there(self, size_bytes: int) -> None:
        """Count a file that belongs to the data, whether it is read or not."""
        self._all_files += 1
        self._all_bytes += size_bytes

    def read(self, name: str, part: bytes) -> None:
        """Judge the part of a file that was read. `name`: relative to the data's folder."""
        self._files += 1
        self._bytes += len(part)
        if not is_text(part):
            self._not_text.append(name)
        elif syntax := SYNTAX.get(PurePath(name).suffix.lower()):
            self._syntax.setdefault(syntax, []).append(name)

    def body(self) -> dict[str, Any]:
        """The description as JSON. `all_files` and `all_bytes` are what there would be without
        data.max_bytes; `named` has at most NAMED files of a kind."""
        return {
            "files": self._files,
            "bytes": self._bytes,
            "all_files": self._all_files,
            "all_bytes": self._all_bytes,
            "max_bytes": self._max_bytes,
            "left_out": dict(sorted(self._left_out.items())),
            "not_text": _kind(self._not_text),
            "syntax": {name: _kind(files) for name, files in sorted(self._syntax.items())},
        }


def _kind(files: list[str]) -> dict[str, Any]:
    return {"files": len(files), "named": files[:NAMED]}


def is_text(part: bytes) -> bool:
    """Whether bytes are UTF-8 without NUL; the last character may be incomplete."""
    if b"\0" in part:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(part, final=False)
    except UnicodeDecodeError:
        return False
    return True
