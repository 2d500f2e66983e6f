"""What a node says of its end, and when it says it again."""

from types import SimpleNamespace
from typing import Any

from bamboo.core.events import CaughtUp, NodeFinished
from bamboo.core.state import State
from bamboo.ids import NodeId
from bamboo.runtime.node.finish import Finish
from bamboo.topology.slots import Slot
from tests.core.build import apply, lost, running

ME, SLOT = NodeId("n01.1"), Slot(pipeline=0, stage=2)


def caught_up(state: State) -> State:
    event = CaughtUp(node=ME, slot=SLOT, step=9, recomputed=0, already_computed=0, pause_s=0.1)
    return apply(state, event).state


def test_who_was_behind_says_again_that_it_has_finished() -> None:
    """A store that lost the run heard the two words in the wrong order."""
    said: list[Any] = []
    owned = {Slot(pipeline=1, stage=1): None, SLOT: None}
    executor: Any = SimpleNamespace(owned=owned, last_step=9)
    outbox: Any = SimpleNamespace(event=said.append)
    finish = Finish(me=ME, executor=executor, outbox=outbox, keep=None)
    behind = apply(running(), lost("n02.1")).state
    assert behind.failovers[0].successor == ME
    finish.read(behind)
    for run in owned:
        owned[run] = SimpleNamespace(tensors=dict)  # type: ignore[assignment]
    finish.say()
    word = NodeFinished(node=ME, step=9)
    assert said == [word]
    early = apply(behind, word)
    assert early.state is behind, "the run still waits for it to catch up"
    after = caught_up(behind)
    finish.read(after)
    assert said == [word, word]
    heard = apply(after, word).state
    assert ME in heard.finished
    finish.read(heard)
    assert said == [word, word]
