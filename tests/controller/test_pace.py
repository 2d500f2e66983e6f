"""What leases say of how fast the nodes are, as measurements for the members to judge."""

from bamboo.config.tree import ClusterConfig
from bamboo.controller.pace import ENOUGH, PaceKeeper
from bamboo.core.events import PaceMeasured, SpeedsMeasured
from bamboo.core.state import State
from tests.core.build import apply, lost, running

VIRTUAL = ClusterConfig(
    stages=4, device="virtual", virtual_forward_ms=(10.0, 10.0, 10.0, 40.0),
    virtual_backward_ms=(20.0,),
)  # fmt: skip


def tell(keeper: PaceKeeper, state: State, done: int, **pace_s: float) -> None:
    """A lease of every node after `done` forwards, of so many seconds each; 0.03 unless said."""
    for node in state.live_nodes():
        each_s = pace_s.get(node.id.split(".")[0], 0.03)
        keeper.told(state, node.id, {"ops": {"F": done}, "busy_s": each_s * done})


def speeds(found: object) -> dict[str, float]:
    assert isinstance(found, SpeedsMeasured)
    return {s.node.split(".")[0]: round(s.speed, 3) for s in found.speeds}


def test_speeds_are_held_against_the_virtual_figures_of_each_stage() -> None:
    keeper, state = PaceKeeper(VIRTUAL), running()
    tell(keeper, state, 0)
    assert keeper.speeds(state) is None
    tell(keeper, state, ENOUGH - 1)
    assert keeper.speeds(state) is None
    tell(keeper, state, ENOUGH, n01=0.06, n03=0.06)
    assert speeds(keeper.speeds(state)) == {"n00": 1.0, "n01": 0.5, "n02": 1.0, "n03": 1.0}
    assert keeper.measured(state) is None, "one pipeline has nothing to share out"


def test_a_speed_is_of_what_was_done_since_the_last_one() -> None:
    keeper, state = PaceKeeper(VIRTUAL), running()
    tell(keeper, state, 0)
    tell(keeper, state, 100, n03=0.06)
    assert speeds(keeper.speeds(state))["n01"] == 1.0
    assert keeper.speeds(state) is None
    for node in state.live_nodes():
        each_s = {"n01.1": 0.12, "n03.1": 0.06}.get(node.id, 0.03)
        busy_s = 100 * (0.06 if node.id == "n03.1" else 0.03) + 20 * each_s
        keeper.told(state, node.id, {"ops": {"F": 120}, "busy_s": busy_s})
    assert speeds(keeper.speeds(state))["n01"] == 0.25


def test_a_new_generation_begins_anew() -> None:
    keeper, state = PaceKeeper(VIRTUAL), running()
    tell(keeper, state, 0)
    tell(keeper, state, 100)
    after = apply(state, lost("n02.1")).state
    assert keeper.speeds(after) is None
    tell(keeper, after, 200)
    assert keeper.speeds(after) is None


def test_on_real_devices_three_owners_of_a_stage_are_held_against_each_other() -> None:
    cpu = ClusterConfig(stages=2)
    two, three = running(2, 2), running(3, 2)
    keeper = PaceKeeper(cpu)
    tell(keeper, two, 0)
    tell(keeper, two, 50, n01=0.09)
    assert keeper.speeds(two) is None
    assert isinstance(keeper.measured(two), PaceMeasured)
    keeper = PaceKeeper(cpu)
    tell(keeper, three, 0)
    tell(keeper, three, 50, n03=0.06)
    found = speeds(keeper.speeds(three))
    assert found == {"n00": 1.0, "n01": 1.0, "n02": 1.0, "n03": 0.5, "n04": 1.0, "n05": 1.0}
