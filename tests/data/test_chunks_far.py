"""A file in a bucket that is larger than the room for it: chunks go, and come again."""

import os
from pathlib import Path

import pytest

from bamboo.data import chunks
from bamboo.data.chunks import CheckedFile
from bamboo.token_files import CHUNK_BYTES, FarFile, leaf


def test_what_came_first_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "FEWEST", 2)
    monkeypatch.setattr(chunks, "OF_DISK", 0.0)
    parts = [os.urandom(CHUNK_BYTES) for _ in range(4)] + [b"end"]
    whole = b"".join(parts)
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(len(whole))
    asked: list[int] = []

    def read(begin: int, end: int) -> bytes:
        asked.append(begin // CHUNK_BYTES)
        return whole[begin:end]

    leaves = b"".join(leaf(part) for part in parts)
    far = FarFile(name="bucket/file", read=read, remedy="bring it again")
    found = CheckedFile(path, size_bytes=len(whole), leaves=leaves, far=far)
    for chunk in (0, 1, 2, 3, 4, 3, 0):
        begin = chunk * CHUNK_BYTES
        end = begin + len(parts[chunk])
        assert found.read(begin, end, "u1").tobytes() == parts[chunk]
        assert path.stat().st_blocks * 512 <= 4 * CHUNK_BYTES
    assert asked == [0, 1, 2, 3, 4, 0]
    over = 2 * CHUNK_BYTES - 4
    assert found.read(over, over + 8, "u1").tobytes() == whole[over : over + 8]
