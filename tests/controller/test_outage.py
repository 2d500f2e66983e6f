"""A launcher whose store does not answer: it waits, for a time and within the budget."""

import dataclasses
from dataclasses import replace

import pytest

from bamboo.agent.config import AgentConfig
from bamboo.config.tree import BudgetConfig
from bamboo.controller.deadlines import Deadlines
from bamboo.controller.outage import ORDERLY_S, THEIR_STORE_AWAY_S, Outage
from bamboo.core.events import Event, RunFailed
from bamboo.core.state import Outcome, Phase, Reconfiguration
from bamboo.errors import BambooError, StoreRefuses, StoreUnavailable
from tests.controller.world import World, finished, job, joined, left, step
from tests.core.build import running

TURN_S = 0.25
PARKED = replace(
    running(1, 4),
    reconfiguration=Reconfiguration(since=1, why="x", planned=False, intact=False, asked=()),
)
"""A run that waits for nodes: everybody who was asked has said what it holds."""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script plays in the loop's own thread, so a wait for a decision would be for nothing."""
    monkeypatch.setattr("bamboo.controller.launcher.TURN_S", 0.0)


class Refusing:
    """Has the world's store refuse what is written to it, while it is read as ever."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._store, self._patch = world.store, monkeypatch
        self._writing = {name: getattr(world.store, name) for name in ("append", "commit")}

    def go(self) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise StoreRefuses("the store takes nothing: it is a replica")

        for name in self._writing:
            self._patch.setattr(self._store, name, refuse)

    def come(self) -> None:
        for name, write in self._writing.items():
            self._patch.setattr(self._store, name, write)


class Away:
    """Takes the world's store away, and gives it back."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._there = world.store.entries
        self._set = lambda entries: monkeypatch.setattr(world.store, "entries", entries)
        self.asked = 0

    def go(self) -> None:
        def entries(**_: object) -> None:
            self.asked += 1
            raise StoreUnavailable("away")

        self._set(entries)

    def come(self) -> None:
        self._set(self._there)


def test_an_embedded_store_is_waited_for_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(job())
    world._script = [joined(), Away(world, monkeypatch).go, *[[] for _ in range(150)]]
    with pytest.raises(BambooError, match="store is gone for 121 s"):
        world.launcher.run()
    assert any("training goes on" in note for note in world.screen.notes)


def test_a_store_that_refuses_is_away_though_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer than the launcher waits for anything, and than an embedded store may be silent."""
    world = World(job(steps=100))
    refusing = Refusing(world, monkeypatch)
    world._script = [joined(), step(0), refusing.go, *[[] for _ in range(200)], refusing.come]
    world._script += [[], [], [step(1), finished(99, 0, 1, 2, 3)], left(0, 1, 2, 3)]
    assert world.launcher.run().outcome is Outcome.DONE
    said = [note for note in world.screen.notes if "it is a replica; for" in note]
    assert len(said) > 10
    assert said[-1].endswith("for 200 s now; training goes on")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StoreUnavailable("gone"), ["the store is away; training", "the store is away for 5 s; t"]),
        (StoreRefuses("it is full"), ["it is full; training", "it is full; for 5 s now; training"]),
    ],
)
def test_an_outage_that_just_began_has_no_length(error: StoreUnavailable, said: list[str]) -> None:
    outage = Outage(run="r", ours=True, now_s=100.0)
    for now_s, words in zip((100.4, 105.4), said, strict=True):
        assert outage.note(None, error, now_s=now_s).startswith(words)


def test_a_run_that_forms_gets_the_time_of_an_outage_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes came, and could not say so; what is said first when the store is back is no end."""
    world = World(job())  # 50 s to form
    refusing = Refusing(world, monkeypatch)
    world._script = [*[[] for _ in range(48)], refusing.go, *[[] for _ in range(100)]]
    world._script += [refusing.come, [], [], joined(), [step(0), step(1), step(2)]]
    world._script += [finished(2, 0, 1, 2, 3), left(0, 1, 2, 3)]
    assert world.launcher.run().outcome is Outcome.DONE


@pytest.mark.parametrize("told", ["away", "there"])
def test_a_run_that_waits_for_nodes_gets_the_time_of_an_outage_again(told: str) -> None:
    cluster = replace(job().cluster, park_s=100.0, patience_s=1000.0)
    deadlines = Deadlines(cluster, now_s=0.0)
    for now_s in range(0, 99):
        assert not list(deadlines.due(PARKED, now_s=now_s))
    for now_s in range(99, 300):
        if told == "away":
            deadlines.away(now_s)
    found = list(deadlines.due(PARKED, now_s=300.0))
    if told == "there":
        assert "cluster.park_s" in found[0].reason
        return
    assert not found
    assert not list(deadlines.due(PARKED, now_s=299.0 + cluster.gone_s + 1.9))
    (end,) = deadlines.due(PARKED, now_s=299.0 + cluster.gone_s + 2.1)
    assert "cluster.park_s" in end.reason


