"""Everything that lies in a store: what the codec wrote, or UnreadableRecord."""

import json

from hypothesis import given
from hypothesis import strategies as st

from bamboo.coord.codec import (
    Begin,
    ThroughputRecord,
    decode_effects,
    decode_entry,
    decode_event,
    decode_record,
    decode_state,
    encode_effects,
    encode_entry,
    encode_event,
    encode_record,
    encode_state,
)
from bamboo.coord.refill import Known, decode_known, encode_known
from bamboo.core.effects import Start
from bamboo.core.events import NoticeReceived
from bamboo.errors import UnreadableRecord
from bamboo.ids import NodeId
from tests.core.build import POLICY, apply, joined, lost, running
from tests.fuzz.cases import Cases, fuzzed
from tests.fuzz.odd import bent_json

STATES = [running(), apply(running(2, 3), lost("n01.1")).state]
BEGIN = encode_entry(Begin(state=STATES[0], policy=POLICY, at_s=7.5))
THROUGHPUT = ThroughputRecord(at_s=1.0, step=2, samples=3, tokens=4, samples_per_s=5.0)


@fuzzed
@given(bent_json([encode_state(state) for state in STATES]))
def test_states(cases: Cases, text: str) -> None:
    state = cases.judge(lambda: decode_state(text), UnreadableRecord)
    if state is not None:
        assert decode_state(encode_state(state)) == state


@fuzzed
@given(
    bent_json(
        [
            encode_event(event)
            for event in (
                lost("a.1"),
                joined("a.1"),
                NoticeReceived(node=NodeId("a.1"), deadline_s=9),
            )
        ]
    )
)
def test_events(cases: Cases, text: str) -> None:
    event = cases.judge(lambda: decode_event(text), UnreadableRecord)
    if event is not None:
        assert decode_event(encode_event(event)) == event


@fuzzed
@given(bent_json([encode_effects((Start(to=NodeId("a.1")),)), BEGIN]))
def test_effects_and_entries(cases: Cases, text: str) -> None:
    cases.judge(lambda: decode_effects(text), UnreadableRecord)
    cases.judge(lambda: decode_entry(text), UnreadableRecord)


@fuzzed
@given(bent_json([encode_known(Known(begin=Begin(state=STATES[0], policy=POLICY, at_s=7.5),
                                     entries=(), state=STATES[0]))]))  # fmt: skip
def test_offers_of_a_refill(cases: Cases, text: str) -> None:
    cases.judge(lambda: decode_known(text), UnreadableRecord)


@fuzzed
@given(bent_json([encode_record(THROUGHPUT)]) | st.text(max_size=9).map(json.dumps))
def test_records_of_the_ledger(cases: Cases, text: str) -> None:
    record = cases.judge(lambda: decode_record(text), UnreadableRecord)
    if record is not None:
        assert decode_record(encode_record(record)) == record
