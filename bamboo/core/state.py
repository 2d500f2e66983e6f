"""The membership state: the one document all members agree on, changed only by `transition`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from bamboo.ids import InstanceId, NodeId, RunId, ZoneId
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot

T = TypeVar("T")


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
        return self is not NodeStatus.GONE and self is not NodeStatus.LEFT


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

    @property
    def usable(self) -> bool:
        """Live, and the cloud has not said that it takes it."""
        return self.status.live and self.notice_deadline_s is None


class Nodes(tuple[Node, ...]):
    """The nodes in the order in which they joined, equal to any tuple of the same.

    What every decision asks of them is found once, and is corrected, not found anew, for those made
    of these by `having`.
    """

    _found: "_Found | None" = None
    _aside: tuple[Node, ...] | None = None

    @property
    def found(self) -> "_Found":
        """Where each is, and which are what."""
        if self._found is None:
            self._found = _Found(
                at={node.id: place for place, node in reversed(tuple(enumerate(self)))},
                zones={node.id: node.zone for node in self},
                live=sum(node.status.live for node in self),
                usable=frozenset(node.id for node in self if node.usable),
                set_aside=frozenset(place for place, node in enumerate(self) if _set_aside(node)),
            )
        return self._found

    @property
    def aside(self) -> tuple[Node, ...]:
        """Live nodes that stand by, drain or have had a notice; in order of joining."""
        if self._aside is None:
            self._aside = tuple(self[place] for place in sorted(self.found.set_aside))
        return self._aside

    def having(self, *changed: Node) -> "Nodes":
        """The same, with these in place of those of the same ids; new ones come last."""
        found, nodes = self.found, list(self)
        at, zones, live = found.at, found.zones, found.live
        if new := [node for node in changed if node.id not in at]:
            at = {**at, **{node.id: place for place, node in enumerate(new, len(nodes))}}
            zones = {**zones, **{node.id: node.zone for node in new}}
            nodes += new
            live += sum(node.status.live for node in new)
        places = {at[node.id]: node for node in changed}
        for place, node in places.items():
            live += node.status.live - nodes[place].status.live
            nodes[place] = node
        after = Nodes(nodes)
        after._found = _Found(
            at=at,
            zones=zones,
            live=live,
            usable=_corrected(found.usable, {n.id: n.usable for n in changed}),
            set_aside=_corrected(found.set_aside, {p: _set_aside(n) for p, n in places.items()}),
        )
        return after


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Found:
    at: Mapping[NodeId, int]
    zones: Mapping[NodeId, ZoneId]
    live: int
    usable: frozenset[NodeId]
    set_aside: frozenset[int]
    """Places of the live nodes that are no members like most: that stand by, drain or have had a
    notice. They are few in a run that trains."""


def _set_aside(node: Node) -> bool:
    return node.status.live and (node.status is not NodeStatus.MEMBER or not node.usable)


def _corrected(those: frozenset[T], is_one: Mapping[T, bool]) -> frozenset[T]:
    """`those`, with every key of `is_one` among them or not, as it says."""
    more = {key for key, one in is_one.items() if one and key not in those}
    fewer = {key for key, one in is_one.items() if not one and key in those}
    those = those | more if more else those
    return those - fewer if fewer else those


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
        place = self.roll.found.at.get(node)
        return None if place is None else self.nodes[place]

    def with_nodes(self, *nodes: Node) -> "State":
        """The state with these in place of those of the same ids, or joined last."""
        return replace(self, nodes=self.roll.having(*nodes)) if nodes else self

    def live_nodes(self) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n.status.live)

    def live_ids(self) -> frozenset[NodeId]:
        """The ids of `live_nodes`."""
        noticed = [node.id for node in self.roll.aside if not node.usable]
        usable = self.roll.found.usable
        return usable.union(noticed) if noticed else usable

    def participants(self) -> frozenset[NodeId]:
        """Nodes between which letters go: owners, shadows, receivers of transfers; while all is
        being laid out anew, everybody."""
        if self.assignment is None:
            return frozenset()
        if self.reform is not None:
            return self.live_ids()
        return self.assignment.members() | self._receivers()

    def same_participants(self, before: "State") -> bool:
        """Whether they are the same as those of `before`: where nobody's place is another, only
        those who have none yet need be compared."""
        placed = self.assignment is before.assignment
        if placed and self.reform is None and before.reform is None:
            return self._receivers() == before._receivers()
        if placed and self.reform is not None and before.reform is not None:
            return self.nodes is before.nodes or self.participants() == before.participants()
        return self.participants() == before.participants()

    def _receivers(self) -> frozenset[NodeId]:
        """Who is being sent a replica and has no place in the assignment."""
        return frozenset(
            transfer.receiver
            for transfer in self.transfers
            if self.assignment is None or not self.assignment.roles.has(transfer.receiver)
        )


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