def test_a_store_that_comes_and_goes_hides_no_standstill_for_ever() -> None:
    cluster = job().cluster
    deadlines, now_s = Deadlines(cluster, now_s=0.0), 0.0
    ends: list[Event] = []
    while not ends and now_s < 3600.0:
        now_s += 0.5
        if now_s % (0.8 * cluster.gone_s) < 0.5:
            deadlines.away(now_s)
        else:
            ends = list(deadlines.due(running(1, 4), now_s=now_s))
    assert isinstance(ends[0], RunFailed)
    assert "no step and no decision for" in ends[0].reason


def test_a_long_outage_of_the_users_own_store_is_no_standstill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(job(), store_is_ours=False)
    away = Away(world, monkeypatch)
    world._script = [
        joined(),
        away.go,
        *[[] for _ in range(200)],
        away.come,
        [],
        [step(0), step(1), step(2)],
        finished(2, 0, 1, 2, 3),
        left(0, 1, 2, 3),
    ]
    assert world.launcher.run().outcome is Outcome.DONE


def test_the_users_own_store_is_given_up_when_the_agents_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(job(), store_is_ours=False)
    script = [joined(), Away(world, monkeypatch).go, *[[] for _ in range(4000)]]
    world._script = script
    with pytest.raises(BambooError, match="`bamboo resume r` goes on from what was saved, once"):
        world.launcher.run()
    assert 4000 - len(world._script) == pytest.approx(THEIR_STORE_AWAY_S, abs=3)
    (patience,) = (f for f in dataclasses.fields(AgentConfig) if f.name == "store_away_s")
    assert patience.default == THEIR_STORE_AWAY_S


def test_a_store_that_refuses_at_once_is_asked_once_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket is not there, so no answer takes any time."""
    world = World(job(), store_is_ours=False)
    away = Away(world, monkeypatch)
    world._script = [joined(), away.go, *[[] for _ in range(10)], away.come, []]
    world._script += [[step(0), step(1), step(2), finished(2, 0, 1, 2, 3)], left(0, 1, 2, 3)]
    world.launcher.run()
    assert away.asked == len(world.pauses_s) == 11


def test_who_takes_up_a_run_waits_for_its_store_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(job())
    monkeypatch.setattr("bamboo.controller.launcher.TURN_S", TURN_S)
    away = Away(world, monkeypatch)
    away.go()
    with pytest.raises(BambooError, match="store is gone for 120 s"):
        world.launcher.catch_up()
    assert set(world.pauses_s) == {TURN_S}
    assert away.asked == len(world.pauses_s) + 1 == 120 / TURN_S + 2


def test_who_waits_to_take_up_a_run_can_be_told_to_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(job(), [[]])
    Away(world, monkeypatch).go()
    world.interrupts = 2
    assert world.launcher.run().outcome is Outcome.STOPPED
    assert world.fleet.all_terminated == 1


@pytest.mark.parametrize(
    ("budget", "word"),
    [
        (BudgetConfig(max_usd=0.03), "budget.max_usd"),  # four instances: after 75 s
        (BudgetConfig(max_hours=50 / 3600), "budget.max_hours"),
    ],
)
def test_a_budget_that_runs_out_meanwhile_ends_all_at_once(
    budget: BudgetConfig, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(job(steps=100, budget=budget), store_is_ours=False)
    world._script = [joined(), step(0), Away(world, monkeypatch).go, *[[] for _ in range(300)]]
    end = world.launcher.run()
    assert (end.outcome, end.state.phase) == (Outcome.BUDGET, Phase.FINISHED)
    assert word in end.sentence
    assert "`bamboo resume r`" in end.sentence
    assert world.fleet.all_terminated == 1
    assert 300 - len(world._script) == pytest.approx(ORDERLY_S, abs=3)
    assert any(word in note for note in world.screen.notes)


def test_a_short_outage_does_not_cost_the_end_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(job(budget=BudgetConfig(max_hours=20 / 3600)), store_is_ours=False)
    away = Away(world, monkeypatch)
    world._script = [joined(), away.go, *[[] for _ in range(100)], away.come, []]
    world._script += [[step(0), step(1), step(2)], left(0, 1, 2, 3)]
    world._script.insert(-1, finished(2, 0, 1, 2, 3))
    end = world.launcher.run()
    assert end.outcome in (Outcome.BUDGET, Outcome.DONE)
    assert world.driver.state().stop_outcome is Outcome.BUDGET
    assert "at once" not in end.sentence
