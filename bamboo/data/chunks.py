"""Reads a file whose chunks are checked, each at its first read.

Rule: no byte is given out that was not compared with the hash that `bamboo prepare` wrote, since
the file was last changed. What is damaged is said with file and chunk.

A file that lies in a bucket is brought a chunk at a time, when it is first read or ahead of that,
and kept on the disk. Where there is no room for all of it, the chunks that came first make room.
"""

import ctypes
import mmap
import os
import queue
import shutil
import threading
import weakref
from collections import deque
from pathlib import Path

import numpy as np

from bamboo.errors import DamagedData, InputError, StorageUnavailable
from bamboo.named_files import open_named
from bamboo.new_files import open_in_place
from bamboo.token_files import CHUNK_BYTES, HASH_BYTES, FarFile, chunks_of, leaf

OF_DISK = 0.8
"""The share of the free disk that a file may take."""
FEWEST = 64
"""Chunks that a file may take in any case."""
BRINGERS = 2
WAITING = 4096
"""Chunks that wait to be brought ahead, at most."""
_PUNCH_HOLE = 0x03
"""FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE."""


class CheckedFile:
    """A file, mapped into memory. `leaves` has the hash of each chunk."""

    def __init__(
        self, path: Path, *, size_bytes: int, leaves: bytes, far: FarFile | None = None
    ) -> None:
        """`far`: where the file lies; the one at `path` is of this process alone, has its size, and
        holes for what was not brought yet. Raises InputError."""
        self._name = str(path) if far is None else far.name
        self._remedy = "put the file back as it was" if far is None else far.remedy
        self.size_bytes = size_bytes
        self._leaves = leaves
        self._checked = bytearray(chunks_of(size_bytes))
        try:
            if far is None:
                with open_named(path) as file:
                    self._descriptor = os.dup(file.fileno())
            else:
                self._descriptor = open_in_place(path)
            weakref.finalize(self, os.close, self._descriptor)
            self._stamp = _stamp(self._descriptor)
            found_bytes = self._stamp[0]
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; put it back") from error
        if found_bytes != size_bytes:
            raise InputError(
                f"{path} has {found_bytes:,} bytes and not {size_bytes:,}; put it back, or say "
                "`bamboo prepare JOB`"
            )
        self._mapped = mmap.mmap(self._descriptor, size_bytes, access=mmap.ACCESS_READ)
        self._brought = None if far is None else _Brought(far, self, path.parent)

    def read(
        self, start: int, stop: int, dtype: str
    ) -> "np.ndarray[tuple[int], np.dtype[np.generic]]":
        """The bytes from `start` up to `stop`, as numbers of this type; they lie in the file's own
        memory, and stay there until the next call. Raises DamagedData where they are not what was
        prepared, StorageUnavailable where the bucket does not answer, and OSError."""
        chunks = _chunks_in(start, stop)
        if self._brought is not None:
            self._brought.make_room(chunks)
        elif (stamp := _stamp(self._descriptor)) != self._stamp:
            # Somebody wrote to it, or cut it: then nothing that was compared before still holds.
            self._checked = bytearray(len(self._checked))
            self._stamp = stamp
        for chunk in chunks:
            if not self._checked[chunk]:
                self._check(chunk)
        kind = np.dtype(dtype)
        return np.frombuffer(self._mapped, kind, (stop - start) // kind.itemsize, start)

    def ahead(self, start: int, stop: int) -> None:
        """These bytes will be read soon: what lies in a bucket is brought meanwhile."""
        if self._brought is not None:
            for chunk in _chunks_in(start, stop):
                if not self._checked[chunk]:
                    self._brought.bring_soon(chunk)

    def _check(self, chunk: int) -> None:
        # Read, and not through the map: there a bad disk or a shorter file would be a signal.
        if self._brought is not None:
            self._brought.bring(chunk)
            return
        self._compare(chunk, os.pread(self._descriptor, CHUNK_BYTES, chunk * CHUNK_BYTES))
        self._checked[chunk] = 1

    def _compare(self, chunk: int, part: bytes) -> None:
        wanted = self._leaves[chunk * HASH_BYTES : (chunk + 1) * HASH_BYTES]
        found = leaf(part)
        if found != wanted:
            raise DamagedData(
                f"{self._name} is damaged: chunk {chunk} of {len(self._checked)}, from byte "
                f"{chunk * CHUNK_BYTES:,}, has the hash {found.hex()[:12]} and was prepared with "
                f"{wanted.hex()[:12]}; {self._remedy}"
            )

    def _keep(self, chunk: int, part: bytes) -> None:
        """Write a chunk that was brought to its place."""
        self._compare(chunk, part)
        os.pwrite(self._descriptor, part, chunk * CHUNK_BYTES)
        self._checked[chunk] = 1

    def _forget(self, chunk: int) -> None:
        """Give a chunk's room on the disk back."""
        self._checked[chunk] = 0
        _punch(self._descriptor, chunk * CHUNK_BYTES, CHUNK_BYTES)


class _Brought:
    """The chunks of a file that lies in a bucket, as far as they are here."""

    def __init__(self, far: FarFile, file: CheckedFile, disk: Path) -> None:
        self._far = far
        self._file = weakref.proxy(file)
        self._most = max(FEWEST, int(OF_DISK * shutil.disk_usage(disk).free) // CHUNK_BYTES)
        self._here: deque[int] = deque()
        """In the order in which they came."""
        self._soon: queue.Queue[int] = queue.Queue(WAITING)
        self._bringers: list[threading.Thread] = []
        self._lock = threading.Lock()

    def make_room(self, needed: range) -> None:
        """Forget the chunks that came first where there are too many. Only the reader calls this,
        which holds nothing that it has read."""
        with self._lock:
            while len(self._here) > self._most:
                chunk = self._here.popleft()
                if chunk in needed:
                    self._here.append(chunk)
                else:
                    self._file._forget(chunk)

    def bring(self, chunk: int) -> None:
        """Have a chunk here. Raises as `CheckedFile.read`."""
        begin = chunk * CHUNK_BYTES
        part = self._far.read(begin, min(begin + CHUNK_BYTES, self._file.size_bytes))
        with self._lock:
            if not self._file._checked[chunk]:
                self._file._keep(chunk, part)
                self._here.append(chunk)

    def bring_soon(self, chunk: int) -> None:
        """Have it brought by another thread, if there are not too many that wait."""
        if not self._bringers:
            for _ in range(BRINGERS):
                # They end with the process: a bucket that does not answer holds no end up.
                self._bringers.append(threading.Thread(target=self._bring_all, daemon=True))
                self._bringers[-1].start()
        try:
            self._soon.put_nowait(chunk)
        except queue.Full:
            return  # the reader brings it itself

    def _bring_all(self) -> None:
        while True:
            chunk = self._soon.get()
            try:
                if not self._file._checked[chunk]:
                    self.bring(chunk)
            except (DamagedData, StorageUnavailable, OSError):
                continue  # the reader meets the same, and says so
            except ReferenceError:
                return  # nobody reads the file any more


def _stamp(descriptor: int) -> tuple[int, int, int]:
    """Size and times of a file: others after each change of it."""
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _chunks_in(start: int, stop: int) -> range:
    return range(start // CHUNK_BYTES, (stop - 1) // CHUNK_BYTES + 1)


def _punch(descriptor: int, begin: int, size: int) -> None:
    """Make a hole in a file. Where the file system has none, the chunk is only read again."""
    library = ctypes.CDLL(None, use_errno=True)
    library.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    library.fallocate(descriptor, _PUNCH_HOLE, begin, size)
