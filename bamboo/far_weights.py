"""The weights that a run begins with, where a node has no folder of its run: they lie in a bucket,
and a layer reads its own tensors alone.

    weights/<digest>/places.json       {schema_version, tensors: {name: {file, dtype, shape, begin,
                                       end, sha256}}}
    weights/<digest>/*.safetensors     the files as they lie in the folder of the run

Rule: the digest is that of the run's semantics. What is read of a file is compared with the SHA-256
of its tensor, so no bit depends on what else lies there. Nothing here needs torch.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from bamboo.errors import DamagedData, InputError, StorageUnavailable
from bamboo.kept_weights import DAMAGE, digest_of
from bamboo.ports import ObjectStore

SCHEMA_VERSION = 1
PLACES = "places.json"
PATIENCE_S = 120.0
"""A bucket that does not answer is asked for so long, as what a node has begun waits for it."""
RETRY_S = 1.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FarTensor:
    """Where a tensor lies."""

    file: str
    dtype: str
    """The format's name of the type, such as `F32`."""
    shape: tuple[int, ...]
    begin: int
    end: int
    """Bytes from the start of the file."""
    sha256: str


class FarWeights:
    """All of them, by the names in the files."""

    def __init__(self, objects: ObjectStore, digest: str) -> None:
        """Reads where each tensor lies. Raises InputError where that is not there or is of other
        weights, StorageUnavailable."""
        self._objects = objects
        self._at = f"weights/{digest}"
        name = f"{self._at}/{PLACES}"
        text = asked(lambda: objects.part(name, 0, objects.sizes(name).get(name, 0)))
        try:
            found = json.loads(text or b"")["tensors"]
            self.tensors: Mapping[str, FarTensor] = {
                key: FarTensor(**about | {"shape": tuple(about["shape"])})
                for key, about in found.items()
            }
            there = digest_of({key: one.sha256 for key, one in self.tensors.items()})
        except DAMAGE as error:
            raise InputError(
                f"{name} of the run is not there, or damaged ({error}); launch the job again"
            ) from error
        if there != digest:
            raise InputError(
                f"{name} of the run names weights of digest {there[:12]}, not {digest[:12]}; "
                "launch the job again"
            )

    def read(self, name: str) -> bytearray:
        """The raw bytes of one tensor. Raises DamagedData when they are not those of the launch,
        StorageUnavailable."""
        at = self.tensors[name]
        file = f"{self._at}/{at.file}"
        data = asked(lambda: self._objects.part(file, at.begin, at.end))
        if data is None or hashlib.sha256(data).hexdigest() != at.sha256:
            raise DamagedData(f"{file}: {name} is not what the launch has brought")
        return bytearray(data)


def asked(ask: Callable[[], _T]) -> _T:
    """What a bucket answers, which is asked again for a while. Raises StorageUnavailable."""
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except StorageUnavailable:
            if time.monotonic() >= give_up_s:
                raise
            time.sleep(RETRY_S)
