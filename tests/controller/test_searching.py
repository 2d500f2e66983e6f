"""The launcher tries strategies while its run trains, ends with the fastest, and keeps the log."""

import json
import math
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from bamboo.controller import searching
from bamboo.controller.ports import Ports
from bamboo.controller.searching import TRIALS, Searched, Searcher
from bamboo.coord.driver import Driver, create_run
from bamboo.coord.follow import Follower
from bamboo.coord.memory_store import MemoryStore
from bamboo.coord.strategies import document_of
from bamboo.core.events import StrategyReady
from bamboo.core.rounds import choice_at
from bamboo.core.state import Policy, initial_state
from bamboo.errors import InputError, StoreUnavailable
from bamboo.ids import run_id
from bamboo.planner.sync import live
from bamboo.planner.sync.builders import build
from bamboo.planner.sync.live import LiveSearch
from bamboo.planner.sync.trials import read_log
from bamboo.runs.progress import Progress
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Placement, Semantics, Strategy
from bamboo.topology.sync import Sync, sync_of
from testbed.hidden_costs import WIDE, Fleet, Hidden, wide_situation
from tests.core.build import joined

STEPS = 80
GRID = Grid(pipelines=2, stages=1)
HIDDEN = Hidden(link=(0, 1), link_times=4, noise=0.0)


def searched(log: Path, sync: Sync) -> Searched:
    semantics = Semantics(
        model={"layers": 6},
        data_digest="d",
        batch=64,
        microbatch=32,
        virtual_nodes=2,
        seed=1,
        steps=STEPS,
        optimizer={},
        precision="fp32",
        clip_norm=0.0,
    )
    placement = Placement(cut=(0, 6), grid=GRID, redundancy="off", sync=sync)
    return Searched(
        strategy=Strategy(semantics=semantics, placement=placement),
        words="`tree`",
        facts=WIDE,
        situation=wide_situation(2),
        log=log,
        newest=log.with_name("sync.json"),
        eval_every=50,
    )


class World:
    """A run whose nodes answer each proposal at once, and whose steps take what they take."""

    def __init__(self, log: Path) -> None:
        self.store = MemoryStore(run_id("r"), clock=lambda: self.now_s)
        self.now_s = 1000.0
        state = initial_state(run=run_id("r"), grid=GRID, redundancy="off")
        policy = Policy(steps=STEPS)
        assert create_run(self.store, state=state, policy=policy, documents={}, at_s=0.0)
        self.driver = Driver(self.store, policy, "world")
        self.follower = Follower()
        self.notes: list[str] = []
        self.told: list[dict[str, object]] = []
        self.first = build("tree", WIDE, wide_situation(2))
        self.progress = Progress(
            run="r",
            steps=STEPS,
            tokens_per_step=0,
            samples_per_step=64,
            state=state,
            started_at_s=0.0,
            now_s=0.0,
        )
        ports = Ports(
            append=self.driver.append,
            fleet=Mock(),
            screen=Mock(note=self.notes.append),
            books=Mock(event=lambda kind, _, *, at_s, data: self.told.append(dict(data))),
            now=lambda: self.now_s,
        )
        self.searcher = Searcher(searched(log, self.first), ports, self.store)
        for node in ("a.1", "b.1"):
            self.driver.append(joined(node))

    def train(self, steps: int, density: float = 0.046) -> None:
        fleet = Fleet(WIDE, wide_situation(2), HIDDEN, seed=1)
        for step in range(steps):
            for decision in self.follower.poll(self.store, timeout_s=0.0):
                self.searcher.decided(decision)
            state = self.driver.state()
            choice = choice_at(state.syncs, step)
            text = None if choice is None else self.store.document(document_of(choice.hash))
            self.now_s += fleet.step_s(self.first if text is None else sync_from_text(text))
            self.searcher.measured({"kind": "density", "density": {"0.table": density}})
            self.searcher.measured({"kind": "step", "step": step, "t_s": self.now_s})
            self.searcher.act(self.progress)
            if (proposal := self.driver.state().proposal) is not None:
                for node in sorted(state.participants()):
                    answer = StrategyReady(node=node, since=proposal.since, begun=step, oldest=step)
                    self.driver.append(answer)
        self.searcher.close(self.progress)


def sync_from_text(text: str) -> Sync:
    return sync_of(json.loads(text))


