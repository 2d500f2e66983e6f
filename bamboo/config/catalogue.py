"""Reads dated tables: those of the installation (GPU instance types, GPUs, how often types are
interrupted), and the catalogue that `bamboo prices --refresh` writes beside the runs.

Rule: all prices come from `load_catalogue`, which takes of each the one seen later. A damaged
catalogue of the user is refused by name and never skipped, because a plan that silently fell back
to older prices would show dollars that nobody can explain.
"""

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import cache
from importlib import resources
from pathlib import Path

from bamboo.config.home import home
from bamboo.errors import InputError
from bamboo.named_files import read_bounded
from bamboo.planner.origin import last_moment
from bamboo.planner.prices.catalogue import Catalogue, catalogue_from, parse_catalogue
from bamboo.planner.prices.refreshed import newest
from bamboo.planner.profiles.gpus import GpuTable, parse_gpus
from bamboo.planner.risks.hazards import Bands, parse_bands
from bamboo.value import check_seen

FOLDER = "prices"
"""In `$BAMBOO_HOME`, beside the runs; one file per region."""
REMEDY = "delete it, or write it again with `bamboo prices --refresh`"


def load_catalogue(region: str | None = None) -> Catalogue:
    """The prices of a region, by default that of the installed catalogue: of each the newest of the
    installed catalogue and the user's. Without a user's catalogue of the region the installed
    prices are used for it. On-demand prices are the installed ones either way, because no refresh
    asks for them. The catalogue knows both, and `Catalogue.sources` says so.

    Raises InputError when the user's catalogue is damaged, ValueError when the installed one is.
    """
    installed = installed_catalogue()
    wanted = region or installed.region
    own = read_catalogue(user_catalogue(wanted))
    today = present_day()
    if own is None:
        asked = "" if wanted == installed.region else wanted
        return replace(installed, today=today, asked=asked)
    if own.region != wanted:
        raise _damaged(user_catalogue(wanted), f"it is of {own.region}")
    fixed = "" if own.region == installed.region else installed.region
    return replace(newest(installed, own), today=today, on_demand_region=fixed)


def user_catalogue(region: str) -> Path:
    """The path of a region's refreshed catalogue."""
    return home() / FOLDER / f"{region}.json"


def read_catalogue(path: Path, *, remedy: str = REMEDY) -> Catalogue | None:
    """The catalogue in a JSON file; None if the file does not exist. Raises InputError, with the
    remedy, if it cannot be read."""
    try:
        text = read_bounded(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; {remedy}") from error
    except ValueError as error:
        raise _damaged(path, str(error), remedy) from error
    try:
        found = catalogue_from(json.loads(text), file=str(path))
        _refuse_the_future(found)
        return found
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error), remedy) from error


@cache
def installed_catalogue() -> Catalogue:
    """The catalogue of this release; read once. Raises ValueError when the file is damaged."""
    return parse_catalogue(_text("catalogue.toml"))


@cache
def load_gpus() -> GpuTable:
    """The table of GPUs; read once. Raises ValueError when the installed file is damaged."""
    return parse_gpus(_text("gpus.toml"))


@cache
def load_bands() -> Bands:
    """The published bands of interruptions; read once. Raises ValueError when the installed file is
    damaged."""
    return parse_bands(_text("interruptions.toml"))


def present_day() -> date:
    """Today in UTC, by the clock of this machine."""
    return datetime.now(UTC).date()


def _refuse_the_future(catalogue: Catalogue) -> None:
    """Raises ValueError for a price with a date in the future."""
    seen = [catalogue.taken, catalogue.on_demand_seen, catalogue.spot_seen]
    for kind in catalogue.types.values():
        seen += [one.seen for one in (kind.on_demand_from, kind.spot_from) if one is not None]
    seen += [price.origin.seen for price in catalogue.auxiliary.values()]
    seen += [quota.origin.seen for quota in catalogue.quotas.values()]
    today = present_day()
    for when in filter(None, seen):
        check_seen(last_moment(when), today=today, said=when)


def _damaged(path: Path, why: str, remedy: str = REMEDY) -> InputError:
    return InputError(f"{path} is damaged: {why}; {remedy}")


def _text(name: str) -> str:
    return resources.files("bamboo.planner").joinpath(name).read_text(encoding="utf-8")
