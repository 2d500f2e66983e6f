"""The membership state: the one document all members agree on, changed only by `transition`."""

from dataclasses import dataclass, fields
from enum import StrEnum

from bamboo.core.nodes import Node, Nodes, NodeStatus
from bamboo.core.rounds import (
    Emergency,
    Feed,
    Feeds,
    Holding,
    Keep,
    Norm,
    Part,
    Preparing,
    Rebuilt,
    Reconfiguration,
    Report,
)
from bamboo.ids import NodeId, RunId
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot

__all__ = [
    "Checkpoint",
    "Emergency",
    "Failover",
    "Faults",
    "Feed",
    "Feeds",
    "Holding",
    "Keep",
    "Move",
    "Node",
    "NodeStatus",
    "Norm",
    "Outcome",
    "Part",
    "Phase",
    "Preparing",
    "Rebuilt",
    "Reconfiguration",
    "Report",
    "Saving",
    "Slow",
    "State",
    "Transfer",
    "initial_state",
]


_NOBODY: frozenset[NodeId] = frozenset()


class Phase(StrEnum):
    """Where the run stands."""

    FORMING = "forming"
    RUNNING = "running"
    FAILING_OVER = "failing_over"
    DEGRADED = "degraded"
    RECONFIGURING = "reconfiguring"
    RESTORING = "restoring"
    FINISHED = "finished"


