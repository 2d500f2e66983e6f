"""A search for silent wrong ends: generated models, each trained calmly, with a loss, and with a
loss after an edit. None may end "done" with other bits than a calm run has.

`make test` plays two, whose seeds stand in the test's name (`BAMBOO_TEST_SEED` takes others);
`make chaos` plays 300. `python -m tests.silent_ends SEED` plays one and shows its files.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.silent_ends.catalogue import HONEST, SHAPES
from tests.silent_ends.feature import Shape
from tests.silent_ends.generate import Case, case_of, composed, hazards
from tests.silent_ends.play import PLAYS, Player, Verdict

pytestmark = pytest.mark.e2e

FEW, MANY = 2, 300
AT_ONCE = 2
"""Cases: most of the time of one is waiting."""
BEGIN = FEW * (int(os.environ.get("BAMBOO_TEST_SEED", "1")) - 1)


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    made = Player()
    yield made
    made.close()


def search(player: Player, seeds: Iterable[int]) -> Mapping[int, list[Verdict]]:
    """Play the cases of these seeds; how each ended."""
    seeds = tuple(seeds)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(seeds, pool.map(lambda s: player.play(case_of(s)), seeds), strict=True))


def wrong(case: Case, verdicts: Iterable[Verdict]) -> list[str]:
    """What of this may not be, in lines: a silent end, or an honest model that is not trained."""
    return [
        f"{case}\n    {verdict}"
        for verdict in verdicts
        if verdict.bad or (case.honest and verdict.kind != "equal")
    ]


def check(found: Mapping[int, list[Verdict]]) -> None:
    offences = [line for seed, verdicts in found.items() for line in wrong(case_of(seed), verdicts)]
    assert not offences, "\n".join(offences)
    trained = [seed for seed, verdicts in found.items() if len(verdicts) == len(PLAYS)]
    assert 3 * len(trained) >= len(found), "too many are refused for the search to show anything"
    edited = [found[seed][-1] for seed in trained]
    took = [verdict for verdict in edited if verdict.newcomer_owned]
    # Of a few, how many come in time is chance.
    least = len(edited) // 2 if len(found) > FEW else 1
    assert len(took) >= least, "too few newcomers computed anything after an edit"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("begin", [BEGIN], ids=lambda begin: f"seeds {begin} to {begin + FEW - 1}")
def test_a_few_end_calmly_or_by_name(player: Player, begin: int) -> None:
    check(search(player, range(begin, begin + FEW)))


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_many_end_calmly_or_by_name(player: Player) -> None:
    check(search(player, range(MANY)))


FOUND_WITHOUT_A_LOOK = (
    "counts its calls in the class, late",
    pytest.param("one part in two functions", marks=pytest.mark.full),
    pytest.param("counts how many of all were built", marks=pytest.mark.full),
    pytest.param("the clock when a layer is built", marks=pytest.mark.full),
)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", FOUND_WITHOUT_A_LOOK)
def test_without_the_look_silent_ends_are_found(player: Player, name: str) -> None:
    """The search can fail: each of these is found where nothing looks at the model."""
    one = next(one for one in hazards() if one.name == name)
    features, shape = ([HONEST[0]], one) if isinstance(one, Shape) else ([one], SHAPES[0])
    case = composed(0, features, shape)
    verdicts = player.play(case, PLAYS[:2], looked=False)
    assert "different" in [verdict.kind for verdict in verdicts], (str(case), verdicts)
