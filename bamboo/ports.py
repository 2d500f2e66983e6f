"""The seams of the system, as Protocols: every implementation passes the same contract suite.

A port knows values only. Bytes stay bytes here, tensors are buffers with a dtype and a shape, and
every call that can block has a deadline and a named outcome.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from bamboo.ids import InstanceId, NodeId, ZoneId
from bamboo.topology.slots import Slot

Told: TypeAlias = Callable[[int, int], None]
"""Is told of the progress of a long piece of work: (done, of all), in a unit of the work's own."""
Note: TypeAlias = Callable[[str], None]
"""Is told, in a line for a person, what takes a while."""

# ---------------------------------------------------------------- control plane: the store


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state document as stored, with the store's own clock and identity."""

    version: int
    state: str
    """JSON of `core.state.State`, by `coord.codec`."""
    now_s: float
    """Unix time of the store's clock when it answered."""
    store_id: str
    """Random id drawn when the run was created; a different one means that the store was wiped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One committed transition, in order: `version` is the state's version after it."""

    version: int
    body: str
    """JSON: event, now_s, effects, reason, hash of the state after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The last beat of a node: its payload (JSON, with a growing `progress`) and when it came."""

    payload: str
    beaten_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """What members have offered to a store that has lost the run."""

    here: bool
    """The run exists in the store; no offer is needed."""
    version: int
    """The highest version that was offered; -1: no offer."""
    best: str
    """The offer of that version, once the time for offers is over; "" before."""
    now_s: float
    """The store's time."""


class Store(Protocol):
    """One run's document, log, leases and record streams. Safe to use from several threads.

    Every method raises `errors.StoreUnavailable` when no answer comes within the store's deadline
    (a few seconds, given at construction), and never blocks longer than that plus its own timeout.
    """

    def create(self, *, state: str, entry: str, documents: Mapping[str, str]) -> bool:
        """Create the run at version 0 with its first log entry and its fixed documents (`job`,
        `strategy`, `data`, `limits`, for tcp `keys`). False, and no change, when it exists."""

    def read(self) -> Snapshot:
        """The current state. Raises `errors.InputError` when the run does not exist."""

    def document(self, name: str) -> str:
        """A fixed document, given to `create` or added since. Raises `errors.InputError` when there
        is none."""

    def documents(self) -> Mapping[str, str]:
        """All fixed documents; empty when there are none."""

    def add_document(self, name: str, text: str) -> None:
        """Add a fixed document; one of that name that is there stays as it is. Raises
        `errors.InputError` when the run does not exist."""

    def commit(self, *, expected_version: int, state: str, entry: str, store_id: str = "") -> bool:
        """Compare-and-set: state and log entry together become version `expected_version` + 1.
        False, and no change, if the version differs by now, or the store id if one is given."""

    def store_id(self) -> str:
        """The random id of the store's content; "" when the run does not exist."""

    def offer(self, *, version: int, offer: str, lease_s: float) -> Offers:
        """Offer a store without the run what a member knows, as of `version`; "" only asks. The
        store keeps the highest version and takes offers for `lease_s` after the first one."""

    def refill(self, *, state: str, entries: Sequence[Entry], documents: Mapping[str, str]) -> bool:
        """Create the run again, as of its last entry. False, and no change, when it exists."""

    def entries(self, *, after_version: int, timeout_s: float) -> Sequence[Entry]:
        """Log entries above `after_version`, in order. Waits up to `timeout_s` for the first."""

    def beat(self, node: NodeId, payload: str) -> None:
        """Renew the node's lease at the store's present time."""

    def leases(self) -> tuple[float, Mapping[NodeId, Lease]]:
        """The store's time and every lease ever beaten in this run."""

    def append(self, stream: str, record: str) -> str:
        """Append a JSON record to a named stream (`metrics`, `ledger`, `notes`); its id."""

    def records(self, stream: str, *, after_id: str, timeout_s: float) -> Sequence[tuple[str, str]]:
        """Records after an id (`"0"`: from the start) as (id, record), in order; waits up to
        `timeout_s` for the first."""

    def close(self) -> None:
        """Release the connections; further calls raise StoreUnavailable."""


# ---------------------------------------------------------------- checkpoints: the object store


SMALL_BYTES = 2**24
"""More than any manifest has; an object that somebody else put in its place is not read further."""


