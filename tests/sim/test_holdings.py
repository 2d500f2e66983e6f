"""What nodes say they hold while all is laid out anew."""

from bamboo.core.state import Holding
from bamboo.ids import NodeId
from bamboo.sim.holdings import Holdings
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
LAYOUT = ModelLayout(grid=Grid(pipelines=1, stages=2), cut=(0, 3, 4), shares=(1,))
ASSIGNMENT = Assignment(grid=LAYOUT.grid, owners=(A, B), shadows=(B, None))


def test_owners_and_shadows_hold_their_layers_and_others_nothing() -> None:
    holdings = Holdings()
    holdings.begin(LAYOUT, ASSIGNMENT)
    assert holdings.of(A, step=7) == (Holding(first=0, stop=3, step=7, reach=7),)
    assert [h.stop - h.first for h in holdings.of(B, step=7)] == [3, 1]
    assert holdings.of(C, step=7) == ()
    assert holdings.of(A, step=9)[0].step == 7, "what was said once stays said"


def test_what_was_built_is_held_beside_it() -> None:
    holdings = Holdings()
    holdings.begin(LAYOUT, ASSIGNMENT)
    assert holdings.lacking({A: frozenset(range(4))}, step=7)[A] == set(range(4)), (
        "it has said nothing"
    )
    holdings.of(A, step=7)
    assert holdings.lacking({A: frozenset(range(4))}, step=7)[A] == {3}
    holdings.built(A, frozenset({3}), step=7)
    assert holdings.lacking({A: frozenset(range(4))}, step=7)[A] == frozenset()
    assert holdings.lacking({A: frozenset({3})}, step=6)[A] == {3}
    holdings.begin(LAYOUT, None)
    assert holdings.of(A, step=7) == ()
