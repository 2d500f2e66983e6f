"""Money records come back equal and in order; odd ones are refused."""

import pytest

from bamboo.coord.codec import (
    LedgerRecord,
    PriceRecord,
    ThroughputRecord,
    ValueRecord,
    append_record,
    decode_record,
    encode_record,
    read_ledger,
)
from bamboo.coord.memory_store import MemoryStore
from bamboo.errors import UnreadableRecord
from bamboo.ids import InstanceId, ZoneId, run_id

PRICE = PriceRecord(
    at_s=1.0,
    instance=InstanceId("i-0a"),
    instance_type="g4dn.xlarge",
    zone=ZoneId("us-east-1a"),
    market="spot",
    usd_per_hour=0.17,
    on_demand_usd_per_hour=0.526,
)
THROUGHPUT = ThroughputRecord(at_s=2.0, step=3, samples=48, tokens=6144, samples_per_s=16.5)
VALUE = ValueRecord(
    at_s=2.0, step=3, usd=0.001, on_demand_usd=0.003, samples_per_usd=4.8e4, tokens_per_usd=6e6
)


def test_records_come_back_in_order() -> None:
    store = MemoryStore(run_id("test"))
    written: list[LedgerRecord] = [PRICE, THROUGHPUT, VALUE]
    ids = [append_record(store, record) for record in written]
    assert list(read_ledger(store)) == list(zip(ids, written, strict=True))
    assert list(read_ledger(store, after_id=ids[1])) == [(ids[2], VALUE)]
    assert list(read_ledger(store, after_id=ids[2])) == []


def test_the_text_is_plain() -> None:
    assert encode_record(THROUGHPUT) == (
        '{"at_s":2.0,"kind":"throughput","samples":48,"samples_per_s":16.5,"step":3,"tokens":6144}'
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "unknown kind None"),
        ('{"kind":"gift"}', "unknown kind 'gift'"),
        ('{"kind":"throughput","step":1}', "do not fit"),
        (encode_record(VALUE).replace("0.001", '"cheap"'), "value.usd is 'cheap'"),
    ],
)
def test_odd_records_are_refused(text: str, says: str) -> None:
    with pytest.raises(UnreadableRecord, match=says):
        decode_record(text)