class ObjectStore(Protocol):
    """Objects by name (parts joined by `/`), as in a bucket. Safe to use from several threads.

    An object appears whole or not at all. Every method raises `errors.StorageUnavailable` when it
    cannot be done within the store's deadline, `errors.StorageFull` when there is no room.
    """

    def put_file(self, name: str, path: Path) -> None:
        """Store a file's content, replacing an object of that name."""

    def put_new(self, name: str, data: bytes) -> bool:
        """Store a small object unless there is one of that name: then False, and no change."""

    def get(self, name: str) -> bytes | None:
        """A small object, or None. Of one beyond SMALL_BYTES, which Bamboo never wrote, only its
        first SMALL_BYTES."""

    def part(self, name: str, begin: int, end: int) -> bytes | None:
        """The bytes of an object from `begin` up to `end`, and no others; None when there is no
        object of that name, fewer when it ends before."""

    def fetch(self, name: str, path: Path) -> bool:
        """Write an object's content to a file; False when there is none of that name."""

    def sizes(self, prefix: str) -> Mapping[str, int]:
        """Bytes of every object whose name begins with `prefix`, by name."""

    def strays(self, prefix: str) -> Collection[str]:
        """Names below `prefix` that killed writers left half written, or that are being written
        now. They can only be passed to `delete`."""

    def delete(self, name: str) -> None:
        """Delete an object or a stray; safe when there is none."""


# ---------------------------------------------------------------- data plane: the transport

MessageKind: TypeAlias = Literal[
    "act",
    "grad",
    "partial",
    "shard",
    "merged",
    "relayed",
    "factors",
    "tie",
    "squares",
    "norm",
    "reduced",
    "eval",
    "sums",
    "ship",
    "ack",
    "pull",
    "state",
    "stand",
    "want",
    "part",
    "ask",
    "copy",
    "follow",
    "taken",
]
YIELDING: frozenset[MessageKind] = frozenset({"ship"})
"""Large messages that no node needs soon. They have a lane of their own between two nodes, so that
messages that training waits for never queue behind them. Each lane keeps its order; there is no
order between lanes."""
AT_REST: frozenset[MessageKind] = frozenset({"pull", "state", "want", "part", "ask", "copy"})
"""State between two steps, and the questions for it. No operation that is under way changes such
state, so these messages wait for none; a node posts them in an order of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageKey:
    """The identity of a message. Two messages with one key carry bitwise the same tensors, so the
    first to arrive is used and later ones are dropped.

    act, grad: activation to, or gradient of the output from, the next stage · partial, shard,
    merged, relayed, factors: the exchange between pipelines · tie: gradient of a tied parameter ·
    squares, norm: clipping · reduced: a whole reduced gradient, copied after a failover · eval,
    sums: activation to the next stage in an evaluation, and what a last stage measured · ship: the
    reduced gradient for a shadow · ack: a shadow stands at `step` · pull, state, stand: the copy of
    a slot's state for a new replica, asked for and sent in chunks, and how far the replica has
    followed · want, part: a layer's state for a new layout, asked for and sent in chunks · ask,
    copy, follow, taken: the prefetch of such state, the layers' part of each reduced gradient
    since, and the norm once its owner takes the step.
    """

    kind: MessageKind
    to: Slot
    source: Slot
    step: int
    index: int = 0
    """Microbatch within the pipeline for act, grad and eval, else a number within the kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A contiguous tensor as bytes. `data` is what the runtime hands over (a memory view)."""

    dtype: str
    shape: tuple[int, ...]
    data: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A message that arrived. `meta` is small JSON-like data beside the tensors."""

    key: MessageKey
    sender: NodeId
    generation: int
    meta: Mapping[str, Any]
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGone:
    """The connection to a member ended; `seen_at_s` is time.monotonic() when it was seen."""

    node: NodeId
    seen_at_s: float


