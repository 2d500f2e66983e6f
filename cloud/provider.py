"""The contract between the fleet and the seller of instances: values, typed errors, one Protocol.

An expected failure is a value: a launch answers with what started and with what was refused, and
why, for each request, because a real cloud does both at once. Errors are raised only when a call
gave no usable answer at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from bamboo.errors import BambooError, InputError
from bamboo.ids import InstanceId, RunId, ZoneId


class Market(StrEnum):
    """How an instance is bought."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


class InstanceState(StrEnum):
    """Life of an instance, in order. `stopped` does not occur, because nothing here stops one."""

    PENDING = "pending"
    RUNNING = "running"
    SHUTTING_DOWN = "shutting-down"
    TERMINATED = "terminated"

    @property
    def live(self) -> bool:
        return self in (InstanceState.PENDING, InstanceState.RUNNING)


class RefusalKind(StrEnum):
    """pool-out: this pool gives nothing now, another may · throttled: ask later · refused: the
    request itself is wrong or not allowed, repeating it changes nothing."""

    POOL_OUT = "pool-out"
    THROTTLED = "throttled"
    REFUSED = "refused"


class CloudThrottled(BambooError):
    """The cloud throttles; the caller waits and tries again."""


class CloudUnavailable(BambooError):
    """The cloud did not answer within the deadline; whether it acted is not known."""


class WishHeard(CloudUnavailable):
    """The cloud has seen the token of this wish with other arguments. Only the tags show what the
    wish did; repeating it has no use."""


class CloudRefused(InputError):
    """The cloud refuses the call itself: credentials, permissions, a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Pool:
    """Where capacity comes from: one instance type, in one zone, on one market."""

    instance_type: str
    zone: ZoneId
    market: Market

    def __str__(self) -> str:
        return f"{self.market.value} {self.instance_type} in {self.zone}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A pool and its price at present."""

    pool: Pool
    usd_per_hour: float
    speed: float = 1.0
    """Speed of a node of this type, relative to a node of speed 1; 1 where it is unknown."""

    @property
    def usd_per_speed(self) -> float:
        """The price of work: offers are ranked by it, cheapest first."""
        return self.usd_per_hour / self.speed


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """A wish for up to `count` instances of one pool, or, where there are `alternatives`, of any of
    these pools together; all are of one market. The order is the caller's preference.

    The same `token` never starts a second set, so a call whose answer was lost is simply repeated.
    `expires_at_s` (Unix) goes into a tag, which shows later that the instance is stale.
    """

    run: RunId
    pool: Pool
    count: int
    token: str
    expires_at_s: int
    alternatives: tuple[Pool, ...] = ()

    @property
    def pools(self) -> tuple[Pool, ...]:
        return (self.pool, *self.alternatives)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """An instance that was started, with the token that asked for it."""

    instance: InstanceId
    pool: Pool
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A wish that was not granted in `pool`: `missing` instances of it were not started."""

    spec: LaunchSpec
    pool: Pool
    kind: RefusalKind
    code: str
    message: str
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAnswer:
    """The result of a launch; both may be non-empty."""

    launched: tuple[Launched, ...]
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """An instance of the run as the cloud shows it. `interrupted`: the cloud took it."""

    instance: InstanceId
    pool: Pool
    state: InstanceState
    launched_at_s: float
    token: str
    interrupted: bool
    expires_at_s: float | None = None
    """From its tag; None: it has none."""
    ended_at_s: float | None = None
    """Unix time; None: it has not ended, or the cloud does not say when."""


class HeldKind(StrEnum):
    """What may go on costing money, in the order of release: first what starts instances by itself,
    last what outlives them."""

    FLEET = "fleet"
    SPOT_REQUEST = "spot-request"
    INSTANCE = "instance"
    VOLUME = "volume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Something in the account that carries the tag of a run and has not ended."""

    kind: HeldKind
    id: str
    run: RunId
    state: str
    """In the cloud's words."""
    since_s: float | None
    """Unix time; None: the cloud does not say."""
    expires_at_s: float | None = None
    """From its tag; None: it has none."""
    pool: Pool | None = None
    """Set for an instance."""
    gib: int = 0
    """Set for a volume."""
    attached_to: str = ""
    """The instance that a volume is deleted with; empty: none, it is left behind."""
    stack: str = ""
    """From its tag; empty: it has none."""
    standing: bool = False
    """A request or fleet that may still start instances."""


class Provider(Protocol):
    """A seller of instances. Every call ends within the implementation's deadlines.

    All raise CloudThrottled, CloudUnavailable or CloudRefused when there is no usable answer;
    `launch` does so only when none of its wishes was answered.
    """

    @property
    def several_pools(self) -> bool:
        """Whether a wish may have alternatives."""

    def launch(self, specs: Sequence[LaunchSpec]) -> LaunchAnswer:
        """Request instances, in the given order. A wish whose instances have ended since gives
        none. Raises WishHeard as well."""

    def describe(self, run: RunId) -> tuple[Observed, ...]:
        """Every instance of the run that the cloud still knows, ended ones included, by id."""

    def terminate(self, instances: Sequence[InstanceId]) -> tuple[InstanceId, ...]:
        """End instances; one that has ended already is no error. Returns those that the cloud does
        not know: it has forgotten them, or does not show them yet, and then did not end them."""

    def prolong(self, instances: Sequence[InstanceId], *, expires_at_s: int) -> None:
        """Let these exist until then (Unix); one that has ended is no error."""

    def offers(self) -> tuple[Offer, ...]:
        """The pools that may be used, with their prices, the cheapest per speed first."""

    def held(self, run: RunId | None) -> tuple[Held, ...]:
        """What a run, or any run (None), has that has not ended, in the order of HeldKind, by
        id."""

    def release(self, held: Sequence[Held]) -> None:
        """Release these: requests are cancelled, fleets deleted, instances ended, volumes that are
        attached to nothing deleted (the others are deleted with their instance). What has ended
        already is no error."""


def cheapest_first(offers: Sequence[Offer], zones: Sequence[str]) -> tuple[Offer, ...]:
    """By price per speed, then by the order of the zones, then by type."""
    order = {zone: index for index, zone in enumerate(zones)}
    return tuple(
        sorted(offers, key=lambda o: (o.usd_per_speed, order[o.pool.zone], o.pool.instance_type))
    )
