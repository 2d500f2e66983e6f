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
    RECONFIGURING = "reconfiguring"
    RESTORING = "restoring"
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
    advised: bool = False
    """Whether the cloud has advised to leave the instance. The node goes on; the fleet keeps one
    node more for it."""


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
class Holding:
    """A node has the state of layers [first, stop) as it is before `step`. It could take the step
    at once, and so stand at `reach`, if it knew the gradient norm of the whole model."""

    first: int
    stop: int
    step: int
    reach: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """The squared gradient norm of the whole model in `step`."""

    step: int
    total_square: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a node holds that has stopped for a reconfiguration."""

    node: NodeId
    holdings: tuple[Holding, ...]
    norms: tuple[Norm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A node that has all that it is to hold; `bytes` were sent to it."""

    node: NodeId
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reform:
    """A reconfiguration under way: all stop, say what they hold, a new layout is decided, each gets
    what it lacks, and all go on together from `base`."""

    since: int
    """Version of the state that began it; tells two rounds apart."""
    why: str
    planned: bool
    """Nothing is lost: the step is finished first."""
    intact: bool
    """Nothing is lost that any node held, so what live nodes hold counts without redundancy too."""
    asked: tuple[NodeId, ...]
    """Who is to say what it holds."""
    ready: tuple[tuple[NodeId, int], ...] = ()
    """While the boundary is being agreed: the last step that each has begun."""
    boundary: int | None = None
    """All finish this step, if planned."""
    reports: tuple[Report, ...] = ()
    shares: tuple[int, ...] = ()
    """Virtual nodes of each pipeline, where the grid stays and only they are to change."""
    forced: bool = False
    """Go on with however few nodes there are."""
    base: int | None = None
    """The step that all go on from; None until it is decided."""
    checkpoint: bool = False
    """Whether what no live node holds is read from the checkpoint of step `base`."""
    total_square: float | None = None
    """Of the step before `base`, for those who have yet to take it."""
    rebuilt: tuple[Rebuilt, ...] = ()


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
    reform: Reform | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    """Complete ones, oldest first."""
    saving: tuple[Saving, ...] = ()
    slow: tuple[Slow, ...] = ()
    retiring: NodeId | None = None
    """A slow member whose place a standby takes."""
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

    def node(self, node: NodeId) -> Node | None:
        """The node of that id, or None."""
        return next((n for n in self.nodes if n.id == node), None)

    def live_nodes(self) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n.status.live)

    def participants(self) -> frozenset[NodeId]:
        """Nodes between which letters go: owners, shadows, receivers of transfers; while all is
        being laid out anew, everybody."""
        if self.assignment is None:
            return frozenset()
        if self.reform is not None:
            return frozenset(node.id for node in self.live_nodes())
        return self.assignment.members() | {t.receiver for t in self.transfers}


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
