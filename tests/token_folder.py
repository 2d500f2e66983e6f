"""Token files for tests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bamboo.config.tree import DataConfig, JobConfig
from bamboo.data.prepare import Prepared, prepare
from bamboo.token_files import DOCUMENTS, HEADER, beside

VOCABULARY = 700


def some_ids(count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Ids below VOCABULARY, each of which follows from the two before it."""
    rows = np.arange(count, dtype=np.int64)
    return (rows * rows // 7 + rows % 13) % VOCABULARY


def write_tokens(
    path: Path, ids: Any, *, kind: str = "u2", documents: Sequence[int] = (), **header: object
) -> Path:
    """A token file that is not prepared; `documents` are the places where they begin, and the
    end of the last one; `header` replaces parts of the header."""
    ids = np.asarray(ids)
    path.write_bytes(ids.astype(f"<{kind}").tobytes())
    said = {"type": kind, "tokens": len(ids), "vocabulary": VOCABULARY} | header
    beside(path, HEADER).write_text(json.dumps(said), encoding="utf-8")
    if documents:
        beside(path, DOCUMENTS).write_bytes(np.asarray(documents, "<u8").tobytes())
    return path


def prepared(path: Path, **data: Any) -> Prepared:
    """The same, prepared."""
    described = DataConfig(source="tokens", path=str(path), **data)
    return prepare(JobConfig(data=described), described, lambda done, of_all: None)
