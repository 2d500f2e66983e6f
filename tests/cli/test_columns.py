"""Tables in terminals of any width."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli import echo as tables
from cli.echo import columns, fitting, fold, paragraph

ROWS = (
    ("type", "zones", "price", "worth"),
    ("g5.xlarge", "one", "$1.56", "16,690"),
    ("p3.2xlarge", "neighbours", "$0.9", "7"),
)
RIGHT = frozenset({2, 3})


def test_a_table_that_fits_is_whole() -> None:
    assert fitting(ROWS, width=40, spare=(1, 2), right=RIGHT) == columns(ROWS, right=RIGHT)


def test_of_a_wider_one_the_least_needed_columns_are_left_out_and_named() -> None:
    lines = fitting(ROWS, width=28, spare=(1, 2), right=RIGHT)
    assert lines == [
        "  type        price   worth",
        "  g5.xlarge   $1.56  16,690",
        "  p3.2xlarge   $0.9       7",
        "  left out for lack of",
        "    width: zones",
    ]
    assert fitting(ROWS, width=20, spare=(1, 2), right=RIGHT)[1] == "  g5.xlarge   16,690"


words = st.text(st.characters(codec="ascii", exclude_categories=["C", "Z"]), min_size=1, max_size=9)


@given(st.lists(st.tuples(words, words, words), min_size=1, max_size=5), st.integers(30, 60))
def test_no_line_is_wider_where_what_has_to_stay_is_not(
    rows: list[tuple[str, str, str]], width: int
) -> None:
    lines = fitting(rows, width=width, spare=(2, 1))
    assert all(len(line) <= width for line in lines)
    assert all(line.startswith(f"  {row[0]}") for line, row in zip(lines, rows, strict=False))


def test_words_that_do_not_fit_go_to_the_next_line() -> None:
    assert fold("  one two three", width=11) == "  one two\n    three"


def test_a_paragraph_is_as_wide_as_the_terminal_and_no_wider_than_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words_of_300 = "ab " * 100
    for columns_there, widest in ((None, 100), (60, 60), (200, 100)):
        monkeypatch.setattr(tables, "terminal_width", lambda there=columns_there: there)
        assert max(map(len, paragraph(words_of_300))) == widest
