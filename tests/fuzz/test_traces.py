"""Traces in every format: a market that is in order, or InputError."""

from pathlib import Path

from hypothesis import given

from bamboo.errors import InputError
from bamboo.sim.market.trace import Trace, parse_trace, read_trace
from bamboo.sim.market.trace_text import write_events
from tests.fuzz.cases import Cases, fuzzed
from tests.fuzz.odd import bent_bytes, bent_json

EVENTS = b"0,add,node1\n0,add,node2,us-east-1a\n1500,remove,node1\n1500,add,node3\n9000,end\n"
TABLE = b"ms;event;node;zone;type\n0;ADD;node1;a;p3\n1500;remove;node1;;p3\n9000;end\n"
COUNTS = b"2023-02-15, 00:01:00, 4\n2023-02-15, 00:02:00, 2\n2023-02-15, 01:00:00, 7\n"
SERIES = '{"metadata": {"gap_seconds": 600}, "data": [4, 4, 2, 0, 7]}'


def is_in_order(trace: Trace | None) -> None:
    """Times go on, nobody comes twice or goes unseen, and it is read as it is written."""
    if trace is None:
        return
    before_s, here = 0.0, set()
    for event in trace.events:
        assert before_s <= event.at_s <= trace.length_s
        assert (event.node in here) is not event.comes
        here.symmetric_difference_update({event.node})
        before_s = event.at_s
    plain = all(e.node.isprintable() and e.zone.isprintable() for e in trace.events)
    if len(trace.events) < 1000 and trace.events and plain:
        again = parse_trace(write_events(trace), Path("again"))
        assert [e.node for e in again.events] == [e.node for e in trace.events]


@fuzzed
@given(bent_bytes([EVENTS, EVENTS.replace(b"\n", b"\r\n"), TABLE, COUNTS, SERIES.encode()]))
def test_traces_as_bytes(tmp_path: Path, cases: Cases, data: bytes) -> None:
    path = tmp_path / "trace"
    path.write_bytes(data)
    is_in_order(cases.judge(lambda: read_trace(path), InputError))


@fuzzed
@given(bent_json([SERIES]))
def test_availability_series(cases: Cases, text: str) -> None:
    is_in_order(cases.judge(lambda: parse_trace(text, Path("trace")), InputError))
