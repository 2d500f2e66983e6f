"""The catalogue of GPU instance types as values: what each is, and what it cost when looked at.

Rule: pure; `bamboo.config.catalogue` reads the file. Every price carries the date it was seen, and
a spot price taken from here is a model of one, never a quote.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bamboo.errors import InputError
from bamboo.topology.keys import keyed_seed

SCHEMA_VERSION = 1


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
    """Lowest and highest by zone; None: not in the catalogue."""

    @property
    def gpu_memory_bytes(self) -> int:
        return int(self.gpu_memory_gib * 2**30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Instance types by name, with the dates at which their prices were seen."""

    region: str
    on_demand_seen: str
    spot_seen: str
    types: Mapping[str, InstanceType]

    def find(self, name: str) -> InstanceType:
        """Raises InputError, with the names there are, when the type is not in the catalogue."""
        if name not in self.types:
            raise InputError(
                f"instance type {name!r} is not in the catalogue of {self.on_demand_seen}; "
                f"take one of {', '.join(self.types)}"
            )
        return self.types[name]

    def modelled_spot_usd_per_hour(self, name: str, zone: str) -> float:
        """A spot price for a zone: a fixed point of the type's range that depends on the names
        alone, rounded to 0.0001 USD. It stands for a quote where there is none.

        Raises InputError when the type is unknown or has no spot range.
        """
        kind = self.find(name)
        if kind.spot_usd_per_hour is None:
            raise InputError(
                f'the catalogue has no spot price of {name}; take market = "on-demand", or one '
                f"of {', '.join(n for n, t in self.types.items() if t.spot_usd_per_hour)}"
            )
        low, high = kind.spot_usd_per_hour
        share = keyed_seed(0, f"spot-price/{name}/{zone}") / 2**63
        return round(low + (high - low) * share, 4)

    def spot_prices(
        self, names: Iterable[str], zones: Iterable[str]
    ) -> dict[str, dict[str, float]]:
        """Type -> zone -> modelled USD per hour; types without a spot range are left out."""
        zones = tuple(zones)
        return {
            name: {zone: self.modelled_spot_usd_per_hour(name, zone) for zone in zones}
            for name in names
            if self.find(name).spot_usd_per_hour is not None
        }

    def on_demand_prices(self) -> dict[str, float]:
        """Type -> USD per hour, of all types."""
        return {name: kind.on_demand_usd_per_hour for name, kind in self.types.items()}


def parse_catalogue(text: str) -> Catalogue:
    """Read the TOML text of a catalogue. Raises ValueError when it is none."""
    raw = tomllib.loads(text)
    if raw.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"the catalogue has schema {raw.get('schema_version')!r}, not 1")
    try:
        types = {name: _instance_type(name, body) for name, body in raw["types"].items()}
        return Catalogue(
            region=str(raw["region"]),
            on_demand_seen=str(raw["on_demand_seen"]),
            spot_seen=str(raw["spot_seen"]),
            types=types,
        )
    except KeyError as error:
        raise ValueError(f"the catalogue lacks the key {error}") from error


def _instance_type(name: str, body: Mapping[str, Any]) -> InstanceType:
    spot = body.get("spot_usd_per_hour")
    kind = InstanceType(
        name=name,
        gpu=str(body["gpu"]),
        gpus=int(body["gpus"]),
        gpu_memory_gib=float(body["gpu_memory_gib"]),
        network_gbps=float(body["network_gbps"]),
        on_demand_usd_per_hour=float(body["on_demand_usd_per_hour"]),
        spot_usd_per_hour=None if spot is None else (float(spot[0]), float(spot[1])),
    )
    low, high = kind.spot_usd_per_hour or (kind.on_demand_usd_per_hour,) * 2
    if not 0 < low <= high <= kind.on_demand_usd_per_hour:
        raise ValueError(f"{name}: spot from {low} to {high} USD/h does not lie below on-demand")
    if min(kind.gpus, kind.gpu_memory_gib, kind.network_gbps) <= 0:
        raise ValueError(f"{name}: GPUs, their memory and the network must be above 0")
    return kind
