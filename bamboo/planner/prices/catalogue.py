"""The catalogue of GPU instance types as values: the facts of each, and its price when last seen.

Rule: pure; `bamboo.config.catalogue` reads the files. Every price carries its date and its source,
and a spot price taken from here is a model of one, never a quote.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from math import isfinite
from typing import Any

from bamboo.errors import InputError
from bamboo.planner.origin import Origin, age_text, last_moment
from bamboo.planner.prices.auxiliary import AuxiliaryPrice
from bamboo.topology.keys import keyed_seed
from bamboo.value import BadPrice, checked_usd

SCHEMA_VERSION = 1
MOST_OF_A_TYPE = 1_000_000
"""GPUs or vCPUs; a larger number is a typing error."""
NO_DISCOUNT_SHARE = 0.9
"""A spot pool at or above this share of the on-demand price has no discount worth an interruption,
and is shown as such. (A pool without any discount shows the on-demand price itself.)"""
MOST = 1e12
"""No figure of a catalogue is larger; sums of larger figures might not be finite."""
_GIB = 2**30
USABLE_SHARE = 0.95
"""The share of a GPU's memory that tensors may take. The rest is left to the driver's context, to
workspaces of kernels and to fragmentation of the allocator: assumed, not measured."""
HOST_SHARE = 0.75
"""The share of a host's memory that the stash, and moments of a replica, may take beside a GPU. The
rest is left to the process, to what is on its way and to a copy for a checkpoint: assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """One instance type; memory is of one GPU, prices are of the whole instance."""

    name: str
    gpu: str
    gpus: int
    gpu_memory_gib: float
    network_gbps: float
    """Baseline, not burst."""
    on_demand_usd_per_hour: float
    spot_usd_per_hour: tuple[float, float] | None
    """Lowest and highest by zone; None: not in the catalogue, or no spot pool at all."""
    vcpus: int | None = None
    """vCPUs that it counts against a quota; None: not in the catalogue."""
    host_memory_gib: float | None = None
    """Memory of the host, of all its GPUs together; None: not in the catalogue."""
    spot_by_zone: Mapping[str, float] = field(default_factory=dict)
    """The price last seen in each zone; empty if only the range is known."""
    on_demand_from: Origin | None = None
    spot_from: Origin | None = None
    """Also set if the cloud was asked and has no pool; None: the cloud was not asked."""
    offered: bool = True
    """False: the region was asked and does not have the type."""

    @property
    def gpu_memory_bytes(self) -> int:
        """Memory of one GPU for tensors: USABLE_SHARE of what it has."""
        return int(self.gpu_memory_gib * USABLE_SHARE * _GIB)

    @property
    def gpu_memory_text(self) -> str:
        """Text such as `21.2 GiB for tensors (of 22.4)`."""
        return f"{self.gpu_memory_bytes / _GIB:.1f} GiB for tensors (of {self.gpu_memory_gib:.3g})"

    @property
    def host_room_bytes(self) -> int:
        """Host memory for tensors beside a GPU: HOST_SHARE of what there is; a PiB where that is
        unknown."""
        known = self.host_memory_bytes
        return 2**50 if known is None else int(known * HOST_SHARE)

    @property
    def host_memory_bytes(self) -> int | None:
        """Memory of the host; None: unknown."""
        return None if self.host_memory_gib is None else int(self.host_memory_gib * _GIB)

    @property
    def idle_gpus(self) -> str:
        """A sentence about GPUs that no node uses; "" if there are none."""
        if self.gpus == 1:
            return ""
        return (
            f"A {self.name} has {self.gpus} GPUs and a node uses one of them: the others are paid "
            "and idle."
        )

    def share_of_on_demand(self, spot_usd_per_hour: float) -> float:
        """A spot price as a share of this type's on-demand price."""
        return spot_usd_per_hour / self.on_demand_usd_per_hour

    def lacks_discount(self, spot_usd_per_hour: float) -> bool:
        """Whether the price reaches NO_DISCOUNT_SHARE of the on-demand price."""
        return self.share_of_on_demand(spot_usd_per_hour) >= NO_DISCOUNT_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownQuota:
    """What an account may run of one quota, in vCPUs."""

    vcpus: float
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Instance types by name, with the dates at which their prices were seen."""

    region: str
    on_demand_seen: str
    spot_seen: str
    types: Mapping[str, InstanceType]
    taken: str = ""
    """When this catalogue was put together; "": unknown."""
    zone_ids: Mapping[str, str] = field(default_factory=dict)
    """Zone name, which differs between accounts -> zone ID, which is the same for all."""
    auxiliary: Mapping[str, AuxiliaryPrice] = field(default_factory=dict)
    quotas: Mapping[str, KnownQuota] = field(default_factory=dict)
    """Quota code -> the account's quota; empty if no account was asked."""
    file: str = "the installed catalogue"
    """The file from which the newest prices were read."""
    asked: str = ""
    """The region for which the prices are used; "": `region`."""
    on_demand_region: str = ""
    """The region of the on-demand prices; "": `region`."""
    today: date | None = None
    """The day on which it was read, for ages; None: ages are not shown."""

    def find(self, name: str) -> InstanceType:
        """Raises InputError, with the known names, when the type is not in the catalogue."""
        if name not in self.types:
            near = difflib.get_close_matches(name, self.types, n=1)
            remedy = f"did you mean {near[0]}? " if near else ""
            raise InputError(
                f"instance type {name!r} is not in the catalogue of {self.on_demand_seen}; "
                f"{remedy}take one of {', '.join(self.types)}"
            )
        return self.types[name]

    def modelled_spot_usd_per_hour(self, name: str, zone: str) -> float:
        """The spot price that is used for a zone: the one last seen there, if zones were asked;
        otherwise a fixed point of the type's range that depends on the names alone. Rounded to
        0.0001 USD. Either way it is a model of the price at launch.

        Raises InputError when the type is unknown, has no spot range, or has no pool in that zone
        that a plan may use (see `bamboo.value`).
        """
        kind = self.find(name)
        if kind.spot_usd_per_hour is None:
            raise InputError(
                f'the catalogue has no spot price of {name}; take market = "on-demand", or one '
                f"of {', '.join(n for n, t in self.types.items() if t.spot_usd_per_hour)}"
            )
        if kind.spot_by_zone and zone not in kind.spot_by_zone:
            raise InputError(
                f"there was no spot pool of {name} in {zone} as of {self.spot_seen_of(kind)}; "
                f"take one of {', '.join(kind.spot_by_zone)}"
            )
        if why := self._left_out(kind, zone):
            raise InputError(f'{why}; take another zone, or market = "on-demand"')
        return round(_spot_in(kind, zone), 4)

    def ceilings(self) -> dict[str, float]:
        """Type -> the upper limit of its spot price, which is its on-demand price. Empty if the
        on-demand prices are of another region, because spot prices of this one may exceed those."""
        return self.on_demand_prices() if self._is_of_here else {}

    @property
    def _is_of_here(self) -> bool:
        """Whether the on-demand prices are those of the region for which they are used."""
        return (self.on_demand_region or self.region) == (self.asked or self.region)

    def _left_out(self, kind: InstanceType, zone: str) -> str:
        """Why a plan does not use the pool of a type that has spot prices; "" if it does."""
        try:
            most = kind.on_demand_usd_per_hour if self._is_of_here else None
            usd = checked_usd(_spot_in(kind, zone), on_demand_usd=most)
            checked_usd(round(usd, 4))
        except BadPrice as error:
            return f"{kind.name} on spot in {zone} is left out: {error}"
        return ""

    def left_out(self, names: Iterable[str], zones: Iterable[str] | None = None) -> tuple[str, ...]:
        """One sentence for each pool of these types and zones (None: all zones seen) that has a
        price but that no plan uses."""
        kinds = [self.types[name] for name in names if name in self.types]
        found = (
            self._left_out(kind, zone)
            for kind in kinds
            if kind.spot_usd_per_hour is not None
            for zone in (kind.spot_by_zone if zones is None else zones)
            if not kind.spot_by_zone or zone in kind.spot_by_zone
        )
        return tuple(dict.fromkeys(filter(None, found)))

    def spot_prices(
        self, names: Iterable[str], zones: Iterable[str]
    ) -> dict[str, dict[str, float]]:
        """Type -> zone -> modelled USD per hour. Types without a spot range are left out, and so
        are zones in which the type has no pool, or one of `left_out`."""
        zones = tuple(zones)
        return {
            name: {
                zone: self.modelled_spot_usd_per_hour(name, zone)
                for zone in zones
                if (not kind.spot_by_zone or zone in kind.spot_by_zone)
                and not self._left_out(kind, zone)
            }
            for name in names
            for kind in (self.find(name),)
            if kind.spot_usd_per_hour is not None
        }

    def on_demand_prices(self) -> dict[str, float]:
        """Type -> USD per hour, for all types."""
        return {name: kind.on_demand_usd_per_hour for name, kind in self.types.items()}

    def on_demand_origin(self, kind: InstanceType) -> Origin:
        """Where and when a type's on-demand price was seen."""
        return kind.on_demand_from or Origin(seen=self.on_demand_seen, source=self.file)

    def spot_seen_of(self, kind: InstanceType) -> str:
        """When a type's spot prices were seen."""
        return kind.spot_from.seen if kind.spot_from else self.spot_seen

    def _elsewhere(self, region: str) -> str:
        """A remark on prices of another region than the one for which they are used."""
        wanted = self.asked or self.region
        return "" if region == wanted else f" in {region}, not in {wanted},"

    def sources(self, names: Iterable[str], *, spot: bool = True) -> str:
        """One line on the prices of some types: when they were seen, their age, whether spot is
        the zones' own price or modelled from a range, the file they were read from, and their
        region if it is not the one asked for."""
        kinds = [self.find(name) for name in names]
        if not kinds:
            return f"no price was used, of those by {self.file}"
        aged = _aged((self.on_demand_origin(k) for k in kinds), self.today)
        said = [f"on-demand{self._elsewhere(self.on_demand_region or self.region)} as of {aged}"]
        priced = [k for k in kinds if k.spot_usd_per_hour is not None] if spot else []
        far = self._elsewhere(self.region)
        for by_zone, words in (
            (True, f"spot{far} as seen"),
            (False, f"spot{far} is modelled from"),
        ):
            origins = [
                k.spot_from or Origin(seen=self.spot_seen, source=self.file)
                for k in priced
                if bool(k.spot_by_zone) is by_zone
            ]
            if origins:
                said.append(f"{words} {_aged(origins, self.today)}")
        return "; ".join(said) + f"; by {self.file}"


