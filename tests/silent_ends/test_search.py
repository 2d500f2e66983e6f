"""A search for silent wrong ends: generated models, each trained calmly, with a loss, and with a
loss after an edit. None may end "done" with other bits than a calm run has.

`python -m tests.silent_ends SEED` plays one and shows its files.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.silent_ends.feature import Shape
from tests.silent_ends.generate import composed, hazards
from tests.silent_ends.honest import HONEST
from tests.silent_ends.play import PLAYS, Player
from tests.silent_ends.shapes import SHAPES

pytestmark = pytest.mark.e2e

AT_ONCE = 2
"""Cases: most of the time of one is waiting."""


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    made = Player()
    yield made
    made.close()


FOUND_WITHOUT_A_LOOK = (
    "counts its calls in the class, late",
    "counts how many of all were built",
    "the clock when a layer is built",
    "one part in two functions",
)


@pytest.mark.timeout(120)
def test_without_the_look_silent_ends_are_found(player: Player) -> None:
    """The search can fail: each of these is found where nothing looks at the model."""
    functions = next(shape for shape in SHAPES if shape.name == "functions")
    by_name = {one.name: one for one in hazards()}
    cases = []
    for seed, name in enumerate(FOUND_WITHOUT_A_LOOK):
        one = by_name[name]
        features, shape = ([HONEST[0]], one) if isinstance(one, Shape) else ([one], functions)
        cases.append(composed(seed, features, shape))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda c: player.play(c, PLAYS[:2], looked=False), cases))
    for case, verdicts in zip(cases, found, strict=True):
        assert "different" in [verdict.kind for verdict in verdicts], (str(case), verdicts)
