"""What a run computes with, as a file of its folder."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.coord.attested import FILE, SCHEMA_VERSION, attested_in, body_of
from bamboo.core.numerics import facts_of
from bamboo.core.state import Attestation
from bamboo.errors import InputError
from bamboo.ids import NodeId
from tests.topology.test_strategy import SEMANTICS

KNOWN = Attestation(node=NodeId("a.1"), numerics=facts_of({"torch": "2.13.0", "threads": 2}))
OLDER = replace(SEMANTICS, numerics={"torch": "2.12.0", "threads": 1})


def write(run: Path, **changes: object) -> None:
    body = {"schema_version": SCHEMA_VERSION, **body_of(KNOWN)} | changes
    (run / FILE).write_text(json.dumps(body))


def test_it_comes_back_equal_and_counts_before_the_strategy(tmp_path: Path) -> None:
    assert attested_in(tmp_path, SEMANTICS) is None
    of_launcher = attested_in(tmp_path, OLDER)
    assert of_launcher == Attestation(node=NodeId(""), numerics=facts_of(OLDER.numerics))
    write(tmp_path)
    assert attested_in(tmp_path, SEMANTICS) == attested_in(tmp_path, OLDER) == KNOWN


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema_version": 9}, "it has schema 9, not 1"),
        ({"node": 3}, "it names no node, or no facts"),
        ({"numerics": []}, "it names no node, or no facts"),
    ],
)
def test_a_damaged_file_is_refused_by_name(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    write(tmp_path, **changes)
    with pytest.raises(InputError, match=f"numerics.json: is damaged: {words}; put it back"):
        attested_in(tmp_path, SEMANTICS)
    (tmp_path / FILE).write_text("[" * 100_000)
    with pytest.raises(InputError, match="is damaged"):
        attested_in(tmp_path, SEMANTICS)
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    with pytest.raises(InputError, match="name the folder of a run"):
        attested_in(tmp_path, SEMANTICS)
