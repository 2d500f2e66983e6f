"""What a decision is made from: the state of a run and its nodes, with the policy.

The state is the one document on which all members agree; only `transition` changes it.

Rules. (1) Every decision is a function of state, event, time and policy alone, so the whole history
of a run can be recomputed from its log. (2) A node is never forgotten and keeps its position, so an
answer about all nodes is handed on from one state to the next, corrected for those that changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from typing import TypeVar

from bamboo.core.policy import GridTime, Policy
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
    Proposal,
    Reconfiguration,
    Report,
    SyncChoice,
)
from bamboo.ids import InstanceId, NodeId, RunId, ZoneId
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot

T = TypeVar("T")


class NodeStatus(StrEnum):
    """ready: a standby, without slot or replica · member: owns or shadows a slot · draining: a
    member that hands over because of a notice · gone: decided lost, and fenced for ever · left:
    left in order."""

    READY = "ready"
    MEMBER = "member"
    DRAINING = "draining"
    GONE = "gone"
    LEFT = "left"

    @property
    def live(self) -> bool:
        return self is not NodeStatus.GONE and self is not NodeStatus.LEFT


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One boot of one instance, as the run knows it."""

    id: NodeId
    instance: InstanceId
    zone: ZoneId
    endpoint: str
    """Where its transport listens, such as `ipc:///…` or `tcp://10.0.0.4:41234`."""
    pid: int
    status: NodeStatus
    notice_deadline_s: float | None = None
    """The store's time at which the cloud will take the instance; None: there is no notice."""
    advised: bool = False
    """Whether the cloud gave rebalance advice for the instance. The node goes on, and the fleet
    keeps one more node for it."""
    released: bool = False
    """Whether the run gives the instance back. The node then leaves with the next layout."""

    @property
    def usable(self) -> bool:
        """Whether the node is live and neither the cloud nor the run has said that it will go."""
        return self.status.live and self.notice_deadline_s is None and not self.released


class Nodes(tuple[Node, ...]):
    """The nodes in the order in which they joined; equal to any tuple of the same nodes.

    Each answer about all of them is computed when it is first asked for. `having` hands it on to
    the next nodes, corrected.
    """

    @cached_property
    def places(self) -> Mapping[NodeId, int]:
        """The position of each node."""
        return {node.id: place for place, node in reversed(tuple(enumerate(self)))}

    @cached_property
    def zones(self) -> Mapping[NodeId, ZoneId]:
        """The zone of each node."""
        return {node.id: node.zone for node in self}

    @cached_property
    def live(self) -> frozenset[NodeId]:
        """The nodes that are neither gone nor have left."""
        return frozenset(node.id for node in self if node.status.live)

    @cached_property
    def usable(self) -> frozenset[NodeId]:
        """The live nodes that will not go: without a notice, and not released."""
        return frozenset(node.id for node in self if node.usable)

    @property
    def advised(self) -> int:
        """How many of the usable nodes have rebalance advice."""
        return len(self._advised)

    @cached_property
    def aside(self) -> tuple[Node, ...]:
        """The live nodes that are not plain members: standbys, and nodes that drain, have a notice
        or are released. They are few in a run that trains."""
        return tuple(self[place] for place in sorted(self._aside))

    @cached_property
    def leaving(self) -> frozenset[NodeId]:
        """The live nodes that will go: with a notice, or released."""
        return frozenset(node.id for node in self.aside if not node.usable)

    @cached_property
    def _advised(self) -> frozenset[NodeId]:
        return frozenset(node.id for node in self if node.advised and node.usable)

    @cached_property
    def _aside(self) -> frozenset[int]:
        return frozenset(place for place, node in enumerate(self) if _is_aside(node))

    def having(self, *changed: Node) -> "Nodes":
        """Return the nodes with these, each in place of the one with its id; new ones come last."""
        nodes = list(self)
        places = self.places
        zones = self.zones
        if new := [node for node in changed if node.id not in places]:
            places = {**places, **{node.id: at for at, node in enumerate(new, len(nodes))}}
            zones = {**zones, **{node.id: node.zone for node in new}}
            nodes += new
        for node in changed:
            nodes[places[node.id]] = node
        after = Nodes(nodes)
        after.places = places
        after.zones = zones
        after.live = _corrected(self.live, {n.id: n.status.live for n in changed})
        after.usable = _corrected(self.usable, {n.id: n.usable for n in changed})
        after._advised = _corrected(self._advised, {n.id: n.advised and n.usable for n in changed})
        after._aside = _corrected(self._aside, {places[n.id]: _is_aside(n) for n in changed})
        return after


def _is_aside(node: Node) -> bool:
    return node.status.live and (node.status is not NodeStatus.MEMBER or not node.usable)


def _corrected(those: frozenset[T], is_one: Mapping[T, bool]) -> frozenset[T]:
    """Correct `those`: each key of `is_one` is in the result if its value is true, else not."""
    more = {key for key, one in is_one.items() if one and key not in those}
    fewer = {key for key, one in is_one.items() if not one and key in those}
    those = those | more if more else those
    return those - fewer if fewer else those


__all__ = [
    "Attestation",
    "Built",
    "Checkpoint",
    "Emergency",
    "Fact",
    "Failover",
    "Faults",
    "GridTime",
    "Holding",
    "Keep",
    "Move",
    "Node",
    "NodeStatus",
    "Norm",
    "Outcome",
    "Part",
    "Phase",
    "Policy",
    "Prefetch",
    "Prefetches",
    "Preparing",
    "Proposal",
    "Reconfiguration",
    "Report",
    "Saving",
    "Slow",
    "State",
    "SyncChoice",
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
class Evaluated:
    """The evaluations so far, of a run that has some."""

    step: int
    """The step before which the newest one took place."""
    best: float | None = None
    """The best value of the metric that may end the run; None: none was finite."""
    best_step: int = 0
    worse: int = 0
    """How many evaluations since were no better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFault:
    """A node whose GPU or memory failed at its work."""

    node: NodeId
    stage: str
    """Such as `2 of 4`."""
    step: int


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
    devices: tuple[DeviceFault, ...] = ()
    """The last one of each stage."""


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
    evaluated: Evaluated | None = None
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
    syncs: tuple[SyncChoice, ...] = ()
    """How the steps are synchronised, oldest first; empty: all as the strategy has it."""
    proposal: Proposal | None = None
    """Another way to synchronise, which the nodes are asked about."""
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