class Outcome(StrEnum):
    """How a run ended; `exit_code` of the command line follows from it."""

    DONE = "done"
    STOPPED = "stopped"
    FAULT = "fault"
    UNRECOVERABLE = "unrecoverable"
    PARKED = "parked"
    """No nodes came in time, and state is stored: a resume goes on from it."""
    BUDGET = "budget"

    @property
    def exit_code(self) -> int:
        codes = {"done": 0, "stopped": 130, "fault": 1, "budget": 4}
        return codes.get(self.value, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """A slot that moved to its shadow and has not caught up yet."""

    slot: Slot
    victim: NodeId
    successor: NodeId
    decided_at_s: float
    planned: bool
    """True for a hand-over at a step boundary (a notice, a move): nothing is recomputed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A new replica of `slot` in the making: the source copies its state at a step boundary and
    sends it in the background, with every reduced gradient since, until the receiver is equal."""

    slot: Slot
    source: NodeId
    """The owner of the slot."""
    receiver: NodeId
    since: int
    """Version of the state that decided it; tells two transfers of one pair apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """`slot` changes hands at its next step boundary: the shadow becomes the owner, the owner its
    shadow. Nothing but the roles changes, for both have the state."""

    slot: Slot
    source: NodeId
    receiver: NodeId
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint: the state before `step`."""

    step: int
    era: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """A checkpoint in the making: the stages that are stored, and who is to complete it."""

    step: int
    stages: tuple[int, ...]
    committer: NodeId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A member that was slow in so many measurements, and fine in none since the first."""

    node: NodeId
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Nodes that failed by themselves, one after the other: see `core.faults`."""

    tries: int
    """So often in a row; nodes that were rented together are one try."""
    nodes: int
    at_s: float
    """Store time of the first fault of the last try."""
    known: int
    """Nodes that the run knew after the last fault: those behind them have joined since."""
    reason: str
    """Of all those of the last try; "" when theirs differ."""


@dataclass(frozen=True, kw_only=True)
class State:
    """`version` counts transitions that changed anything; `generation` counts memberships."""

    run: RunId
    version: int
    generation: int
    phase: Phase
    grid: Grid
    redundancy: str
    nodes: tuple[Node, ...] = ()
    assignment: Assignment | None = None
    failovers: tuple[Failover, ...] = ()
    """Failovers under way."""
    transfers: tuple[Transfer, ...] = ()
    """Replicas in the making, at most one a slot."""
    moves: tuple[Move, ...] = ()
    """Slots that change hands at their next step boundary."""
    cut: tuple[int, ...] = ()
    """First layer of each stage and the layer count; empty: as the strategy has it."""
    shares: tuple[int, ...] = ()
    """Virtual nodes of each pipeline; empty: equal ones."""
    era: int = 0
    """Generation under which the layout of now began; what was said before it is void."""
    stalled_step: int | None = None
    """The step in which a stall was broken last: a second one there would be broken in vain."""
    reconfiguration: Reconfiguration | None = None
    preparing: Preparing | None = None
    """What is being sent ahead of a reconfiguration."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """Complete ones, oldest first."""
    saving: tuple[Saving, ...] = ()
    emergency: Emergency | None = None
    """State that has no home after the notices of now."""
    slow: tuple[Slow, ...] = ()
    retiring: NodeId | None = None
    """A slow member whose place a standby takes."""
    faults: Faults | None = None
    relieved: tuple[Slot, ...] = ()
    """Slots whose owner was replaced for being slow; the new one has not been found fine yet."""
    stop_reason: str | None = None
    stop_outcome: Outcome | None = None
    """Set from StopRequested on; the run then ends with this outcome."""
    stop_ready: tuple[tuple[NodeId, int], ...] = ()
    """While a stop is being agreed: the last step that each member has begun."""
    stop_at_step: int | None = None
    """Members finish this step and end; None: train to the last step."""
    finished: tuple[NodeId, ...] = ()
    """Members that have written the final state of all that they own."""
    outcome: Outcome | None = None
    sentence: str = ""
    """Why the state is what it is: the reason of the last transition that changed it, and from
    the end of the run on the reason of its end."""

    def __post_init__(self) -> None:
        if not isinstance(self.nodes, Nodes):
            object.__setattr__(self, "nodes", Nodes(self.nodes))

    @property
    def roll(self) -> Nodes:
        """`nodes`, with what is known of them."""
        assert isinstance(self.nodes, Nodes), "any other tuple is made one at once"
        return self.nodes

    def node(self, node: NodeId) -> Node | None:
        """The node of that id, or None."""
        place = self.roll.places.get(node)
        return None if place is None else self.nodes[place]

    def with_nodes(self, *nodes: Node) -> "State":
        """The state with these in place of those of the same ids, or joined last."""
        return self.having(nodes=self.roll.having(*nodes)) if nodes else self

    def having(self, **changes: object) -> "State":
        """What `replace` gives, in a fifth of its time: every event makes a few states, which for
        that have no slots."""
        if unknown := changes.keys() - _NAMES:
            raise KeyError(f"no field of a state: {', '.join(sorted(unknown))}")
        after = object.__new__(State)
        after.__dict__.update(self.__dict__, **changes)
        after.__post_init__()
        return after

    def live_nodes(self) -> tuple[Node, ...]:
        live = self.roll.live
        return tuple(n for n in self.nodes if n.id in live)

    def participants(self) -> frozenset[NodeId]:
        """Nodes between which messages go: owners, shadows, receivers of transfers; while all is
        being laid out anew, everybody."""
        if self.assignment is None:
            return frozenset()
        if self.reconfiguration is not None:
            return self.roll.live
        return self.assignment.members() | self._receivers()

    def same_participants(self, before: "State") -> bool:
        """Whether they are the same as those of `before`: where nobody's place is another, only
        those who have none yet need be compared."""
        placed = self.assignment is before.assignment
        if placed and self.reconfiguration is None and before.reconfiguration is None:
            if self.transfers is before.transfers and self._fed() is before._fed():
                return True
            return self._receivers() == before._receivers()
        if placed and self.reconfiguration is not None and before.reconfiguration is not None:
            return self.nodes is before.nodes or self.participants() == before.participants()
        return self.participants() == before.participants()

    def _receivers(self) -> frozenset[NodeId]:
        """Who is being sent state and has no place in the assignment."""
        return frozenset(
            receiver
            for receiver in (*(transfer.receiver for transfer in self.transfers), *self._fed())
            if self.assignment is None or not self.assignment.roles.has(receiver)
        )

    def _fed(self) -> frozenset[NodeId]:
        return _NOBODY if self.preparing is None else self.preparing.receivers


_NAMES = frozenset(field.name for field in fields(State))


def initial_state(
    *, run: RunId, grid: Grid, redundancy: str, checkpoints: tuple[Checkpoint, ...] = ()
) -> State:
    """The state that the launcher stores before any node exists: version 0, forming. With
    `checkpoints` training goes on from the newest of them."""
    return State(
        run=run,
        version=0,
        generation=0,
        phase=Phase.FORMING,
        grid=grid,
        redundancy=redundancy,
        checkpoints=checkpoints,
        sentence=f"waiting for {grid.size} nodes",
    )
