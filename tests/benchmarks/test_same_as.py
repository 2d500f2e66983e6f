"""The comparison with an older commit: it refuses a map that hides a difference, and finds one."""

from pathlib import Path
from typing import Any

import pytest

from bamboo.core.events import NodeLeft
from bamboo.ids import NodeId
from benchmarks.same_as.__main__ import HERE, compare, differences_of, refused
from benchmarks.same_as.player import Words

TABLES = "\n[[dropped_fields]]\nfield = 'A.b'\nreason = 'It is new.'\n[[added]]\ncase = 'swarm 1'\n"
TABLES += "reason = 'It is new.'\n[[set_aside]]\nwhat = 'C'\nreason = '{}'\n"


def words(side: str, **names: str) -> Words:
    return Words(
        {"side": side, "names": names, "phrases": {}, "dropped_fields": ["NodeLeft.reason"]}
    )


def test_the_map_that_is_checked_in_is_one_to_one() -> None:
    assert differences_of(HERE / "differences.toml")["names"]["Reform"] == "Reconfiguration"


@pytest.mark.parametrize(
    ("names", "reason", "says"),
    [
        ("a = 'c'\nb = 'c'", "It is new.", "not one-to-one at c"),
        ("a = 'b'\nb = 'c'", "It is new.", "not one-to-one at b"),
        ("a = 'b'", "", "has no reason"),
    ],
)
def test_what_could_hide_a_difference_is_refused(
    tmp_path: Path, names: str, reason: str, says: str
) -> None:
    file = tmp_path / "differences.toml"
    file.write_text(f"[names]\n{names}\n[phrases]\n{TABLES.format(reason)}")
    with pytest.raises(ValueError, match=says):
        differences_of(file)


def test_a_name_is_renamed_on_the_older_side_alone_and_a_dropped_field_on_both() -> None:
    event = NodeLeft(node=NodeId("a.1"), reason="over")
    assert words("old", NodeLeft="Gone").text(event) == "Gone(node='a.1')"
    new = words("new", NodeLeft="Gone")
    assert new.text(event) == "NodeLeft(node='a.1')"
    assert new.met == {"NodeLeft.reason"}


def test_an_old_name_that_is_spelled_like_a_new_one_is_found() -> None:
    old = words("old", NodeParted="NodeLeft")
    old.text(NodeLeft(node=NodeId("a.1"), reason="over"))
    assert old.taken == {"NodeLeft"}


def test_a_case_that_differs_or_is_missing_is_named() -> None:
    old: dict[str, Any] = {"1": {"bits": "a"}, "2": {"bits": "b"}, "3": {"bits": "c"}}
    new: dict[str, Any] = {"1": {"bits": "a"}, "2": {"bits": "x"}, "4": {"bits": "d"}}
    assert compare("matrix", old, new) == {
        "matrix 2": "bits b is now x",
        "matrix 3": "the older side alone has it",
        "matrix 4": "this side alone has it",
    }


@pytest.mark.parametrize(
    ("schema", "status", "said", "wrong"),
    [
        (12, 2, "golden/decisions.jsonl: schema version 11 and this program reads 12", 0),
        (12, 1, "golden/decisions.jsonl: schema version 11 and this program reads 12", 1),
        (12, 2, "golden/decisions.jsonl is odd", 1),
        (11, 2, "golden/decisions.jsonl: schema version 11 and this program reads 11", 1),
    ],
)
def test_a_run_of_an_older_schema_must_be_refused_by_name(
    schema: int, status: int, said: str, wrong: int
) -> None:
    new = {"schema": schema, "exit": status, "said": said}
    assert len(list(refused({"schema": 11}, new))) == wrong
