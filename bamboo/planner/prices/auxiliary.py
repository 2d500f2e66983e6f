"""A plan's costs besides its instances: disks, addresses, object store, coordinator, transfer.

Rule: pure, and the one place where these dollars are counted. Each part has a name and a sentence,
so that every printed total can be explained. All of it is modelled from list prices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bamboo.errors import InputError
from bamboo.planner.origin import Origin
from bamboo.planner.risks.checkpoint_cost import REQUESTS, checkpoint_puts
from bamboo.planner.risks.zones import USD_PER_GB
from bamboo.value import MICRO

HOURS_PER_MONTH = 730.0
"""As AWS counts a month in its own calculator."""
GIB = 2**30
GB = 1e9
STORE = "object store"
"""The name of the object store's part."""
DISK_GIB = 120.0
"""The default root volume of an instance (`volume_gib` of the Terraform stack)."""

COORDINATOR_DISK_GIB = 20.0
"""Assumed: the least that the Terraform stack allows."""

NEEDED = {
    "disk": "GB-month",
    "address": "hour",
    "storage": "GB-month",
    "put": "1,000 requests",
    "get": "1,000 requests",
    "coordinator": "hour",
    "transfer": "GB",
}
"""Name of a price -> what the price is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryPrice:
    """One list price."""

    usd: float
    unit: str
    what: str
    """What it is for, such as `gp3 volumes`."""
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """The quantities that a plan uses in addition to its instances."""

    instances: int
    disk_gib: float = DISK_GIB
    """Disk of each instance."""
    public_addresses: int | None = None
    """None: one for each instance, as the subnets of the Terraform stack assign them."""
    stored_bytes: float = 0.0
    """Most bytes in the object store."""
    puts_per_hour: float = 0.0
    gets_per_hour: float = 0.0
    crossing_bytes_per_hour: float = 0.0
    """Bytes between zones."""
    coordinator: bool = True
    """Whether there is a small on-demand instance as coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the additional costs."""

    name: str
    usd_per_hour: float
    why: str


def auxiliary_parts(prices: Mapping[str, AuxiliaryPrice], extras: Extras) -> tuple[Part, ...]:
    """USD per hour by part, in a fixed order: disks, addresses, object store, coordinator,
    transfer. The coordinator has a disk and an address of its own, counted with it.

    Raises InputError when a price that is needed is not in `prices`.
    """
    lacking = [name for name in NEEDED if name not in prices]
    if lacking:
        raise InputError(
            f"the catalogue has no price of {', '.join(lacking)}; take the installed catalogue"
        )
    each = extras.public_addresses
    addresses = extras.instances if each is None else each
    disk, address = prices["disk"], prices["address"]
    disk_usd = extras.disk_gib * disk.usd / HOURS_PER_MONTH
    stored_gib = extras.stored_bytes / GIB
    requests = (
        extras.puts_per_hour * prices["put"].usd + extras.gets_per_hour * prices["get"].usd
    ) / REQUESTS
    crossing_gb = extras.crossing_bytes_per_hour / GB
    coordinator = prices["coordinator"]
    beside_usd = address.usd + COORDINATOR_DISK_GIB * disk.usd / HOURS_PER_MONTH
    return (
        Part(
            name="disks",
            usd_per_hour=extras.instances * disk_usd,
            why=f"{extras.instances} x {extras.disk_gib:g} GiB of {_words(disk)}",
        ),
        Part(
            name="addresses",
            usd_per_hour=addresses * address.usd,
            why=f"{addresses} x {_words(address)}",
        ),
        Part(
            name=STORE,
            usd_per_hour=stored_gib * prices["storage"].usd / HOURS_PER_MONTH + requests,
            why=f"{stored_gib:.1f} GiB of {_words(prices['storage'])}, and "
            f"{extras.puts_per_hour:,.0f} writes and {extras.gets_per_hour:,.0f} reads an hour",
        ),
        Part(
            name="coordinator",
            usd_per_hour=(coordinator.usd + beside_usd) if extras.coordinator else 0.0,
            why=f"1 x {_words(coordinator)}, with address and disk"
            if extras.coordinator
            else "none",
        ),
        Part(
            name="transfer",
            usd_per_hour=crossing_gb * prices["transfer"].usd,
            why=f"{crossing_gb:,.1f} GB an hour of {_words(prices['transfer'])}",
        ),
    )


def auxiliary_usd_per_hour(parts: Sequence[Part]) -> float:
    """All parts together."""
    return sum(part.usd_per_hour for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The costs of a run in addition to its instances, in whole micro-dollars. The object store is
    not included, because the sizes of a live run's checkpoints are not known here."""

    disks_micro_usd: int = 0
    addresses_micro_usd: int = 0
    coordinator_micro_usd: int = 0
    transfer_micro_usd: int = 0

    @property
    def micro_usd(self) -> int:
        """The sum of all parts."""
        return (
            self.disks_micro_usd
            + self.addresses_micro_usd
            + self.coordinator_micro_usd
            + self.transfer_micro_usd
        )

    @property
    def usd(self) -> float:
        """The sum of all parts, in dollars."""
        return self.micro_usd / MICRO


