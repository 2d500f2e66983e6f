"""What must be done, as values. Each names its addressee; only the addressee performs it, once,
on first reading the version that carries it: save, then speak."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from bamboo.ids import InstanceId, NodeId
from bamboo.topology.slots import Slot

Fleet: TypeAlias = Literal["fleet"]
"""The addressee that may start and stop instances: the launcher."""
FLEET: Fleet = "fleet"

Others: TypeAlias = Literal["others"]
"""The addressees that are all nodes but the one that an effect is about: one effect, however many
they are."""
OTHERS: Others = "others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """To each member: the assignment stands, connect to all members and train from step 0."""

    to: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote:
    """To the successor: your replica of `slot` is its owner now."""

    to: NodeId
    slot: Slot
    victim: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """To all but `owner`: it owns `slot` now, send it again what you keep for it."""

    to: Others
    slot: Slot
    owner: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """To a node with a notice: at the next step boundary stop, and say HandedOver when your
    shadows have all of it."""

    to: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """To a draining node: you have nobody to hand over to any more, so take back Drain and go on
    training until the cloud takes the instance."""

    to: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """To a node decided gone, should it read this: change nothing, exit."""

    to: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldForStop:
    """To each member: say StopReady with the last step you have begun, and begin no other."""

    to: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAt:
    """To each member: finish `step`, write the final state, say NodeFinished."""

    to: NodeId
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreeBoundary:
    """To each node: say BoundaryReady with the last step you have begun, and begin no other."""

    to: NodeId
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuiesceAfter:
    """To each node: finish `step`, stop, and say Quiesced once your shadows stand there too."""

    to: NodeId
    since: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiesce:
    """To each node: stop where you are and say Quiesced."""

    to: NodeId
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GoOn:
    """To each member: everybody has what it is to hold; train from `step` on."""

    to: NodeId
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteCheckpoint:
    """To one member: all shards of `step` are stored; write the manifest."""

    to: NodeId
    step: int
    era: int


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """To each live node: the run is over, leave in order."""

    to: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminateInstance:
    """To the fleet: this instance is no member any more, do not pay for it."""

    to: Fleet
    instance: InstanceId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminateAll:
    """To the fleet: the run is over, nothing of it may stay."""

    to: Fleet


Effect: TypeAlias = (
    Start
    | Promote
    | Resend
    | Drain
    | Stay
    | Fence
    | HoldForStop
    | StopAt
    | AgreeBoundary
    | QuiesceAfter
    | Quiesce
    | GoOn
    | CompleteCheckpoint
    | End
    | TerminateInstance
    | TerminateAll
)
