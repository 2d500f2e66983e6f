"""The prices that plans are made with: reads newer ones from the cloud and keeps them.

Rule: a catalogue is written whole or not at all, and only after the cloud has answered all required
calls. Until then the older catalogue stays in use, and the error says how old it is.
"""

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from bamboo import wiring
from bamboo.asked_files import write_new
from bamboo.config.catalogue import installed_catalogue, load_catalogue, user_catalogue
from bamboo.errors import BambooError, InputError
from bamboo.planner.prices.catalogue import Catalogue
from bamboo.planner.prices.quota import CODES
from bamboo.planner.prices.refreshed import catalogue_json, no_prices, refreshed
from bamboo.ports import PriceSource

PRESENT_S = 3600.0
"""Prices that were read less than this ago count as present."""
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d+")


def checked_region(region: str | None) -> str:
    """The name of a region, by default that of the installed catalogue. Raises InputError."""
    if region is None:
        return installed_catalogue().region
    if not _REGION.fullmatch(region):
        raise InputError(f"{region!r} is no name of a region; give one such as us-east-1")
    return region


def refresh(source: PriceSource, region: str, *, now: datetime) -> tuple[str, ...]:
    """Read the prices of the installed catalogue's types and keep them as the user's catalogue of
    the region. Returns a sentence for each thing that could not be read. A damaged catalogue is
    replaced.

    Raises the cloud's error, or InputError when nothing can be written, with what stays in use.
    """
    base = installed_catalogue()
    at = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        seen = source.read(tuple(base.types), quotas=CODES)
        if not seen.facts:
            raise BambooError(f"EC2 has none of the {len(base.types)} types in {region}")
        catalogue = refreshed(base, seen, at=at, source=f"asked of EC2 in {region}")
        _keep(user_catalogue(region), catalogue)
    except BambooError as error:
        raise type(error)(f"no newer prices: {error}; {_in_use(region)}") from error
    absent = [name for name, kind in catalogue.types.items() if not kind.offered]
    lacking = (f"not offered in {region}: {', '.join(absent)}",) if absent else ()
    return (*lacking, *seen.left_out, *no_prices(seen).values(), *seen.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """The prices of a region as they are known today."""

    catalogue: Catalogue
    region: str
    today: date
    notes: tuple[str, ...]
    """What could not be read just now."""


def price_list(region: str | None, *, renew: bool, note: Callable[[str], None]) -> PriceList:
    """The prices of a region, by default that of the installed catalogue; with `renew` read from
    the cloud first. Raises InputError, BambooError."""
    region = checked_region(region)
    now = datetime.now(UTC)
    notes: tuple[str, ...] = ()
    if renew:
        note(f"asking EC2 for what it has in {region}")
        with closing(wiring.price_source(region)) as source:
            notes = refresh(source, region, now=now)
    return PriceList(catalogue=load_catalogue(region), region=region, today=now.date(), notes=notes)


def refresh_for_launch(
    region: str,
    *,
    note: Callable[[str], None],
    source: Callable[[str], PriceSource],
    now: datetime,
) -> None:
    """Refresh prices and quotas before a launch into an account is planned, unless that was done a
    moment ago. What cannot be read is noted, and the launch goes on with the kept catalogue, which
    states its age."""
    path = user_catalogue(region)
    try:
        asked_s = path.stat().st_mtime if path.exists() else 0.0
        if now.timestamp() - asked_s < PRESENT_S:
            return
        note(f"asking EC2 for its prices and your quotas in {region}")
        with closing(source(region)) as asked:
            notes = refresh(asked, region, now=now)
    except BambooError as error:
        notes = (" ".join(str(error).split()),)
    except OSError as error:
        notes = (f"no newer prices: {path}: {error.strerror}",)
    for line in notes:
        note(line)


def _keep(path: Path, catalogue: Catalogue) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{path.parent} cannot be made: {error.strerror}; set BAMBOO_HOME to a folder you may "
            "write"
        ) from error
    write_new(path, catalogue_json(catalogue).encode(), force=True)


def _in_use(region: str) -> str:
    try:
        catalogue = load_catalogue(region)
    except InputError as error:
        return str(error)
    return "still in use: " + catalogue.sources(catalogue.types)