def _spot_in(kind: InstanceType, zone: str) -> float:
    """See `Catalogue.modelled_spot_usd_per_hour`; not rounded."""
    if kind.spot_by_zone:
        return kind.spot_by_zone[zone]
    assert kind.spot_usd_per_hour is not None, "a type without a spot range has no spot price"
    low, high = kind.spot_usd_per_hour
    share = keyed_seed(0, f"spot-price/{kind.name}/{zone}") / 2**63
    return low + (high - low) * share


def _aged(origins: Iterable[Origin], today: date | None) -> str:
    """The times at which prices were seen, the oldest first, each once."""
    ordered = sorted({origin.seen: origin for origin in origins}.values(), key=lambda o: o.until)
    if today is None:
        return ", ".join(origin.seen for origin in ordered)
    return ", ".join(f"{o.seen} ({age_text(o.age_days(today))})" for o in ordered)


# ------------------------------------------------------------------------------ reading


def parse_catalogue(text: str) -> Catalogue:
    """Read the TOML text of a catalogue. Raises ValueError for anything else."""
    return catalogue_from(tomllib.loads(text))


def catalogue_from(raw: Any, *, file: str = "the installed catalogue") -> Catalogue:
    """A catalogue from the object of its file, TOML or JSON. Raises ValueError if it is not one."""
    if not isinstance(raw, Mapping):
        raise ValueError("the catalogue is no object")
    if raw.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"the catalogue has schema {raw.get('schema_version')!r}, not 1")
    try:
        catalogue = Catalogue(
            region=_text(raw["region"]),
            on_demand_seen=_text(raw["on_demand_seen"]),
            spot_seen=_text(raw["spot_seen"]),
            types={_text(name): _instance_type(name, b, raw) for name, b in raw["types"].items()},
            taken=_text(raw.get("taken", "")),
            zone_ids={_text(zone): _text(id_) for zone, id_ in raw.get("zone_ids", {}).items()},
            auxiliary={
                _text(name): _auxiliary(name, b) for name, b in raw.get("auxiliary", {}).items()
            },
            asked=_text(raw.get("asked", "")),
            on_demand_region=_text(raw.get("on_demand_region", "")),
            quotas={
                _text(code): _quota(code, body) for code, body in raw.get("quotas", {}).items()
            },
            file=file,
        )
    except KeyError as error:
        raise ValueError(f"the catalogue lacks the key {error}") from error
    except (AttributeError, TypeError, IndexError, OverflowError) as error:
        raise ValueError(f"the catalogue has a value of the wrong kind: {error}") from error
    if not catalogue.types:
        raise ValueError("the catalogue has no types")
    for seen in (catalogue.on_demand_seen, catalogue.spot_seen):
        last_moment(seen)
    if catalogue.taken:
        last_moment(catalogue.taken)
    return catalogue


