"""Strategies change while nodes are killed and the grid changes: the mixed job in small, in real
processes that are killed by SIGKILL. Its losses, tensors and samples are those of the calm run, and
each of its decisions can be made again."""

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.config.tree import JobConfig
from bamboo.coord.replay import verify_decisions
from bamboo.coord.strategies import store_sync
from bamboo.core.events import StrategyProposed
from bamboo.core.state import Phase, State
from bamboo.ids import NodeId
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from bamboo.topology.sync import Sync, SyncRule
from testbed import strategy_jobs
from testbed.calm import assert_calm_so_far
from testbed.cluster import Cluster, cluster, protected
from tests.e2e.jobs import ENDLESS
from tests.e2e.layouts.test_elastic import trains
from tests.e2e.losses.test_notice import SLOW
from tests.e2e.losses.test_random_kills import at

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SEED = int(os.environ.get("BAMBOO_TEST_SEED", "1"))
TWO, THREE = Grid(pipelines=2, stages=2), Grid(pipelines=3, stages=2)
WIDE = ("3.0.weight", "4.0.weight", "5.weight")
"""Of plain linear layers."""
TABLE = "0.weight"

FACTORS = Sync(
    rules=tuple(SyncRule(match=name, exchange="factors", ship="factors") for name in WIDE),
    bucket=0,
)
ROWS = Sync(rules=(SyncRule(match=TABLE, exchange="rows"),), bucket=20_000)
SPARSE_SHIP = Sync(rules=(SyncRule(match=TABLE, ship="rows"),))
OWNERS = Sync(rules=(SyncRule(match="*", exchange="owner", owners=(1, 0)),))
ZONED = Sync(rules=(SyncRule(match="*", exchange="zoned"),), zones=(0, 1, 1))
"""Of three pipelines, the last two of which hold an aligned block of virtual nodes."""
TREE = Sync()


def mixed(folder: Path, mode: str) -> JobConfig:
    strategy_jobs.write_small(folder)
    job = strategy_jobs.small("mixed", folder)
    cluster = replace(job.cluster, pipelines=2, max_pipelines=3, stages=2, redundancy=mode, **SLOW)
    train = replace(job.train, steps=ENDLESS, virtual_nodes=4)
    return replace(job, train=train, cluster=replace(cluster, step_timeout_s=30.0))


class Changing:
    """A run that trains, of which strategies are changed and nodes are killed."""

    def __init__(self, run: Cluster, draw: random.Random, *, replaces: bool = True) -> None:
        self.run, self.draw = run, draw
        self.replaces = replaces
        self.not_chosen = self.not_begun = 0
        """Kills while a strategy was proposed, and between its choice and its first step."""

    def victim(self) -> str:
        grid = self.run.state().grid
        return self.run.owner(self.draw.choice(list(grid.slots())))

    def replaced(self) -> None:
        """Another node comes and takes part, where one is to, and every slot has a shadow again."""
        self.whole(*([NodeId(self.run.start_one())] if self.replaces else []))

    def whole(self, *nodes: NodeId) -> None:
        """Wait until every slot has a shadow, and these nodes take part."""

        def there(state: State) -> bool:
            return protected(state) and state.participants().issuperset(nodes)

        state = self.run.wait(
            lambda s: there(s) or s.phase is Phase.FINISHED, 60, "protection", poll_s=0.05
        )
        assert there(state), self.run.report()

    def ask(self, sync: Sync) -> None:
        hash = store_sync(self.run.store, sync)
        self.run.append(StrategyProposed(reporter="launcher", hash=hash, why="a trial"))

    def choose(self, sync: Sync) -> int:
        """The step from which it counts."""
        self.ask(sync)
        state = self.run.wait(
            lambda s: s.proposal is None or s.phase is Phase.FINISHED, 30, "a choice", poll_s=0.005
        )
        assert [x.hash for x in state.syncs[-1:]] == [sync.hash()], self.run.report()
        return state.syncs[-1].from_step

    def kill_while_proposed(self, sync: Sync, *victims: str) -> None:
        """All have answered but these, which are killed before they can."""
        for node in victims:
            self.run.processes[node].signal(signal.SIGSTOP)
        self.ask(sync)
        state = self.run.wait(
            lambda s: (
                s.proposal is not None
                and len(s.proposal.ready) == len(s.participants()) - len(victims)
            ),
            20,
            "the answers of the others",
        )
        chosen = state.syncs
        for node in victims:
            self.run.kill(node)
        for node in victims:
            self.run.wait_lost(node)
        assert self.run.state().syncs == chosen, "it was withdrawn"
        self.not_chosen += len(victims)

    def kill_before_it_counts(self, sync: Sync) -> None:
        victim = self.victim()
        first = self.choose(sync)
        self.run.kill(victim)
        self.not_begun += max(self.run.losses()) < first
        self.run.wait_lost(victim)
        self.replaced()
        self.counts()

    def kill_and_choose_later(self, sync: Sync) -> None:
        self.kill_while_proposed(sync, self.victim())
        self.replaced()
        self.choose(sync)
        self.counts()

    def kill_at_some_instant(self) -> None:
        self.run.wait_step(max(self.run.losses()) + 1)
        at(time.monotonic() + self.draw.uniform(0.0, 0.15))
        victim = self.victim()
        self.run.kill(victim)
        self.run.wait_lost(victim)
        self.replaced()

    def counts(self) -> None:
        """Wait until two steps are done by the newest strategy."""
        self.run.wait_step(self.run.state().syncs[-1].from_step + 1, poll_s=0.05)


def test_two_changes_under_two_kills(tmp_path: Path) -> None:
    with cluster(mixed(tmp_path, "stash")) as run:
        run.start()
        run.wait_step(1)
        changing = Changing(run, random.Random(SEED), replaces=False)
        changing.whole()
        changing.kill_before_it_counts(FACTORS)
        changing.kill_and_choose_later(ROWS)
        assert_calm_so_far(run)
        assert verify_decisions(run.store).equal
        assert run.state().syncs[-1].number == 2


@pytest.mark.full
@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_six_changes_under_ten_kills_and_two_changes_of_grid(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    with cluster(mixed(tmp_path, draw.choice(("stash", "eager")))) as run:
        run.start()
        run.wait_step(1)
        changing = Changing(run, draw)
        changing.whole()
        ways: list[Callable[[Sync], None]]
        ways = [changing.kill_before_it_counts, changing.kill_and_choose_later] * 3
        draw.shuffle(ways)
        two = draw.sample([FACTORS, ROWS, OWNERS, SPARSE_SHIP], 4)
        three = draw.sample([ZONED, two.pop()], 2)
        for sync in two[:2]:
            ways.pop()(sync)
        changing.kill_at_some_instant()
        run.start(2)
        trains(run, THREE)
        changing.whole()
        for sync in three:
            ways.pop()(sync)
        lost = [run.owner(Slot(pipeline=2, stage=stage)) for stage in range(2)]
        changing.kill_while_proposed(TREE, *lost)
        trains(run, TWO)
        changing.whole()
        changing.kill_at_some_instant()
        for sync in (two[2], TREE):
            ways.pop()(sync)
        assert_calm_so_far(run)
        assert verify_decisions(run.store).equal
        assert (run.state().syncs[-1].number, len(run.killed)) == (6, 10)
        assert changing.not_chosen == 5
        assert changing.not_begun > 0
