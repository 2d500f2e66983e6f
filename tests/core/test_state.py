"""States that are made of others."""

from dataclasses import replace

import pytest

from bamboo.core.nodes import Nodes
from bamboo.core.state import Phase
from tests.core.build import running


def test_a_state_with_other_values_is_the_one_that_replace_gives() -> None:
    state = running()
    nodes = tuple(replace(node, advised=True) for node in state.nodes)
    after = state.having(phase=Phase.DEGRADED, nodes=nodes, sentence="other")
    assert after == replace(state, phase=Phase.DEGRADED, nodes=nodes, sentence="other")
    assert isinstance(after.nodes, Nodes)
    assert state == running()


def test_a_value_that_no_state_has_is_refused() -> None:
    with pytest.raises(KeyError):
        running().having(fase=Phase.DEGRADED)
