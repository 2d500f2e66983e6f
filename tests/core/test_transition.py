"""Words that several decisions share."""

import pytest

from bamboo.core.transition import ENOUGH, sent_words, why_words
from bamboo.quantities import size
from bamboo.topology.grid import Grid


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "nothing was sent"),
        (812, "812 B were sent"),
        (404_000, "394.5 KiB were sent"),
        (12_500_000, "11.9 MiB were sent"),
        (5 * 2**40, "5.0 TiB were sent"),
    ],
)
def test_bytes_that_were_sent_have_the_units_of_the_receipt(count: int, words: str) -> None:
    assert sent_words(count) == words
    assert count == 0 or words.startswith(size(count))


def test_the_reason_of_more_nodes_names_the_grid_it_is_said_of() -> None:
    assert why_words(ENOUGH, Grid(pipelines=2, stages=4)) == "there are nodes for 2 x 4"
    assert why_words("no node came", Grid(pipelines=2, stages=4)) == "no node came"
