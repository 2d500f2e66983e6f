"""What one event did to the state, and the few ways to say it.

Rule: a change is another state object; an event that changes nothing returns the very same one,
with a reason why not. While a change is decided, version and sentence are those before it. When all
is decided, `numbered` raises the version by one and makes the reason the sentence.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bamboo.core.effects import Effect
from bamboo.core.state import Node, NodeStatus, Phase, State
from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId
from bamboo.topology.slots import Slot

_WORKING = (NodeStatus.MEMBER, NodeStatus.DRAINING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """`state` is the state given when nothing changed (`effects` is empty then)."""

    state: State
    effects: tuple[Effect, ...]
    reason: str
    """A sentence for people: what was decided and why, or why nothing was."""


def stale(state: State, reason: str) -> Transition:
    """The event came too late, twice, or concerns nobody: nothing changes."""
    return Transition(state=state, effects=(), reason=reason)


def changed(after: State, effects: Iterable[Effect], reason: str) -> Transition:
    """The event leads to `after`."""
    return Transition(state=after, effects=tuple(effects), reason=reason)


def numbered(before: State, decided: Transition) -> Transition:
    """What was decided, as the next version of `before`, and under the next generation where others
    take part than before and nobody has raised it. What happens after the end of a run does not
    hide why it ended."""
    state = decided.state
    if state is before:
        return decided
    over = state.phase is Phase.FINISHED
    raised = over or state.generation != before.generation or state.same_participants(before)
    state = state.having(
        version=before.version + 1,
        generation=state.generation if raised else before.generation + 1,
        sentence=before.sentence if before.phase is Phase.FINISHED else decided.reason,
    )
    return Transition(state=state, effects=decided.effects, reason=decided.reason)


def with_status(state: State, status: NodeStatus, *nodes: NodeId) -> State:
    """The state with the status of some nodes changed."""
    found = (state.node(node) for node in nodes)
    return state.with_nodes(
        *(replace(n, status=status) for n in found if n is not None and n.status is not status)
    )


def live_members(state: State) -> list[Node]:
    """The live nodes that own something: members, draining ones included, without standbys."""
    return [node for node in state.nodes if node.status in _WORKING]


def acting_member(state: State, node: NodeId, event: str) -> Node:
    """The node that speaks of its own slots, which only a node that joined can do. Whether its word
    counts `acts` says: it may have gone since, or have given all that it had away.

    Raises CoreMisuse when the node never joined.
    """
    found = state.node(node)
    if found is None:
        raise CoreMisuse(f"{event} from node {node}, which never joined; only members may say it")
    return found


def acts(node: Node) -> bool:
    """Whether the node owns or shadows anything, so that what it says of slots counts."""
    return node.status in _WORKING


def describe(state: State, node: NodeId) -> str:
    """`node i-0a.1 (stage 2)`, as the assignment of `state` has it."""
    slots = () if state.assignment is None else state.assignment.owned_by(node)
    if not slots:
        return f"node {node}"
    return f"node {node} ({name_slots(state, slots)})"


def begun_words(step: int, holds: str) -> str:
    """A node's answer: the last step that it has begun, -1 for none, and what becomes of it."""
    return f"has begun {'no step' if step < 0 else f'step {step}'} and holds{holds}"


def boundary_words(step: int) -> str:
    """The step after which all stop, once it is agreed; -1: none was begun."""
    return "; all stop before the first step" if step < 0 else f"; all stop after step {step}"


def away(node: Node) -> str:
    """Why a node's word does not count: it `is gone`, `has left`, or `has no slot`."""
    if node.status is NodeStatus.READY:
        return "has no slot"
    return "has left" if node.status is NodeStatus.LEFT else f"is {node.status}"


def name_slots(state: State, slots: Iterable[Slot]) -> str:
    """`stage 2`, `stage 1 and stage 2`; with several pipelines `stage 2 of pipeline 0`."""
    several = state.grid.pipelines > 1
    end = " of pipeline {}" if several else ""
    return listed([f"stage {slot.stage}{end.format(slot.pipeline)}" for slot in slots])


def listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
