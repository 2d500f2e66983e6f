"""What can happen, as values. Any member may append any event; the core decides what it means."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from bamboo.core.state import Holding, Norm, Outcome
from bamboo.ids import InstanceId, NodeId, ZoneId
from bamboo.topology.slots import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """A worker listens at `endpoint` and is ready to take a slot."""

    node: NodeId
    instance: InstanceId
    zone: ZoneId
    endpoint: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLost:
    """`reporter` saw the data-plane connection to `node` end (cause `disconnect`), or its lease
    run out while its progress counter stood still (cause `lease`), or its process end (`exit`)."""

    node: NodeId
    reporter: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeReceived:
    """The cloud will take the node's instance at `deadline_s` (store time)."""

    node: NodeId
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceAdvised:
    """The cloud holds that the node's instance is more likely than others to be taken; it may stay
    all the same, and a notice may come or not."""

    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """A draining node finished `step`, begins no further one, and its shadows have all of it."""

    node: NodeId
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeft:
    """A node goes in order (after FINISHED, or after its hand-over)."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """The successor of a failover has done again all that its victim had done in the hit step.

    Also said after a hand-over, and when there was nothing to do again."""

    node: NodeId
    slot: Slot
    step: int
    recomputed: int
    """Microbatch forwards computed again after the loss."""
    already_computed: int
    """Microbatch forwards that the shadow had computed before the loss."""
    pause_s: float
    """From the first disconnect seen to the first operation of the slot on its successor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaJoined:
    """By the owner of `slot`: the receiver of its transfer stands at `step` as the owner does, and
    what the owner reduces from now on counts as safe only once the receiver has it."""

    node: NodeId
    slot: Slot
    receiver: NodeId
    since: int
    """The transfer's."""
    step: int
    bytes: int
    """What the receiver was sent: the copied state, and the gradients until it was equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yielded:
    """By the owner of a slot that is to move: it stands at the boundary before `step` and begins
    it not, every slot's shadow stands there too, and the receiver may go on as the owner."""

    node: NodeId
    slot: Slot
    since: int
    """The move's."""
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """Somebody wants the run to end at a step boundary with `outcome` (stopped or budget)."""

    reason: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReady:
    """In answer to the effect HoldForStop: the node begins no step after `step` until told."""

    node: NodeId
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """A loss, output or gradient of step `step` is not finite; `layer` is where it first shows."""

    node: NodeId
    step: int
    layer: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinished:
    """The node wrote the final state of every slot that it owns, after step `step`.

    A successor says CaughtUp first for each slot that it took over: until then this is taken for
    a report from before its promotion, and must be said again."""

    node: NodeId
    step: int


class FaultScope(StrEnum):
    """node: this node alone has it (a full disk, too little memory), another may do the same work ·
    run: the same work would meet it on any node."""

    NODE = "node"
    RUN = "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailed:
    """A node met a fault of its own, before it joined or after; by itself, or by who sees that it
    never will join."""

    node: NodeId
    instance: InstanceId
    zone: ZoneId
    scope: FaultScope
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed:
    """Whoever sees that the run cannot go on for a reason that no failover mends (no capacity by
    the forming deadline, replicas differ): ends it with `outcome`."""

    reporter: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryReady:
    """In answer to the effect AgreeBoundary: the node begins no step after `step` until told."""

    node: NodeId
    since: int
    """The reconfiguration's."""
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiesced:
    """In answer to the effects Quiesce and QuiesceAfter: the node has stopped, and holds this."""

    node: NodeId
    since: int
    holdings: tuple[Holding, ...]
    norms: tuple[Norm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutBuilt:
    """The node has all that it is to hold in the new layout; `bytes` were sent to it."""

    node: NodeId
    since: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """By one that is sent state ahead of a reconfiguration: it has all, as its sources have it."""

    node: NodeId
    since: int
    """The newest of its feeds'."""
    bytes: int
    """Of the state that was sent to it."""
    followed_bytes: int
    """Of the reduced gradients since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconsider:
    """Whoever sees that no more nodes come for now, or that better is to be had: lay out anew for
    those that are there, if another layout would suit them better."""

    reporter: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesReleased:
    """By who keeps the fleet: the run is to go on without these nodes, which cost more than they
    bring. What they hold is carried to those who stay before they leave."""

    reporter: str
    nodes: tuple[NodeId, ...]
    reason: str
    keep: int = 0
    """So many are to stay at least: others may have left meanwhile. 0: one whole pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled:
    """A member that has begun `step` in this era waits in vain: nobody is known to be lost, and
    nothing comes."""

    node: NodeId
    era: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What one microbatch takes a node, forward and backward of all that it owns, in seconds."""

    node: NodeId
    microbatch_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceMeasured:
    """How fast the members of this era are, by who reads what they report of themselves."""

    reporter: str
    era: int
    paces: tuple[Pace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a node does the work that it has, 1: as is expected of such work."""

    node: NodeId
    speed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedsMeasured:
    """How fast owners are, whatever they own, by who reads what they report of themselves."""

    reporter: str
    era: int
    speeds: tuple[Speed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveDue:
    """A member holds that another step would end too late to store, before the nodes that hold it
    are taken, the state that has no other home."""

    node: NodeId
    since: int
    """The emergency's."""
    at_once: bool
    """The step in hand would end too late, too: stop where you are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSaved:
    """A stage's state as it was before `step` is stored, by a node that held it. In an emergency
    `stage` is the number of the part."""

    node: NodeId
    step: int
    era: int
    stage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDone:
    """By who was told to complete the checkpoint of `step`."""

    node: NodeId
    step: int
    era: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """A shard or the manifest of the checkpoint of `step` could not be written."""

    node: NodeId
    step: int
    era: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDamaged:
    """What the checkpoint of `step` consists of is not what was written."""

    node: NodeId
    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRefilled:
    """The store had lost the run, and `reporter` gave it back what the members had read."""

    reporter: str


Event: TypeAlias = (
    NodeJoined
    | PeerLost
    | NoticeReceived
    | RebalanceAdvised
    | HandedOver
    | NodeLeft
    | CaughtUp
    | ReplicaJoined
    | Yielded
    | StopRequested
    | StopReady
    | NonFinite
    | NodeFinished
    | NodeFailed
    | RunFailed
    | BoundaryReady
    | Quiesced
    | LayoutBuilt
    | Prepared
    | Reconsider
    | NodesReleased
    | Stalled
    | PaceMeasured
    | SpeedsMeasured
    | SaveDue
    | ShardSaved
    | CheckpointDone
    | CheckpointFailed
    | CheckpointDamaged
    | StoreRefilled
)
