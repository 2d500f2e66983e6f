"""Golden files of this room: exact text, rewritten only when asked for by an environment key."""

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def check_golden(name: str, text: str, *, folder: Path = FOLDER) -> None:
    """Hold `text` against the stored file; `BAMBOO_WRITE_GOLDEN=1` writes it instead."""
    path = folder / name
    if os.environ.get("BAMBOO_WRITE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text, f"{path} differs; look why before you rewrite it"
