"""Which preemptions are ordered, and when: listed with notice, and drawn from a seed."""

from bamboo.config.tree import ChaosConfig, Kill
from bamboo.controller.chaos import Chaos, Order
from bamboo.core.state import State
from bamboo.ids import InstanceId
from tests.controller.world import World, finished, job, joined, lost


def running() -> State:
    world = World(job())
    world.do(joined())
    return world.driver.state()


def test_nothing_before_the_cluster_has_formed_or_after_the_end() -> None:
    world = World(job())
    chaos = Chaos(
        ChaosConfig(kill=(Kill(step=0, stage=1, notice_s=1.0),), kills_per_hour=3.6e6, seed=1)
    )
    assert chaos.due(world.driver.state(), steps_finished=0, now_s=0.0) == []
    world.do([joined(), finished(2, 0, 1, 2, 3)])
    assert chaos.due(world.driver.state(), steps_finished=9, now_s=99.0) == []


def test_a_listed_kill_without_notice_is_the_workers_affair() -> None:
    chaos = Chaos(ChaosConfig(kill=(Kill(step=0, stage=1),)))
    assert chaos.due(running(), steps_finished=5, now_s=0.0) == []


def test_a_listed_kill_follows_its_stage_to_whoever_owns_it_now() -> None:
    world = World(job())
    world.do([joined(), lost(2, 1)])
    chaos = Chaos(ChaosConfig(kill=(Kill(step=3, stage=2, notice_s=7.0),)))
    state = world.driver.state()
    assert chaos.due(state, steps_finished=2, now_s=0.0) == []
    assert chaos.due(state, steps_finished=4, now_s=0.0) == [
        Order(instance=_id(1), notice_s=7.0, listed=0)
    ]
    assert chaos.due(state, steps_finished=4, now_s=0.0) == []


def test_a_listed_kill_of_a_slot_that_the_layout_does_not_have_is_skipped() -> None:
    """The job's list is for its own grid; one that was resumed or reconfigured may have another."""
    world = World(job(stages=2))
    world.do(joined(2))
    kills = (
        Kill(step=1, stage=0, pipeline=1, notice_s=1.0),
        Kill(step=1, stage=3, notice_s=1.0),
        Kill(step=1, stage=1, notice_s=1.0),
    )
    orders = Chaos(ChaosConfig(kill=kills)).due(world.driver.state(), steps_finished=1, now_s=0.0)
    assert orders == [Order(instance=_id(1), notice_s=1.0, listed=2)]


def test_random_kills_have_the_rate_and_the_share_of_notices() -> None:
    chaos = Chaos(ChaosConfig(kills_per_hour=3600.0, seed=3, notice_share=0.25, notice_s=5.0))
    state = running()
    orders = [o for t in range(2001) for o in chaos.due(state, steps_finished=0, now_s=float(t))]
    assert 1850 < len(orders) < 2150
    assert 0.2 < sum(o.notice_s == 5.0 for o in orders) / len(orders) < 0.3
    assert {o.instance for o in orders} == {_id(n) for n in range(4)}


def test_the_seed_decides_whenever_one_looks() -> None:
    config = ChaosConfig(kills_per_hour=360.0, seed=3)
    state = running()
    fine, coarse = Chaos(config), Chaos(config)
    often = [o for t in range(1001) for o in fine.due(state, steps_finished=0, now_s=float(t))]
    coarse.due(state, steps_finished=0, now_s=0.0)
    assert coarse.due(state, steps_finished=0, now_s=1000.0) == often
    other = Chaos(ChaosConfig(kills_per_hour=360.0, seed=4))
    other.due(state, steps_finished=0, now_s=0.0)
    assert other.due(state, steps_finished=0, now_s=1000.0) != often


def _id(number: int) -> InstanceId:
    return InstanceId(f"i-{number}")
