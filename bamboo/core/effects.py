"""What must be done after a decision, as values.

Rule: each effect names its addressee, and only the addressee performs it: once, on first reading
the version that carries it, so never before the decision is committed.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from bamboo.ids import InstanceId, NodeId
from bamboo.topology.slots import Slot

Fleet: TypeAlias = Literal["fleet"]
"""The addressee that may start and end instances: the launcher."""
FLEET: Fleet = "fleet"

Others: TypeAlias = Literal["others"]
"""All nodes but the one that the effect is about. It is one effect, however many nodes there
are."""
OTHERS: Others = "others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """To each member: the assignment stands; connect to all members and train from step 0."""

    to: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote:
    """To the successor: you own `slot` now, with the state of your replica."""

    to: NodeId
    slot: Slot
    victim: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """To all nodes but `owner`: it owns `slot` now; send it again what your stash keeps for the
    slot."""

    to: Others
    slot: Slot
    owner: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """To a node with a notice: stop at the next step boundary, and report HandedOver when your
    shadows have all your state."""

    to: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """To a draining node: no shadow of yours stays, so disregard Drain and train on until the cloud
    takes the instance."""

    to: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """To a node that is decided gone, if it reads this: change nothing and exit."""

    to: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldForStop:
    """To each member: report StopReady with the last step that you have begun, and begin no
    other."""

    to: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAt:
    """To each member: finish `step`, write the final state, and report NodeFinished."""

    to: NodeId
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreeBoundary:
    """To each node: report BoundaryReady with the last step that you have begun, and begin no
    other."""

    to: NodeId
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuiesceAfter:
    """To each node: finish `step`, stop, and report Quiesced once your shadows stand there too."""

    to: NodeId
    since: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiesce:
    """To each node: stop where you are and report Quiesced."""

    to: NodeId
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GoOn:
    """To each member: all nodes have what they should hold; train from `step` on."""

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
    """To each live node, or to one that is not needed any more: leave in order."""

    to: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminateInstance:
    """To the fleet: this instance has no member any more; end it."""

    to: Fleet
    instance: InstanceId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminateAll:
    """To the fleet: the run is over; end all its instances."""

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