def test_a_run_tries_strategies_and_ends_with_the_fastest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / TRIALS
    log.write_text('{"v": 1, "torn\n')
    world = World(log)
    assert world.notes == [f"{log}: 1 line is no trial, and passed over"]
    world.train(STEPS)
    state = world.driver.state()
    fleet = Fleet(WIDE, wide_situation(2), HIDDEN, seed=1)
    last = sync_from_text(world.store.document(document_of(state.syncs[-1].hash)))
    assert fleet.step_s(last) < 0.5 * fleet.step_s(world.first)
    assert "is the fastest of" in state.syncs[-1].why or "a trial of" in state.syncs[-1].why
    assert world.searcher._words[state.syncs[-1].hash] in state.syncs[-1].why
    found = read_log(log.read_text().splitlines())
    assert found.passed_over == 1
    assert len({trial.strategy for trial in found.trials}) > 1
    times = {trial.strategy: min(trial.seconds) for trial in found.trials}
    assert times[state.syncs[-1].hash] == min(times.values())
    monkeypatch.setattr(searching, "MOST_BYTES", 3 * log.stat().st_size // 4)
    with log.open("ab") as file:
        file.write(b"\xff torn")
    again = World(log)
    (note,) = again.notes
    assert "1 line is no trial" in note, "the cut of the first one counts for nothing"
    assert 0 < len(again.searcher._past) < len(found.trials)
    assert sync_of(json.loads((tmp_path / "sync.json").read_text())["sync"]) == last
    known = [why for x in state.syncs if "is the fastest of" in (why := x.why)]
    known += [note for note in world.notes if note.endswith(" stays")]
    assert len(known) == 1, "a person is told how it ended, by a decision or by a note"
    (told,) = world.told
    assert told["trials"] == len({trial.strategy for trial in found.trials}) - 1


def test_a_search_that_tries_nothing_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LEAST_WORTH", math.inf)
    world = World(tmp_path / TRIALS)
    world.train(STEPS)
    (note,) = world.notes
    assert note.startswith("after step ")
    why = "no candidate promises more than its trial costs"
    assert note.endswith(f" no strategy is tried: {why}; `tree` stays")


def test_another_density_begins_another_search(tmp_path: Path) -> None:
    log = tmp_path / TRIALS
    world = World(log)
    world.train(20, density=0.4)
    fleets = [trial.fleet for trial in read_log(log.read_text().splitlines()).trials]
    assert len(set(fleets)) > 1
    assert [told["why"] for told in world.told] == [searching.CUT_SHORT] * len(world.told) != []


def test_a_strategy_that_the_store_has_lost_ends_no_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / TRIALS)
    world.train(STEPS)
    for found in ("lost", "no JSON", '{"rules": 5}', Sync(bucket=7).body()):
        attached = another(world, tmp_path / TRIALS)
        lost = Mock(side_effect=InputError("run r has no document"))
        text = found if isinstance(found, str) else json.dumps(found)
        document = lost if found == "lost" else Mock(return_value=text)
        monkeypatch.setattr(world.store, "document", document)

        attached.measured({"kind": "step", "step": STEPS, "t_s": world.now_s})

        assert document.called
        assert "no strategies are tried" in world.notes[-1]
        assert attached._search is None


def another(world: World, log: Path) -> Searcher:
    """That of another launcher, which has read what was decided so far."""
    chosen = world.driver.state().syncs[-1]
    assert chosen.hash != world.first.hash()
    attached = Searcher(searched(log, world.first), world.searcher._ports, world.store)
    for decision in Follower().poll(world.store, timeout_s=0.0):
        attached.decided(decision)
    return attached


def test_a_store_that_is_away_for_a_while_delays_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / TRIALS)
    world.train(STEPS)
    attached = another(world, tmp_path / TRIALS)
    with monkeypatch.context() as during:
        during.setattr(world.store, "document", Mock(side_effect=StoreUnavailable("away")))
        with pytest.raises(StoreUnavailable):
            attached.measured({"kind": "step", "step": STEPS, "t_s": world.now_s})

    attached.measured({"kind": "step", "step": STEPS + 1, "t_s": world.now_s + 1})

    assert attached._search is not None
    assert attached._search.incumbent == world.driver.state().syncs[-1].hash


def test_a_log_that_takes_no_line_is_told_of_once_and_ends_no_search(tmp_path: Path) -> None:
    log = tmp_path / TRIALS
    log.mkdir()
    world = World(log)
    world.train(STEPS)
    assert world.notes == [
        f"later searches do not learn from this one: cannot write {log}: Is a directory; see to "
        "its disk"
    ]
    assert world.told[0]["trials"]
    log.rmdir()
    assert World(log).searcher._past == []


@pytest.mark.parametrize("method", ["__init__", "stepped", "next", "close", "finding"])
def test_figures_that_nobody_foresaw_end_a_search_and_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    world = World(tmp_path / TRIALS)
    error = np.linalg.LinAlgError("singular") if method == "next" else OverflowError("beyond")
    monkeypatch.setattr(LiveSearch, method, Mock(side_effect=error))

    world.train(20)

    (note,) = world.notes
    assert note == f"no more strategies are tried on these nodes: {error}"
    assert world.searcher._search is None
    assert all("a trial of" in choice.why for choice in world.driver.state().syncs)


def test_a_store_that_was_filled_again_may_have_fewer_choices(tmp_path: Path) -> None:
    """It lost the newest entries of its log, and the node that filled it again had not read
    them."""
    world = World(tmp_path / TRIALS)
    world.train(STEPS)
    last = Follower().poll(world.store, timeout_s=0.0)[-1]
    before = json.loads((tmp_path / "sync.json").read_text())

    world.searcher.decided(replace(last, state=last.state.having(syncs=())))

    assert json.loads((tmp_path / "sync.json").read_text()) == before
