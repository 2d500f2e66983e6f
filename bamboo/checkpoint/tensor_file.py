"""Reads the header of a safetensors file, and computes the SHA-256 of each tensor in it.

    8 bytes, the header's length | the header, JSON: {name: {dtype, shape, data_offsets}} | the data

Rule: the tensors lie one after the other and fill the data, as the format demands. So, whatever the
header says, the file is read once, a piece at a time.
"""

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONGEST_HEADER = 100_000_000
"""Bytes; safetensors reads no longer header."""
LONGEST_NAME = 4096
"""Characters; no tensor's name is longer."""
METADATA = "__metadata__"
_PIECE_BYTES = 1 << 20
_SHORTER = "it became shorter while it was read"
_BYTES_OF = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
"""Bytes of one element, by the format's name of its type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashed:
    """The contents of a file as it lies there."""

    sha256: str
    metadata: Any
    """The header's own entry, as JSON; None without one."""
    tensors: dict[str, str]
    """SHA-256 of each tensor's raw bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tensor lies in a file."""

    dtype: str
    """The format's name of the type, such as `F32`."""
    shape: tuple[int, ...]
    begin: int
    end: int
    """Bytes from the start of the file."""


def places(file: BinaryIO) -> dict[str, Place]:
    """Where each tensor lies in a file that is open at its start. Raises the same errors as
    `hashed`."""
    begin, header, _ = _header(file)
    data_bytes = os.fstat(file.fileno()).st_size - len(begin)
    ends = _ends(header, data_bytes)
    out, before = {}, len(begin)
    for name, end in ends.items():
        about = header[name]
        out[name] = Place(
            dtype=about["dtype"], shape=tuple(about["shape"]), begin=before, end=len(begin) + end
        )
        before = len(begin) + end
    return out


def arrays(path: Path) -> "dict[str, NDArray[Any]]":
    """The tensors of a file as NumPy arrays; those in bfloat16, which NumPy lacks, as float32.
    Raises the same errors as `hashed`."""
    from safetensors.numpy import load

    held, wide = {}, []
    with path.open("rb") as file:
        for name, place in places(file).items():
            file.seek(place.begin)
            if place.dtype == "BF16":
                wide.append(name)
                place = replace(place, dtype="U16")
            held[name] = (place, file.read(place.end - place.begin))
    found: dict[str, NDArray[Any]] = load(packed(held))
    return found | {name: (found[name].astype("<u4") << 16).view("<f4") for name in wide}


def packed(tensors: Mapping[str, tuple[Place, bytes]]) -> bytes:
    """A whole file of tensors of these types and shapes, wherever they lay before."""
    header, at = {}, 0
    for name, (place, data) in tensors.items():
        offsets = [at, at + len(data)]
        header[name] = {"dtype": place.dtype, "shape": place.shape, "data_offsets": offsets}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data is aligned
    return b"".join([len(text).to_bytes(8, "little"), text, *(d for _, d in tensors.values())])


def copy_some(
    source: BinaryIO, names: Collection[str], target: BinaryIO, *, metadata: Mapping[str, str]
) -> None:
    """Write a file of these tensors of a file that is open at its start, byte for byte as
    safetensors writes them, a piece at a time. Raises the same errors as `hashed`."""
    chosen = {name: place for name, place in places(source).items() if name in names}
    header: dict[str, Any] = {METADATA: metadata}
    at = 0
    for name, place in chosen.items():
        size = place.end - place.begin
        header[name] = {"dtype": place.dtype, "shape": place.shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    target.write(len(text).to_bytes(8, "little") + text)
    for place in chosen.values():
        source.seek(place.begin)
        left = place.end - place.begin
        while left:
            piece = source.read(min(_PIECE_BYTES, left))
            if not piece:
                raise ValueError(_SHORTER)
            target.write(piece)
            left -= len(piece)


def hashed(file: BinaryIO) -> Hashed:
    """Read a whole file that is open at its start. Raises ValueError, saying what does not fit,
    RecursionError for a header that is nested too deep, and OSError."""
    begin, header, metadata = _header(file)
    ends = _ends(header, os.fstat(file.fileno()).st_size - len(begin))
    whole = hashlib.sha256(begin)
    tensors = {}
    at = 0
    for name, end in ends.items():
        own = hashlib.sha256()
        while at < end:
            piece = file.read(min(_PIECE_BYTES, end - at))
            if not piece:
                raise ValueError(_SHORTER)
            own.update(piece)
            whole.update(piece)
            at += len(piece)
        tensors[name] = own.hexdigest()
    return Hashed(sha256=whole.hexdigest(), metadata=metadata, tensors=tensors)


def _header(file: BinaryIO) -> tuple[bytes, dict[str, Any], Any]:
    """The bytes before the data, what they say of each tensor, and the header's own entry."""
    size = os.fstat(file.fileno()).st_size
    begin = file.read(8)
    length = int.from_bytes(begin, "little")
    if len(begin) < 8 or length > size - 8:
        raise ValueError("its header is longer than the file")
    if length > LONGEST_HEADER:
        raise ValueError(f"its header has {length} bytes, more than {LONGEST_HEADER}")
    text = file.read(length)
    header = json.loads(text, object_pairs_hook=_once)
    if not isinstance(header, dict):
        raise ValueError("its header is no table")
    metadata = header.pop(METADATA, None)
    return begin + text, header, metadata


def _ends(header: Mapping[str, Any], data_bytes: int) -> dict[str, int]:
    """Name -> where in the data the tensor ends, in the order in which the tensors lie there."""
    places = sorted((*_place(name, about), name) for name, about in header.items())
    before = 0
    for begin, end, name in places:
        if begin != before:
            what = "overlaps the tensor before it" if begin < before else "leaves a hole before it"
            raise ValueError(f"{_short(name)} {what}")
        before = end
    if before != data_bytes:
        raise ValueError(f"its tensors have {before} bytes and its data {data_bytes}")
    return {name: end for _, end, name in places}


def _place(name: str, about: Any) -> tuple[int, int]:
    if len(name) > LONGEST_NAME:
        raise ValueError(f"a name has {len(name)} characters, more than {LONGEST_NAME}")
    try:
        begin, end = about["data_offsets"]
        element, shape = _BYTES_OF[about["dtype"]], about["shape"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{_short(name)} lacks its kind, shape or place") from error
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end:
        raise ValueError(f"{_short(name)} has no place in a file")
    if _size(element, shape, most=end - begin) != end - begin:
        raise ValueError(f"{_short(name)} has another size than its shape")
    return begin, end


def _size(element: int, shape: Any, *, most: int) -> int:
    """Bytes of a tensor; -1 when there are more than `most`, or the shape is invalid."""
    if not isinstance(shape, list) or any(type(n) is not int or n < 0 for n in shape):
        return -1
    if 0 in shape:
        return 0
    for n in shape:
        element *= n
        if element > most:
            return -1
    return element


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("its header names one thing twice")
    return made


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:80]}...")