def _instance_type(name: str, body: Mapping[str, Any], raw: Mapping[str, Any]) -> InstanceType:
    spot, vcpus = body.get("spot_usd_per_hour"), body.get("vcpus")
    host = body.get("host_memory_gib")
    by_zone = {
        _text(zone): _usd(usd, f"{name} on spot in {zone}")
        for zone, usd in body.get("spot_by_zone", {}).items()
    }
    fixed = _usd(body["on_demand_usd_per_hour"], f"{name} on demand")
    # A price that was asked of a zone is kept, and is checked where it is used. A range must show
    # a discount.
    most = None if by_zone else fixed
    kind = InstanceType(
        name=name,
        gpu=_text(body["gpu"]),
        gpus=_count(body["gpus"]),
        gpu_memory_gib=_number(body["gpu_memory_gib"]),
        network_gbps=_number(body["network_gbps"]),
        on_demand_usd_per_hour=fixed,
        spot_usd_per_hour=None
        if spot is None
        else (_usd(spot[0], f"{name} on spot", most), _usd(spot[1], f"{name} on spot", most)),
        vcpus=None if vcpus is None else _count(vcpus),
        host_memory_gib=None if host is None else _number(host),
        spot_by_zone=by_zone,
        on_demand_from=_origin(body, raw, "on_demand"),
        spot_from=_origin(body, raw, "spot") if "spot_seen" in body or spot is not None else None,
        offered=bool(body.get("offered", True)),
    )
    zoned = by_zone.values()
    if zoned and kind.spot_usd_per_hour != (min(zoned), max(zoned)):
        raise ValueError(f"{name}: the range of its spot prices is not that of its zones")
    if kind.spot_usd_per_hour is not None and kind.spot_usd_per_hour[0] > kind.spot_usd_per_hour[1]:
        low, high = kind.spot_usd_per_hour
        raise ValueError(f"{name}: spot from {low} to {high} USD/h is no range")
    known = (kind.gpus, kind.gpu_memory_gib, kind.network_gbps, kind.vcpus, kind.host_memory_gib)
    if any(figure is not None and figure <= 0 for figure in known):
        raise ValueError(
            f"{name}: GPUs, their memory, that of the host and the network are above 0"
        )
    return kind


