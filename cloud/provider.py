"""The contract between the fleet and whoever sells instances: values, typed errors, one Protocol.

What is expected to fail is a value: a launch answers with what started and with what was refused,
and why, per request, because a real cloud does both at once. Errors are raised only when a call
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
    """Life of an instance, in its order. `stopped` does not occur: nothing here stops one."""

    PENDING = "pending"
    RUNNING = "running"
    SHUTTING_DOWN = "shutting-down"
    TERMINATED = "terminated"

    @property
    def live(self) -> bool:
        return self in (InstanceState.PENDING, InstanceState.RUNNING)


class RefusalKind(StrEnum):
    """pool-out: this pool has nothing now, another may · throttled: ask later · refused: the
    request itself is wrong or not allowed, asking again changes nothing."""

    POOL_OUT = "pool-out"
    THROTTLED = "throttled"
    REFUSED = "refused"


class CloudThrottled(BambooError):
    """The cloud asks for fewer calls; the caller waits and tries again."""


class CloudUnavailable(BambooError):
    """The cloud did not answer within the deadline; whether it acted is not known."""


class CloudRefused(InputError):
    """The cloud refuses the call as such: credentials, permissions, a parameter."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """A wish for up to `count` instances of one pool.

    The same `token` never starts a second set: a call whose answer was lost is simply repeated.
    `expires_at_s` (Unix) goes into a tag: whoever finds the instance later knows that it is stale.
    """

    run: RunId
    pool: Pool
    count: int
    token: str
    expires_at_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """An instance that was started, with the token that asked for it."""

    instance: InstanceId
    pool: Pool
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A wish that was not granted, `missing` instances of it."""

    spec: LaunchSpec
    kind: RefusalKind
    code: str
    message: str
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAnswer:
    """What came of a launch: both may be non-empty."""

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


class Provider(Protocol):
    """A seller of instances. Every call ends within the implementation's deadlines.

    All raise CloudThrottled, CloudUnavailable or CloudRefused when there is no usable answer;
    `launch` does so only when none of its wishes was answered.
    """

    def launch(self, specs: Sequence[LaunchSpec]) -> LaunchAnswer:
        """Ask for instances, in the given order."""

    def describe(self, run: RunId) -> tuple[Observed, ...]:
        """Every instance of the run that the cloud still knows, ended ones included, by id."""

    def terminate(self, instances: Sequence[InstanceId]) -> None:
        """End instances; one that has ended already, or that the cloud has forgotten, is fine."""

    def offers(self) -> tuple[Offer, ...]:
        """The pools that may be used, with their prices, cheapest first, ties by pool."""
