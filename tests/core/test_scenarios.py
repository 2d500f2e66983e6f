"""Every golden transcript reads as it was written; see transcript.py for the form."""

import os
from pathlib import Path

import pytest

from tests.core.transcript import play

FOLDER = Path(__file__).parent / "scenarios"
FILES = sorted(FOLDER.rglob("*.txt"), key=lambda file: file.stem)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_transcript(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    now = play(text)
    if os.environ.get("BAMBOO_WRITE_GOLDEN"):
        file.write_text(now, encoding="utf-8")
        return
    assert now.splitlines() == text.splitlines()


def test_there_are_transcripts() -> None:
    assert len(FILES) >= 12


def test_a_changed_answer_is_noticed() -> None:
    text = FILES[0].read_text(encoding="utf-8")
    assert "generation 1" in text
    assert play(text.replace("generation 1", "generation 7")) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0.0 NodeJoined node=a.1 zone=z\n", "settings must come first"),
        ("grid 1x4 redundancy off\n0.0 Nonsense x=1\n", "line 2"),
        ("grid 1x4 redundancy off\nsoon PeerLost node=a.1 reporter=b.1\n", "could not convert"),
        ("grid 1x4 redundancy off\n0.0 PeerLost node=a.1\n", "reporter"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        play(text)
