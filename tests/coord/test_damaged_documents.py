"""Documents that only somebody else could have written: refused by name, whatever they hold."""

import json
from collections.abc import Callable

import pytest

from bamboo.coord.codec import decode_effects, decode_entry, decode_event, decode_state
from bamboo.coord.ledger import decode_record
from bamboo.coord.refill import decode_known
from bamboo.core.detector import _progress
from bamboo.errors import UnreadableRecord

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


def test_a_beat_that_is_nested_too_deep_is_no_growth() -> None:
    assert _progress(DEEP) == -1
