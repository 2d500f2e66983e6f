"""Of a traceback, the user's own lines."""

from pathlib import Path

from bamboo.user_code.loading import entry_of, load_entry
from bamboo.user_code.traces import MOST_FRAMES, user_lines
from tests.user_code.files import write

SOURCE = """
import json
def inner(x):
    return json.loads(x)
def deep(n):
    return deep(n - 1) if n else inner("{")
"""


def test_the_innermost_lines_of_the_users_code_come_last(tmp_path: Path) -> None:
    write(tmp_path, {"m.py": SOURCE})
    module = load_entry(entry_of(tmp_path / "m.py"))
    try:
        module.deep(9)
    except ValueError as error:
        lines = user_lines(error)
    assert len(lines) == MOST_FRAMES
    assert lines[-1] == "m.py, line 4, in inner: return json.loads(x)"
    assert lines[-2] == 'm.py, line 6, in deep: return deep(n - 1) if n else inner("{")'


def test_an_error_that_rose_elsewhere_has_none() -> None:
    assert user_lines(ValueError("nowhere")) == []
