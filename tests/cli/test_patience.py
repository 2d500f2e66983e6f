"""What the launcher says of nodes that do not come: until it was heard, once in a generation."""

from dataclasses import replace

from bamboo.config.tree import ClusterConfig
from bamboo.core.events import Reconsider
from bamboo.core.state import State
from cli.patience import Patience
from tests.cli.world import World, caught_up, job, joined, lost

CLUSTER = ClusterConfig(stages=4, patience_s=5.0)


def short() -> State:
    """Three of four nodes train on."""
    world = World(job())
    world.do([joined(), lost(2, 1), caught_up(1, 2)])
    return world.driver.state()


def test_it_is_said_again_until_it_was_heard_and_then_no_more_in_that_generation() -> None:
    patience, state = Patience(CLUSTER), short()
    assert patience.due(state, now_s=0.0) is None
    for now_s in (5.0, 6.0, 7.0):  # the store was away: nobody has heard it
        event = patience.due(state, now_s=now_s)
        assert isinstance(event, Reconsider)
    patience.said(event, state)
    assert patience.due(state, now_s=8.0) is None
    later = replace(state, generation=state.generation + 1)
    assert isinstance(patience.due(later, now_s=9.0), Reconsider)
