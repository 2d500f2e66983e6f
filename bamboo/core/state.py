"""The membership state: the one document all members agree on, changed only by `transition`."""

from dataclasses import dataclass
from enum import StrEnum

from bamboo.ids import InstanceId, NodeId, RunId, ZoneId
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot


class Phase(StrEnum):
    """Where the run stands."""

    FORMING = "forming"
    RUNNING = "running"
    FAILING_OVER = "failing_over"
    DEGRADED = "degraded"
    FINISHED = "finished"


class Outcome(StrEnum):
    """How a run ended; `exit_code` of the command line follows from it."""

    DONE = "done"
    STOPPED = "stopped"
    FAULT = "fault"
    UNRECOVERABLE = "unrecoverable"
    BUDGET = "budget"

    @property
    def exit_code(self) -> int:
        return {"done": 0, "stopped": 130, "fault": 1, "unrecoverable": 3, "budget": 4}[self.value]


class NodeStatus(StrEnum):
    """ready: a standby, no slot or replica yet · member: owns or shadows something · draining: a
    member with a preemption notice · gone: decided lost, fenced for ever · left: in order."""

    READY = "ready"
    MEMBER = "member"
    DRAINING = "draining"
    GONE = "gone"
    LEFT = "left"

    @property
    def live(self) -> bool:
        return self not in (NodeStatus.GONE, NodeStatus.LEFT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One boot of one instance, as the members know it."""

    id: NodeId
    instance: InstanceId
    zone: ZoneId
    endpoint: str
    """Where its transport listens, e.g. `ipc:///…` or `tcp://10.0.0.4:41234`."""
    pid: int
    status: NodeStatus
    notice_deadline_s: float | None = None
    """Store time at which the cloud said it will take the instance, or None."""


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

    def node(self, node: NodeId) -> Node | None:
        """The node of that id, or None."""
        return next((n for n in self.nodes if n.id == node), None)

    def live_nodes(self) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n.status.live)

    def participants(self) -> frozenset[NodeId]:
        """Nodes between which letters go: owners, shadows, and receivers of transfers."""
        if self.assignment is None:
            return frozenset()
        return self.assignment.members() | {t.receiver for t in self.transfers}


def initial_state(*, run: RunId, grid: Grid, redundancy: str) -> State:
    """The state that the launcher stores before any node exists: version 0, forming."""
    return State(
        run=run,
        version=0,
        generation=0,
        phase=Phase.FORMING,
        grid=grid,
        redundancy=redundancy,
        sentence=f"waiting for {grid.size} nodes",
    )
