"""The launcher's books keep what the run computes with, once, and as soon as the disk takes it."""

import json
from pathlib import Path

import pytest

from bamboo.coord.attested import FILE, attested_in
from bamboo.core.numerics import facts_of
from bamboo.core.state import Attestation
from bamboo.errors import BooksUnwritable
from bamboo.ids import NodeId, RunId
from bamboo.runs import books
from bamboo.runs.books import FileBooks
from bamboo.runs.run_folder import RunFolder
from tests.topology.test_strategy import SEMANTICS

KNOWN = Attestation(node=NodeId("a.1"), numerics=facts_of({"torch": "2.13.0"}))
OTHER = Attestation(node=NodeId("b.1"), numerics=facts_of({"torch": "2.12.0"}))


def folder_in(tmp_path: Path) -> RunFolder:
    folder = RunFolder(id=RunId("r"), path=tmp_path)
    folder.events.mkdir()
    return folder


def test_it_is_written_once_and_no_later_part_changes_it(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    for part, attested in ((1, KNOWN), (2, OTHER)):
        kept = FileBooks(folder, part=part)
        kept.attested(attested)
        kept.attested(attested)
        kept.close()
    assert attested_in(tmp_path, SEMANTICS) == KNOWN


def test_of_a_run_of_an_older_release_the_strategy_has_it(tmp_path: Path) -> None:
    kept = FileBooks(folder_in(tmp_path))
    kept.attested(Attestation(node=NodeId(""), numerics=KNOWN.numerics))
    kept.close()
    assert not (tmp_path / FILE).exists()


def test_a_full_disk_leaves_it_to_the_next_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = FileBooks(folder_in(tmp_path))

    def full(*_: object) -> None:
        raise BooksUnwritable("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(books, "write_json", full)
        kept.attested(KNOWN)
    assert not (tmp_path / FILE).exists()
    kept.attested(KNOWN)
    kept.close()
    assert json.loads((tmp_path / FILE).read_text())["node"] == "a.1"
