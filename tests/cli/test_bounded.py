"""Files that a person names are read with a bound: a device without an end is refused, by name."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bamboo.config.catalogue import read_catalogue
from bamboo.config.load import load_job
from bamboo.errors import InputError
from bamboo.lines import read_bounded
from bamboo.sim.prices import read_prices
from bamboo.sim.trace import read_trace
from cli.strategies import read_strategy
from cli.swarming import play_file

ENDLESS = Path("/dev/zero")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "read", [load_job, read_catalogue, read_trace, read_prices, read_strategy, play_file]
)
def test_a_file_without_an_end_is_refused_by_name(read: Callable[[Path], object]) -> None:
    with pytest.raises(InputError, match=r"^/dev/zero.* is longer than any, .*; "):
        read(ENDLESS)


def test_a_file_below_the_bound_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("äöü")
    assert read_bounded(path, most=4) == "äöü"
    with pytest.raises(ValueError, match="longer than any, 3 characters"):
        read_bounded(path, most=3)
