"""Frames of the wire: a message, or Malformed."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from bamboo.ids import NodeId
from bamboo.ports import Buffer, MessageKey
from bamboo.runtime.wire.frames import Malformed, decode, encode, to_tensor
from bamboo.topology.slots import Slot
from tests.fuzz.cases import Cases, fuzzed
from tests.fuzz.odd import bent, bent_bytes

HEADER = [
    "act",
    [0, 1],
    [0, 0],
    5,
    3,
    "a.1",
    1,
    [0.0, 0.0],
    [0, 3],
    {"x": 1},
    [["f4", [2]], ["i8", [0, 3]]],
]
(WHOLE,) = encode(
    MessageKey(
        kind="ship",
        to=Slot(pipeline=1, stage=2),
        source=Slot(pipeline=0, stage=2),
        step=7,
        index=1,
    ),
    sender=NodeId("a.1"),
    generation=3,
    meta={"x": [1.5, None]},
    buffers=[
        Buffer(dtype="f4", shape=(2,), data=memoryview(b"12345678")),
        Buffer(dtype="bf16", shape=(1, 2), data=memoryview(b"abcd")),
    ],
)


def arrive(cases: Cases, frame: bytes) -> None:
    decoded = cases.judge(lambda: decode(memoryview(bytearray(frame))), Malformed)
    if decoded is None:
        return
    message = decoded.message
    assert all(map(math.isfinite, decoded.due))
    assert 0 <= decoded.number < decoded.count
    # Its tensors are no larger than what came.
    assert sum(to_tensor(b).nbytes for b in message.buffers) <= len(frame)
    assert isinstance(hash(message.key), int)


@fuzzed
@given(bent_bytes([WHOLE]))
def test_frames_as_bytes(cases: Cases, frame: bytes) -> None:
    arrive(cases, frame)


@fuzzed
@given(bent([HEADER]), st.sampled_from([b"", b"12345678", b"1234567", bytes(64)]))
def test_headers_of_any_kind(cases: Cases, header: object, body: bytes) -> None:
    text = json.dumps(header).encode()
    arrive(cases, len(text).to_bytes(4, "little") + text + body)
