"""Documents that only somebody else could have written: refused by name, whatever they hold."""

import json
from collections.abc import Callable

import pytest

from bamboo.coord.codec import (
    Begin,
    decode_effects,
    decode_entry,
    decode_event,
    decode_record,
    decode_state,
    encode_entry,
)
from bamboo.coord.refill import decode_known
from bamboo.core.liveness.detector import _progress
from bamboo.errors import UnreadableRecord
from tests.core.build import POLICY, running

DEEP = "[" * 5_000
READERS = [decode_state, decode_event, decode_effects, decode_entry, decode_known, decode_record]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("text", [DEEP, '{"v":' + DEEP, "1" * 5000, "", "null", "[]", "\ud800"])
def test_what_is_no_document_is_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(UnreadableRecord):
        read(text)


@pytest.mark.parametrize("kind", [[], {}, None, 5, "nothing"])
def test_a_kind_that_is_no_word_is_refused(kind: object) -> None:
    with pytest.raises(UnreadableRecord, match="unknown kind"):
        decode_record(json.dumps({"kind": kind}))


@pytest.mark.parametrize("version", ["Infinity", "NaN", "1e999", "[]", '"x"'])
def test_an_offer_with_an_odd_version_is_refused(version: str) -> None:
    entry = json.dumps({"begin": "{}", "entries": [["V", "x"]], "state": "{}"})
    with pytest.raises(UnreadableRecord):
        decode_known(entry.replace('"V"', version))


@pytest.mark.parametrize("number", [10**400, -(10**400), float("inf"), float("nan"), True, "1"])
def test_a_number_that_is_no_finite_one_is_refused(number: object) -> None:
    record = {"kind": "value", "at_s": number, "step": 1, "usd": 1.0, "on_demand_usd": 1.0}
    with pytest.raises(UnreadableRecord, match=r"at_s is .*, not a finite number"):
        decode_record(json.dumps(record | {"samples_per_usd": 1.0, "tokens_per_usd": 1.0}))


@pytest.mark.parametrize(("key", "value"), [("spread", "ne"), ("suspect_s", 0), ("gone_s", -1.0)])
def test_a_policy_that_is_none_is_refused(key: str, value: object) -> None:
    whole = json.loads(encode_entry(Begin(state=running(), policy=POLICY, at_s=1.0)))
    whole["begin"]["policy"][key] = value
    with pytest.raises(UnreadableRecord, match=r"begin\.policy is no Policy"):
        decode_entry(json.dumps(whole))


def test_a_beat_that_is_nested_too_deep_is_no_growth() -> None:
    assert _progress(DEEP) == -1
