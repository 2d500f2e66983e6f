"""docs/strategies.md has the catalogue of building blocks as `bamboo strategy list` prints it."""

from tests.tidy.strategy_reference import MARK, PAGE, page


def test_the_page_is_what_the_catalogue_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "run: python -m tests.tidy.strategy_reference"
    assert page(f"By hand.\n{MARK}| `tree` |") != f"By hand.\n{MARK}| `tree` |"
