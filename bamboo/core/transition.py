"""The result of one event, the functions that make one, and the phrases that reasons share.

Rules. (1) A change is another state object. An event that changes nothing returns the very same
object, with the reason why not. (2) While a change is being decided, version and sentence are still
those from before it. At the end `numbered` raises the version by one and makes the reason the
sentence. (3) A reason names the grid that is taken, not one that was intended earlier.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bamboo.core.effects import FLEET, Effect, End, TerminateAll
from bamboo.core.state import Node, NodeStatus, Outcome, Phase, State
from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId
from bamboo.quantities import size
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot

_WORKING = (NodeStatus.MEMBER, NodeStatus.DRAINING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """When nothing changed, `state` is the very state that was given, and `effects` is empty."""

    state: State
    effects: tuple[Effect, ...]
    reason: str
    """A sentence for people: what was decided and why, or why nothing changed."""


def stale(state: State, reason: str) -> Transition:
    """Nothing changes: the event came too late, came twice, or concerns no node."""
    return Transition(state=state, effects=(), reason=reason)


def changed(after: State, effects: Iterable[Effect], reason: str) -> Transition:
    """The event leads to the state `after`."""
    return Transition(state=after, effects=tuple(effects), reason=reason)


def end(after: State, outcome: Outcome, reason: str, first: tuple[Effect, ...] = ()) -> Transition:
    """End the run in the state `after`. The effects are `first`, then those of every end."""
    over = replace(
        after,
        phase=Phase.FINISHED,
        outcome=outcome,
        failovers=(),
        transfers=(),
        moves=(),
        preparing=None,
        reconfiguration=None,
    )
    leave = tuple(End(to=node.id) for node in over.live_nodes())
    return changed(over, (*first, *leave, TerminateAll(to=FLEET)), reason)


def numbered(before: State, decided: Transition) -> Transition:
    """Return the decision as the next version of `before`.

    The generation rises by one if other nodes take part than before, unless the decision has raised
    it already. After the end of a run the sentence stays the reason of the end.
    """
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
    """Return the state with `status` set for these nodes."""
    found = (state.node(node) for node in nodes)
    return state.with_nodes(
        *(replace(n, status=status) for n in found if n is not None and n.status is not status)
    )


def live_members(state: State) -> list[Node]:
    """The live members, including draining ones and without standbys."""
    return [node for node in state.nodes if node.status in _WORKING]


def acting_member(state: State, node: NodeId, event: str) -> Node:
    """Return the node that reports something about its own slots.

    Whether its report counts is for `acts` to say: the node may be gone by now, or may have given
    away all its slots. Raises CoreMisuse when the node never joined.
    """
    found = state.node(node)
    if found is None:
        raise CoreMisuse(f"{event} from node {node}, which never joined; only members may say it")
    return found


def acts(node: Node) -> bool:
    """Whether the node owns or shadows anything, so that its reports about slots count."""
    return node.status in _WORKING


def describe(state: State, node: NodeId) -> str:
    """Name a node with its slots in `state`: `node i-0a.1 (stage 2)`."""
    slots = () if state.assignment is None else state.assignment.owned_by(node)
    if not slots:
        return f"node {node}"
    return f"node {node} ({name_slots(state, slots)})"


def begun_words(step: int, holds: str) -> str:
    """Words for a node's answer: the last step that it has begun (-1: none), and what follows."""
    return f"has begun {'no step' if step < 0 else f'step {step}'} and holds{holds}"


def boundary_words(step: int) -> str:
    """Words for the step after which all stop (-1: no step was begun)."""
    return "; all stop before the first step" if step < 0 else f"; all stop after step {step}"


def away(node: Node) -> str:
    """Why a report of this node does not count: it `is gone`, `has left`, or `has no slot`."""
    if node.status is NodeStatus.READY:
        return "has no slot"
    return "has left" if node.status is NodeStatus.LEFT else f"is {node.status}"


def name_slots(state: State, slots: Iterable[Slot]) -> str:
    """Name slots: `stage 2`, `stage 1 and stage 2`; in a grid of several pipelines also `stage 2 of
    pipeline 0`."""
    several = state.grid.pipelines > 1
    end = " of pipeline {}" if several else ""
    return listed([f"stage {slot.stage}{end.format(slot.pipeline)}" for slot in slots])


def listed(names: list[str]) -> str:
    """Join names: `a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


ENOUGH = "there are nodes for it"
"""The reason for a layout that there are nodes for. Its grid is known only when it is taken."""


def sent_words(count: int) -> str:
    """Say how much was sent: `3.4 MiB were sent`, `nothing was sent`."""
    return f"{size(count)} were sent" if count else "nothing was sent"


def grid_words(grid: Grid) -> str:
    """Write a grid as pipelines and stages: `2 x 4`."""
    return f"{grid.pipelines} x {grid.stages}"


def why_words(why: str, grid: Grid) -> str:
    """Say why all go on, or will go on, on this grid."""
    return f"there are nodes for {grid_words(grid)}" if why == ENOUGH else why
