"""docs/cli.md says of every verb what its `--help` says."""

import pytest

from cli import main
from tests.tidy.cli_reference import MARK, PAGE, page


def test_the_page_is_what_the_commands_say() -> None:
    text = PAGE.read_text(encoding="utf-8")
    again = "it is not what the commands say: run `python -m tests.tidy.cli_reference`"
    assert text == page(text), again


def test_a_page_that_says_otherwise_is_seen() -> None:
    text = f"By hand.\n{MARK}\n## bamboo launch\n"
    new = page(text)
    assert new.startswith(f"By hand.\n{MARK}\n| verb |")
    assert [f"\n## bamboo {verb}\n" in new for verb in main.COMMANDS] == [True] * len(main.COMMANDS)
    assert "\n### bamboo trace stats\n" in new
    with pytest.raises(ValueError, match="has no line"):
        page("without a mark")