def _origin(body: Mapping[str, Any], raw: Mapping[str, Any], market: str) -> Origin:
    """The origin of a type's own price, or that of the whole file."""
    seen, source = (_text(body.get(f"{market}_{k}", raw.get(f"{market}_{k}", ""))) for k in _KEYS)
    return Origin(seen=seen, source=source)


_KEYS = ("seen", "source")


def _auxiliary(name: str, body: Mapping[str, Any]) -> AuxiliaryPrice:
    return AuxiliaryPrice(
        usd=_usd(body["usd"], f"auxiliary.{name}"),
        unit=_text(body["unit"]),
        what=_text(body["what"]),
        origin=Origin(seen=_text(body["seen"]), source=_text(body["source"])),
    )


def _quota(code: str, body: Mapping[str, Any]) -> KnownQuota:
    origin = Origin(seen=_text(body["seen"]), source=_text(body["source"]))
    known = KnownQuota(vcpus=_number(body["vcpus"]), origin=origin)
    if known.vcpus < 0:
        raise ValueError(f"quotas.{code}: {known.vcpus} vCPUs are below 0")
    return known


def _usd(value: Any, what: str, most: float | None = None) -> float:
    try:
        return checked_usd(value, on_demand_usd=most)
    except BadPrice as error:
        raise ValueError(f"{what}: {error}") from error


def _text(value: Any) -> str:
    """Text for a terminal: without control characters or anything that cannot be encoded."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{value!a:.80} is no text that could be shown")
    return value


def _count(value: Any) -> int:
    count = int(value)
    if count > MOST_OF_A_TYPE:
        raise ValueError(f"{_number(value):g} is no number of one instance that could be used")
    return count


def _number(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not isfinite(number) or abs(number) > MOST:
        raise ValueError(f"{value!r} is no number that could be used")
    return number
