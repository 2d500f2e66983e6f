"""No instance lost, none started twice, none left after a stop: over a thousand seeded histories,
and bugs planted in the fleet to show that they would be seen."""

import random
from pathlib import Path

import pytest

from cloud.fake import FakeProvider
from cloud.fleet import Fleet
from cloud.intents import Intents
from tests.cloud.histories import RUN, World, begin, history

SEEDS, FIRST = 1000, 200
PLANTED_SEEDS = 300


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "seeds",
    [range(FIRST), pytest.param(range(FIRST, SEEDS), marks=pytest.mark.full)],
    ids=["some", "the rest"],
)
def test_a_thousand_histories_lose_and_double_nothing(seeds: range, tmp_path: Path) -> None:
    wrong = {seed: why for seed in seeds if (why := history(seed, tmp_path))}
    assert not wrong, f"play one again with history({min(wrong)}, folder): {wrong}"


class LateIntents(Intents):
    """Writes what it is about to ask for only when it has the answer."""

    def wish(self, spec, *, reason):
        self._late = (spec, reason)

    def answered(self, spec, launched):
        Intents.wish(self, spec, reason=self._late[1])
        super().answered(spec, launched)


def writes_late(provider: FakeProvider, intents: Path, world: World) -> Fleet:
    fleet = begin(provider, intents, world)
    fleet._intents = LateIntents(intents, run=RUN, now=world.now)
    return fleet


def changes_tokens(provider: FakeProvider, intents: Path, world: World) -> Fleet:
    """A wish that got no answer is made again with a token of its own."""
    fleet = begin(provider, intents, world)
    fleet._sight.open.clear()
    fleet._sight.asked = lambda spec: None
    fleet._sight.answered = lambda spec, launched: type(fleet._sight).answered(
        _opened(fleet, spec), spec, launched
    )
    return fleet


def _opened(fleet: Fleet, spec):
    fleet._sight.open[spec.token] = (spec, 0.0)
    return fleet._sight


def forgets_what_is_not_shown(provider: FakeProvider, intents: Path, world: World) -> Fleet:
    fleet = begin(provider, intents, world)
    fleet._sight._missing = lambda: []
    return fleet


def stops_at_the_first_look(provider: FakeProvider, intents: Path, world: World) -> Fleet:
    fleet = begin(provider, intents, world)
    fleet._sight.open.clear()
    return fleet


def believes_any_end(provider: FakeProvider, intents: Path, world: World) -> Fleet:
    """What the cloud does not know has ended."""
    fleet = begin(provider, intents, world)
    take = fleet._sight.asked_to_end

    def believe(instances, *, unknown):
        take(instances, unknown=())
        for instance in instances:
            fleet._sight._seen.pop(instance, None)

    fleet._sight.asked_to_end = believe
    return fleet


def leaves_volumes(provider: FakeProvider, intents: Path, world: World) -> Fleet:
    fleet = begin(provider, intents, world)
    fleet._sight.rest = lambda *, to_the_last: ()
    return fleet


@pytest.mark.parametrize(
    "planted",
    [
        writes_late,
        changes_tokens,
        forgets_what_is_not_shown,
        stops_at_the_first_look,
        believes_any_end,
        leaves_volumes,
    ],
)
def test_a_planted_bug_is_seen(planted, tmp_path: Path) -> None:
    assert any(history(seed, tmp_path, begin=planted) for seed in range(PLANTED_SEEDS))


def test_a_history_is_a_function_of_its_seed(tmp_path: Path) -> None:
    drawn = random.Random(1).sample(range(SEEDS), 3)
    for seed in drawn:
        (tmp_path / "one").mkdir(exist_ok=True)
        (tmp_path / "two").mkdir(exist_ok=True)
        first, second = (_calls(seed, tmp_path / name) for name in ("one", "two"))
        assert first == second
        assert len(first) > 30


def _calls(seed: int, folder: Path) -> list[tuple[str, object]]:
    seen: list[FakeProvider] = []

    def noting(provider: FakeProvider, intents: Path, world: World) -> Fleet:
        seen.append(provider)
        return begin(provider, intents, world)

    history(seed, folder, begin=noting)
    return seen[0].calls
