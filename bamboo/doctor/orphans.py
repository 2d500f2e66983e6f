"""The check that only members of live runs are billed. It says what else is, since when, for how
much, and the command that ends it.

Rule: it asks the account by tag and the runs of this home for their members; it ends nothing.
"""

import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from bamboo import wiring
from bamboo.config.account import account_defaults
from bamboo.config.catalogue import load_catalogue
from bamboo.config.tree import JobConfig
from bamboo.doctor.checks import Check, Finding, Result
from bamboo.errors import BambooError, InputError
from bamboo.ids import InstanceId, RunId
from bamboo.planner.prices.auxiliary import HOURS_PER_MONTH
from bamboo.quantities import count, usd
from bamboo.runs import lock, run_folder
from bamboo.runs.run_folder import RunFolder, job_of
from bamboo.sites.account.ending import account_regions
from cloud.orphans import Known, Orphan, orphans
from cloud.provider import HeldKind, Market, Provider

JOIN_S = 900.0
"""An instance may take so long until its node joins, drivers and wheel included, or longer where a
job says so."""


def orphans_check(
    regions: Sequence[str],
    *,
    account: Callable[..., Provider] = wiring.account,
    now: Callable[[], float] = time.time,
) -> Check:
    """The check of these regions; by default those of this home's runs, or the default one."""
    asked = tuple(regions) or account_regions() or (JobConfig().cloud.region,)

    def ask() -> Finding:
        known = known_runs()
        found = [
            (region, orphan, usd_per_hour)
            for region in asked
            for orphan, usd_per_hour in _priced(region, known, account, now_s=now())
        ]
        where = ", ".join(asked)
        if not found:
            sentence = f"nothing bills in {where} that is no member of a live run"
            sentence += _checks(known) + _stack(asked)
            return Finding(result=Result.GOOD, sentence=sentence)
        total = sum(price or 0.0 for _, _, price in found)
        unpriced = " and what has no price here" if None in (p for _, _, p in found) else ""
        return Finding(
            result=Result.FAULT,
            sentence=f"{count(len(found), 'orphan')} in {where}, {usd(total)}/h{unpriced}",
            remedy="run the commands above; they end a whole run, and nothing else",
            lines=tuple(_line(*one) for one in found),
            rows=tuple(_row(*one) for one in found),
        )

    return Check(name="orphans", ask=ask, after="credentials")


def known_runs() -> Known:
    """The runs of this home: the members of live ones, and the ones that have ended; their checks
    on rented machines count as runs of their own."""
    live: dict[RunId, frozenset[InstanceId] | None] = {}
    checks: dict[RunId, bool] = {}
    ended = []
    for folder in run_folder.all_runs(run_folder.home()):
        if folder.receipt.exists():
            ended.append(folder.id)
        else:
            live[folder.id] = _members(folder)
        checks |= {one.id: _goes_on(one) for one in run_folder.checks_of(folder)}
    return Known(live=live, ended=frozenset(ended), checks=checks)


def _goes_on(check: RunFolder) -> bool:
    """Whether a check has a launcher; another user's may have one."""
    try:
        return not lock.is_free(check)
    except InputError:
        return True


def _stack(regions: Sequence[str]) -> str:
    """A sentence on the stack of the account file, which is billed too and is not an orphan."""
    from bamboo.sites.account.standing import standing_costs

    named = account_defaults()
    if "bucket" not in named or named.get("region") not in regions:
        return ""
    return f"; its stack bills {standing_costs()}"


def _checks(known: Known) -> str:
    """A sentence on the checks that go on, which are billed too."""
    names = sorted(name for name, goes_on in known.checks.items() if goes_on)
    return f" or of a check that goes on: {', '.join(names)}" if names else ""


def _join_s() -> float:
    """The longest time that a run of this home allows its instances to join."""
    longest = JOIN_S
    for folder in run_folder.all_runs(run_folder.home()):
        with suppress(InputError):
            job = job_of(folder)
            longest = max(longest, job.cluster.forming_timeout_s + job.cloud.boot_s)
    return longest


def _members(folder: RunFolder) -> frozenset[InstanceId] | None:
    from bamboo.runs.live import live_store

    try:
        with live_store(folder) as store:
            state = wiring.driver(store, "doctor").state()
    except BambooError:
        return None
    return frozenset(node.instance for node in state.nodes if node.status.live)


def _priced(
    region: str, known: Known, account: Callable[..., Provider], *, now_s: float
) -> list[tuple[Orphan, float | None]]:
    provider = account(region, stack="")
    found = orphans(provider.held(None), known, now_s=now_s, join_s=_join_s())
    pools = [one.held.pool for one in found if one.held.pool is not None]
    catalogue = load_catalogue(region)
    prices: dict[object, float] = {}
    if pools:
        spot = account(
            region,
            instance_types=sorted({pool.instance_type for pool in pools}),
            zones=sorted({pool.zone for pool in pools}),
        )
        prices = {offer.pool: offer.usd_per_hour for offer in spot.offers()}
    disk = catalogue.auxiliary.get("disk")
    priced: list[tuple[Orphan, float | None]] = []
    for one in found:
        price: float | None = None
        pool = one.held.pool
        if pool is not None and pool.market is Market.ON_DEMAND:
            price = catalogue.on_demand_prices().get(pool.instance_type)
        elif pool is not None:
            price = prices.get(pool)
        elif one.held.kind is HeldKind.VOLUME and disk is not None:
            price = one.held.gib * disk.usd / HOURS_PER_MONTH
        elif one.held.kind is not HeldKind.VOLUME:
            price = 0.0  # a launch template costs nothing, only what it starts
        priced.append((one, price))
    return priced


def _end_command(region: str, orphan: Orphan) -> str:
    """The command, with the account file of the orphan's stack: launchers end nothing of
    another."""
    held, own = orphan.held, wiring.stack_in(region)
    command = f"bamboo stop {held.run} --region {region}"
    if not own or own == held.stack:
        return command
    return with_account_of(held.stack, command)


def with_account_of(stack: str, command: str) -> str:
    """A line for a shell: the command with the account file of that stack, or without one ("")."""
    file = f"account file of stack {stack}" if stack else "none"
    return f"BAMBOO_CONFIG={shlex.quote(file)} {command}"


def _line(region: str, orphan: Orphan, price: float | None) -> str:
    held = orphan.held
    what = str(held.pool) if held.pool is not None else f"{held.gib} GiB" if held.gib else ""
    cost = f"{usd(price)}/h" if price is not None else "no price known"
    words = [f"{held.kind} {held.id}", what, f"since {_iso(held.since_s)}", cost, orphan.why]
    return f"{', '.join(word for word in words if word)}: {_end_command(region, orphan)}"


def _row(region: str, orphan: Orphan, price: float | None) -> dict[str, object]:
    held = orphan.held
    return {
        "kind": held.kind,
        "id": held.id,
        "run": held.run,
        "region": region,
        "state": held.state,
        "pool": None if held.pool is None else str(held.pool),
        "since": _iso(held.since_s),
        "usd_per_hour": price,
        "why": orphan.why,
        "command": _end_command(region, orphan),
    }


def _iso(at_s: float | None) -> str:
    if at_s is None:
        return "a time not told"
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")
