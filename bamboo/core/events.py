"""What can happen, as values. Any member may report any event; the core decides what it means."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from bamboo.core.state import Fact, Holding, Norm, Outcome
from bamboo.ids import InstanceId, NodeId, ZoneId
from bamboo.topology.slots import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Attested:
    """A worker says what its machine computes with. It does so before it joins, so it may be
    refused before it trains."""

    node: NodeId
    instance: InstanceId
    zone: ZoneId
    numerics: tuple[Fact, ...]
    """In the order of their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """A worker listens at `endpoint` and is ready to take a slot. It says again what its
    machine computes with: a store that lost what it had attested may take this event first."""

    node: NodeId
    instance: InstanceId
    zone: ZoneId
    endpoint: str
    pid: int
    numerics: tuple[Fact, ...] = ()
    """As in `Attested`; empty: it was attested before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLost:
    """`reporter` saw that `node` is lost: its data-plane connection ended (cause `disconnect`), its
    lease ran out while its progress counter stood still (`lease`), or its process ended (`exit`).
    The launcher gives other causes in words."""

    node: NodeId
    reporter: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeReceived:
    """The cloud will take the node's instance at `deadline_s`, in the store's time."""

    node: NodeId
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceAdvised:
    """The cloud says that the node's instance is more likely than others to be taken. It may stay
    all the same, and a notice may or may not follow."""

    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """A draining node has finished `step` and begins no other, and its shadows have all its
    state."""

    node: NodeId
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeft:
    """A node leaves in order, after FINISHED or after its hand-over."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """The successor of a failover has recomputed all that its victim had done in the hit step.

    It is reported after a hand-over or a move too, and when there was nothing to recompute."""

    node: NodeId
    slot: Slot
    step: int
    recomputed: int
    """The number of forwards that were computed again after the loss."""
    already_computed: int
    """The number of forwards that the shadow had computed before the loss."""
    pause_s: float
    """The time from the first sign of the loss to the slot's first operation on its successor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaJoined:
    """The owner of `slot` reports that the receiver of its transfer stands at `step`, as it does
    itself. From now on what the owner reduces is safe only once the receiver has it."""

    node: NodeId
    slot: Slot
    receiver: NodeId
    since: int
    """That of the transfer."""
    step: int
    bytes: int
    """The bytes that the receiver was sent: the copied state, and the gradients until it was
    equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yielded:
    """The owner of a slot that should move reports that it stands at the boundary before `step` and
    does not begin that step. The shadow of every slot stands there too, so the receiver can go on
    as the owner."""

    node: NodeId
    slot: Slot
    since: int
    """That of the move."""
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """A user, a budget or a trace asks the run to end at a step boundary, with `outcome` (stopped
    or budget)."""

    reason: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReady:
    """The answer to the effect HoldForStop: the node begins no step after `step` until it is
    told."""

    node: NodeId
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """A loss, output or gradient of `step` is not finite; `layer` is the first layer that shows
    it."""

    node: NodeId
    step: int
    layer: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationDone:
    """The evaluation before `step` is done and recorded. Its numbers follow from the state there
    alone, so it does not matter who reports them, or how often."""

    node: NodeId
    step: int
    value: float | None
    """Of the metric that may end the run, else the loss; None: it is not finite."""
    seconds: float
    """How long the reporting node has stood at this boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinished:
    """The node has written the final state of every slot that it owns, after step `step`.

    A successor reports CaughtUp first for each slot that it took over. Until then this event counts
    as one from before its promotion, and must be reported again."""

    node: NodeId
    step: int


class FaultScope(StrEnum):
    """node: the fault is of this node alone (a full disk, no free port), and another can do the
    same work · device: the GPU or the memory of this node failed at its work; a fault of this node,
    too, until another one fails so at the same stage · run: the same work would meet the fault on
    any node."""

    NODE = "node"
    DEVICE = "device"
    RUN = "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailed:
    """A node met a fault of its own, before or after it joined. The node reports it, or whatever
    sees that the node will never join."""

    node: NodeId
    instance: InstanceId
    zone: ZoneId
    scope: FaultScope
    reason: str
    step: int = -1
    """The step that it was in; -1: it owned nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed:
    """The run cannot go on for a reason that no failover mends (such as no capacity by the forming
    deadline, or replicas that differ), and ends with `outcome`."""

    reporter: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryReady:
    """The answer to the effect AgreeBoundary: the node begins no step after `step` until it is
    told."""

    node: NodeId
    since: int
    """That of the reconfiguration."""
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiesced:
    """The answer to the effects Quiesce and QuiesceAfter: the node has stopped and holds these
    layers."""

    node: NodeId
    since: int
    holdings: tuple[Holding, ...]
    norms: tuple[Norm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutBuilt:
    """The node has everything that it should hold in the new layout; it was sent `bytes`."""

    node: NodeId
    since: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A receiver of prefetched state has all of it, at the same step as its sources."""

    node: NodeId
    since: int
    """The newest `since` of its feeds."""
    bytes: int
    """The bytes of the state that it was sent."""
    followed_bytes: int
    """The bytes of the reduced gradients that it was sent since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconsider:
    """The reporter sees that no more nodes come for now, or that a better layout exists:
    reconfigure for the nodes that are there, if another layout suits them better."""

    reporter: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesReleased:
    """The launcher gives these nodes back, since they cost more than they bring. What they hold
    goes to the nodes that stay before they leave."""

    reporter: str
    nodes: tuple[NodeId, ...]
    reason: str
    keep: int = 0
    """At least so many nodes must stay, since others may have left meanwhile; 0: one whole
    pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled:
    """A member that has begun `step` in this era waits in vain: no node is known to be lost, and no
    message comes."""

    node: NodeId
    era: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The time that a node needs for one microbatch: forward and backward of all that it owns."""

    node: NodeId
    microbatch_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceMeasured:
    """How fast the members of this era are, from what they report about themselves."""

    reporter: str
    era: int
    paces: tuple[Pace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a node does its work; 1 is the speed that is expected for such work."""

    node: NodeId
    speed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedsMeasured:
    """How fast owners are, independent of what they own, from what they report about themselves."""

    reporter: str
    era: int
    speeds: tuple[Speed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveDue:
    """A member finds that another step would end too late: state without a home could not be stored
    any more before the nodes that hold it are taken."""

    node: NodeId
    since: int
    """That of the emergency."""
    at_once: bool
    """Whether the present step would end too late as well, so that all must stop where they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSaved:
    """A node has stored a stage's state as it was before `step`. In an emergency `stage` is the
    number of the part."""

    node: NodeId
    step: int
    era: int
    stage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDone:
    """The node that was told to complete the checkpoint of `step` has done so."""

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
    """The files of the checkpoint of `step` are not what was written."""

    node: NodeId
    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyProposed:
    """The reporter has stored the strategy with this hash, by which parameters could be
    synchronised from some step on."""

    reporter: str
    hash: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyReady:
    """The answer to a proposal: the node has the strategy, and does nothing of a step that is
    `MARGIN` beyond `begun` until it knows what is decided."""

    node: NodeId
    since: int
    """That of the proposal."""
    begun: int
    """The last step that any slot or replica here has begun; -1: none."""
    oldest: int
    """The oldest step that any of them is in."""
    refused: str = ""
    """Why the node cannot use the strategy; then it promises nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRefilled:
    """The store had lost the run, and `reporter` has refilled it with what the members had read."""

    reporter: str


Event: TypeAlias = (
    Attested
    | NodeJoined
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
    | EvaluationDone
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
    | StrategyProposed
    | StrategyReady
    | StoreRefilled
)
