"""The state of a run: the one document on which all members agree. Only `transition` changes it."""

from dataclasses import dataclass, fields
from enum import StrEnum

from bamboo.core.nodes import Node, Nodes, NodeStatus
from bamboo.core.rounds import (
    Built,
    Emergency,
    Holding,
    Keep,
    Norm,
    Part,
    Prefetch,
    Prefetches,
    Preparing,
    Reconfiguration,
    Report,
)
from bamboo.ids import NodeId, RunId
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot

__all__ = [
    "Attestation",
    "Built",
    "Checkpoint",
    "Emergency",
    "Fact",
    "Failover",
    "Faults",
    "Holding",
    "Keep",
    "Move",
    "Node",
    "NodeStatus",
    "Norm",
    "Outcome",
    "Part",
    "Phase",
    "Prefetch",
    "Prefetches",
    "Preparing",
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
    """The phase of a run; `machine` draws how one leads to another."""

    FORMING = "forming"
    RUNNING = "running"
    FAILING_OVER = "failing_over"
    DEGRADED = "degraded"
    RECONFIGURING = "reconfiguring"
    RESTORING = "restoring"
    FINISHED = "finished"


class Outcome(StrEnum):
    """How a run ended. The exit code of the command line follows from it."""

    DONE = "done"
    STOPPED = "stopped"
    FAULT = "fault"
    UNRECOVERABLE = "unrecoverable"
    PARKED = "parked"
    """No nodes came in time, and the state is stored, so a resume goes on from it."""
    BUDGET = "budget"

    @property
    def exit_code(self) -> int:
        codes = {"done": 0, "stopped": 130, "fault": 1, "budget": 4}
        return codes.get(self.value, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """A slot that went to its shadow, which has not caught up yet."""

    slot: Slot
    victim: NodeId
    successor: NodeId
    decided_at_s: float
    planned: bool
    """True for a change at a step boundary (a hand-over or a move): nothing is recomputed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A new replica of `slot` that is being made. The source copies its state at a step boundary
    and sends it in the background, with every reduced gradient since, until the receiver is
    equal."""

    slot: Slot
    source: NodeId
    """The owner of the slot."""
    receiver: NodeId
    since: int
    """The version of the state that began it; tells two transfers between the same nodes apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Owner and shadow of `slot` change roles at its next step boundary. Nothing is sent, since
    both have the state."""

    slot: Slot
    source: NodeId
    receiver: NodeId
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint of the state before `step`."""

    step: int
    era: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """A checkpoint that is being written: the stages that are stored so far, and the node that was
    told to complete it."""

    step: int
    stages: tuple[int, ...]
    committer: NodeId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A member that was slow in `rounds` measurements, and fine in none since the first of them."""

    node: NodeId
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A fact of a machine that decides bits, such as `torch` and `2.13.0+cpu`."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """What a run computes with: the facts of the first worker that said them; see `numerics`."""

    node: NodeId
    """That worker, perhaps of an earlier part of the run; "": the launcher, of a run of an older
    release."""
    numerics: tuple[Fact, ...]
    """In the order of their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Nodes that failed by themselves, one after the other; see `faults`."""

    tries: int
    """How many tries in a row failed; nodes that were rented together are one try."""
    nodes: int
    at_s: float
    """The store's time of the first fault of the last try."""
    known: int
    """How many nodes the run knew after the last fault; later ones in `State.nodes` joined
    since."""
    reason: str
    """The reason that all faults of the last try share; "" when they differ."""


@dataclass(frozen=True, kw_only=True)
class State:
    """The whole state of a run. `version` counts the transitions that changed anything,
    `generation` the memberships."""

    run: RunId
    version: int
    generation: int
    phase: Phase
    grid: Grid
    redundancy: str
    nodes: tuple[Node, ...] = ()
    assignment: Assignment | None = None
    failovers: tuple[Failover, ...] = ()
    """The failovers that are under way."""
    transfers: tuple[Transfer, ...] = ()
    """The new replicas that are being made, at most one for each slot."""
    moves: tuple[Move, ...] = ()
    """The slots that get another owner at their next step boundary."""
    cut: tuple[int, ...] = ()
    """The first layer of each stage, then the layer count; empty: as the strategy has it."""
    shares: tuple[int, ...] = ()
    """The number of virtual nodes of each pipeline; empty: equal shares."""
    era: int = 0
    """The generation in which the present layout began; reports from before it are void."""
    stalled_step: int | None = None
    """The step of the last stall; another stall within one step of it ends the run."""
    reconfiguration: Reconfiguration | None = None
    preparing: Preparing | None = None
    """The prefetch for a coming reconfiguration."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """The complete checkpoints, oldest first."""
    saving: tuple[Saving, ...] = ()
    emergency: Emergency | None = None
    """State that no node will hold after the present notices."""
    slow: tuple[Slow, ...] = ()
    retiring: NodeId | None = None
    """A slow member whose place a standby takes at present."""
    faults: Faults | None = None
    attested: Attestation | None = None
    """None until the first worker has attested."""
    relieved: tuple[Slot, ...] = ()
    """The slots whose owner was replaced for being slow, until a measurement finds the new owner
    fine."""
    stop_reason: str | None = None
    stop_outcome: Outcome | None = None
    """Set with `stop_reason`: the outcome with which the run then ends."""
    stop_ready: tuple[tuple[NodeId, int], ...] = ()
    """While a stop is being agreed: the last step that each member has begun."""
    stop_at_step: int | None = None
    """The step that all members finish before they end; None: they train to the last step."""
    finished: tuple[NodeId, ...] = ()
    """The members that have written the final state of all that they own."""
    outcome: Outcome | None = None
    sentence: str = ""
    """The reason of the last transition that changed the state; after the end of the run, the
    reason of its end."""

    def __post_init__(self) -> None:
        if not isinstance(self.nodes, Nodes):
            object.__setattr__(self, "nodes", Nodes(self.nodes))

    @property
    def roll(self) -> Nodes:
        """The same as `nodes`, with the type that answers questions about all of them."""
        assert isinstance(self.nodes, Nodes), "any other tuple is made one at once"
        return self.nodes

    def node(self, node: NodeId) -> Node | None:
        """The node with this id, or None."""
        place = self.roll.places.get(node)
        return None if place is None else self.nodes[place]

    def with_nodes(self, *nodes: Node) -> "State":
        """Return the state with these nodes, each in place of the one with its id, or as the last
        one."""
        return self.having(nodes=self.roll.having(*nodes)) if nodes else self

    def having(self, **changes: object) -> "State":
        """Return the state with some fields changed, as `dataclasses.replace` does, in a fifth of
        its time. Every event makes a few states; for this speed they have no `__slots__`."""
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
        """The nodes that exchange messages: owners, shadows, and receivers of transfers and
        prefetch; during a reconfiguration, all live nodes."""
        if self.assignment is None:
            return frozenset()
        if self.reconfiguration is not None:
            return self.roll.live
        return self.assignment.members() | self._receivers()

    def same_participants(self, before: "State") -> bool:
        """Whether the participants are those of `before`. While the assignment is the same object,
        only the receivers need to be compared."""
        placed = self.assignment is before.assignment
        if placed and self.reconfiguration is None and before.reconfiguration is None:
            if self.transfers is before.transfers and self._fed() is before._fed():
                return True
            return self._receivers() == before._receivers()
        if placed and self.reconfiguration is not None and before.reconfiguration is not None:
            return self.nodes is before.nodes or self.participants() == before.participants()
        return self.participants() == before.participants()

    def _receivers(self) -> frozenset[NodeId]:
        """The nodes that are being sent state and have no place in the assignment."""
        return frozenset(
            receiver
            for receiver in (*(transfer.receiver for transfer in self.transfers), *self._fed())
            if self.assignment is None or not self.assignment.roles.has(receiver)
        )

    def _fed(self) -> frozenset[NodeId]:
        return _NOBODY if self.preparing is None else self.preparing.receivers


_NAMES = frozenset(field.name for field in fields(State))


def initial_state(
    *,
    run: RunId,
    grid: Grid,
    redundancy: str,
    checkpoints: tuple[Checkpoint, ...] = (),
    attested: Attestation | None = None,
) -> State:
    """Make the state that the launcher stores before any node exists: version 0, forming. With
    `checkpoints`, training goes on from the newest of them. `attested`: of an earlier part of the
    run, whose bits this one continues."""
    return State(
        run=run,
        version=0,
        generation=0,
        phase=Phase.FORMING,
        grid=grid,
        redundancy=redundancy,
        checkpoints=checkpoints,
        attested=attested,
        sentence=f"waiting for {grid.size} nodes",
    )