class Transport(Protocol):
    """Messages between members, by node. `poll`, `send` and `reconfigure` belong to one thread.
    Messages from one member to another arrive in the order in which they were sent; the kinds in
    `YIELDING` and all other kinds each have an order of their own.

    A message from a sender that is not a member is dropped, unless it comes from a later
    generation: then it waits for `reconfigure`. So no message of a fenced node is delivered.
    """

    @property
    def sent_bytes(self) -> Mapping[str, int]:
        """Bytes handed over to members, headers included, by kind of message."""

    @property
    def endpoint(self) -> str:
        """Where peers reach this member; bound at construction."""

    def reconfigure(self, *, generation: int, members: Mapping[NodeId, str]) -> None:
        """Connect to new members and drop all others, whose messages are no longer delivered."""

    def send(
        self,
        node: NodeId,
        key: MessageKey,
        buffers: Sequence[Buffer],
        meta: Mapping[str, Any],
        generation: int | None = None,
    ) -> bool:
        """Hand a message over without waiting; False when the node is not a member or is gone.
        The buffers' memory must not change afterwards. `generation`: the one in which the message
        was posted, if it is not the present one."""

    def poll(self, timeout_s: float) -> Sequence[Delivered]:
        """All messages that came from members. Waits up to `timeout_s` for the first; empty if none
        came or another thread called `wake`."""

    def wait_gone(self, timeout_s: float) -> Sequence[PeerGone]:
        """Members whose connection ended without a `reconfigure` that dropped them, each reported
        once. Called by another thread than the one that polls, so that a long operation there does
        not delay the evidence."""

    def wake(self) -> None:
        """Make a waiting `poll` return at once; safe from any thread."""

    def close(self) -> None:
        """Close all sockets without lingering."""


# ---------------------------------------------------------------- the instance, seen from inside


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What an instance knows of itself from its metadata service."""

    instance: InstanceId
    zone: ZoneId
    address: str = ""
    """Numeric address at which other instances reach it; empty: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A preemption notice; `at_s` is the Unix time at which the instance goes."""

    id: str
    """Hash of the notice's content, so that a notice read twice counts as one."""
    at_s: float


class Metadata(Protocol):
    """The metadata service, from inside an instance. Calls answer within 2 s and never raise
    `errors.StoreUnavailable`: an absent service is an absent notice."""

    def identity(self) -> Identity:
        """Raises `errors.InputError` when there is no metadata service."""

    def notice(self) -> Notice | None:
        """The pending preemption notice, or None."""

    def advised(self) -> bool:
        """Whether the cloud advises leaving this instance."""


FENCED_STATUS = 3
"""Exit status of a worker that was fenced: its work since then does not count."""
STORE_AWAY_STATUS = 4
"""Exit status of a worker that could not join because of the store, not because of a fault."""
TAKEN, REFUSED = b"+", b"-"
"""An agent's answer to its worker: whether the store takes the node's writes."""


class WorkerProcess(Protocol):
    """A started worker, seen by its agent."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """None while it runs, else its exit status (negative: the signal)."""

    def kill(self) -> None:
        """SIGKILL; safe when it is gone already."""


class WorkerStarter(Protocol):
    """How an agent starts its worker: a fork of a pre-imported server, or a new interpreter."""

    def start(self, *, config: Mapping[str, str]) -> WorkerProcess:
        """Start `bamboo.runtime.node.worker.main(config)`; `config` is small text to text."""


# ---------------------------------------------------------------- the market: what things cost


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeFacts:
    """The facts that a cloud gives of an instance type; memory is of one GPU."""

    gpu: str
    gpus: int
    gpu_memory_mib: int
    vcpus: int
    network_gbps: float | None
    """Baseline, of all network cards together; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricesSeen:
    """A cloud's answer on one region. A type that is in neither map is not offered there."""

    region: str
    zone_ids: Mapping[str, str]
    """Zone name -> zone ID."""
    facts: Mapping[str, TypeFacts]
    spot: Mapping[str, Mapping[str, float]]
    """Type -> zone -> USD per hour, now."""
    quotas: Mapping[str, float]
    """Quota code -> vCPUs of this account; quotas that it may not read are absent."""
    notes: tuple[str, ...] = ()
    """One sentence for each thing that could not be read."""
    left_out: tuple[str, ...] = ()
    """One sentence for each pool whose price `bamboo.value` rejects."""


class PriceSource(Protocol):
    """A source of a region's prices, types and quotas."""

    def read(self, types: Sequence[str], *, quotas: Sequence[str]) -> PricesSeen:
        """Ask for these types and quotas. The whole call is bounded in time.

        Raises InputError when the cloud refuses (credentials, permissions), BambooError when it
        throttles or does not answer.
        """
        ...

    def close(self) -> None:
        """Release the connection; no further calls."""
        ...
