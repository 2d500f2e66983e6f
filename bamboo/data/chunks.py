"""Reads a file whose chunks are checked, each at its first read.

Rule: no byte is given out that was not compared with the hash that `bamboo prepare` wrote. What is
damaged is said with file and chunk.
"""

import mmap
import os
import weakref
from pathlib import Path

import numpy as np

from bamboo.errors import DamagedData, InputError
from bamboo.named_files import open_named
from bamboo.token_files import CHUNK_BYTES, HASH_BYTES, chunks_of, leaf


class CheckedFile:
    """A file, mapped into memory. `leaves` has the hash of each chunk."""

    def __init__(self, path: Path, *, size_bytes: int, leaves: bytes) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self._leaves = leaves
        self._checked = bytearray(chunks_of(size_bytes))
        try:
            with open_named(path) as file:
                self._descriptor = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._descriptor)
            found_bytes = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; put it back") from error
        if found_bytes != size_bytes:
            raise InputError(
                f"{path} has {found_bytes:,} bytes and not {size_bytes:,}; put it back, or say "
                "`bamboo prepare JOB`"
            )
        self._mapped = mmap.mmap(self._descriptor, size_bytes, access=mmap.ACCESS_READ)

    def read(
        self, start: int, stop: int, dtype: str
    ) -> "np.ndarray[tuple[int], np.dtype[np.generic]]":
        """The bytes from `start` up to `stop`, as numbers of this type; they lie in the file's own
        memory. Raises DamagedData where they are not what was prepared, and OSError."""
        for chunk in range(start // CHUNK_BYTES, (stop - 1) // CHUNK_BYTES + 1):
            if not self._checked[chunk]:
                self._check(chunk)
        kind = np.dtype(dtype)
        return np.frombuffer(self._mapped, kind, (stop - start) // kind.itemsize, start)

    def _check(self, chunk: int) -> None:
        # Read, and not through the map: there a bad disk or a shorter file would be a signal.
        begin = chunk * CHUNK_BYTES
        part = os.pread(self._descriptor, CHUNK_BYTES, begin)
        wanted = self._leaves[chunk * HASH_BYTES : (chunk + 1) * HASH_BYTES]
        found = leaf(part)
        if found != wanted:
            raise DamagedData(
                f"{self.path} is damaged: chunk {chunk} of {len(self._checked)}, from byte "
                f"{begin:,}, has the hash {found.hex()[:12]} and was prepared with "
                f"{wanted.hex()[:12]}; put the file back as it was"
            )
        self._checked[chunk] = 1