def beside_run(
    prices: Mapping[str, AuxiliaryPrice],
    *,
    instance_s: float,
    lasted_s: float,
    crossed_bytes: float = 0.0,
) -> Beside:
    """The cost beside instances that existed for `instance_s` in all, at least one of them during
    `lasted_s`, with `crossed_bytes` between zones. Each has a disk and an address, and there is one
    coordinator. Older runs did not keep these prices: a missing price counts as 0, except that of
    bytes."""
    transfer = round(crossed_bytes / GB * USD_PER_GB * MICRO)
    if any(name not in prices for name in NEEDED):
        return Beside(transfer_micro_usd=transfer)

    def micro(name: str, extras: Extras, seconds: float) -> int:
        (part,) = (part for part in auxiliary_parts(prices, extras) if part.name == name)
        return round(part.usd_per_hour * seconds / 3600 * MICRO)

    each, alone = Extras(instances=1, coordinator=False), Extras(instances=0)
    return Beside(
        disks_micro_usd=micro("disks", each, instance_s),
        addresses_micro_usd=micro("addresses", each, instance_s),
        coordinator_micro_usd=micro("coordinator", alone, lasted_s),
        transfer_micro_usd=transfer,
    )


def extras_of(
    *,
    instances: int,
    step_s: float,
    crossing_bytes: float = 0.0,
    checkpoint_bytes: Sequence[float] = (),
    every_steps: int = 0,
    keep: int = 0,
    data_bytes: float = 0.0,
    coordinator: bool = True,
) -> Extras:
    """The quantities of a plan: `crossing_bytes` of a step between zones, `checkpoint_bytes` of
    each stage's part, a checkpoint every `every_steps` steps (0: none, or not in a bucket). `keep`
    checkpoints are kept, and one more exists while it is written. `data_bytes` are of the tokens
    that lie in the object store. Raises InputError for a step
    without duration."""
    if step_s <= 0:
        raise InputError(f"a step of {step_s:g} s: give operations a time above 0")
    steps_per_hour = 3600 / step_s
    written = every_steps > 0 and len(checkpoint_bytes) > 0
    return Extras(
        instances=instances,
        stored_bytes=data_bytes + ((keep + 1) * sum(checkpoint_bytes) if written else 0.0),
        puts_per_hour=checkpoint_puts(checkpoint_bytes) * steps_per_hour / every_steps
        if written
        else 0.0,
        crossing_bytes_per_hour=crossing_bytes * steps_per_hour,
        coordinator=coordinator,
    )


def store_usd_per_hour(
    prices: Mapping[str, AuxiliaryPrice],
    *,
    step_s: float,
    checkpoint_bytes: Sequence[float],
    every_steps: int,
    keep: int,
) -> float:
    """What the checkpoints of a plan cost in the object store, by `extras_of`; 0 if the prices are
    not known."""
    if any(name not in prices for name in NEEDED):
        return 0.0
    extras = extras_of(
        instances=0,
        step_s=step_s,
        checkpoint_bytes=checkpoint_bytes,
        every_steps=every_steps,
        keep=keep,
        coordinator=False,
    )
    (part,) = (part for part in auxiliary_parts(prices, extras) if part.name == STORE)
    return part.usd_per_hour


def _words(price: AuxiliaryPrice) -> str:
    return f"{price.what} at ${price.usd:g} per {price.unit}"
