"""`bamboo verify RUN --rent`: a machine of the run's kind is rented, trains the run again, and is
given back.

The check has an id of its own, and with it what a run of one instance has: tags, role, files to
start from, dead-man switch. So whatever ends a run ends it: `bamboo stop ID` and `stop --all`
after a launcher that was killed, and `bamboo doctor --orphans` shows it then. What it did and cost
is in `checks/ID` of the run's folder, beside the lock of its launcher.

Rule: the price is agreed to before anything is made. The machine ends itself at the time that the
price is for, with or without a launcher. It gets all that it reads from the bucket and has no part
in the run: no store (Redis), no lease, no peers. It is told the SHA-256 of each tensor, so the
final state stays where it is.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from bamboo import wiring
from bamboo.agent.check import PROGRESS, VERDICT
from bamboo.billing.money import Rented, beside_body, bill, read_bill_log, rented_in
from bamboo.checkpoint.final import Final, read_final
from bamboo.checkpoint.run_files import put_checked
from bamboo.config.catalogue import load_catalogue
from bamboo.config.resolve import batch_shape, same_semantics
from bamboo.config.tree import JobConfig
from bamboo.coord.attested import known_in
from bamboo.data.sources import read_source
from bamboo.errors import BambooError, BooksUnwritable, InputError, StorageUnavailable
from bamboo.ids import RunId, run_id
from bamboo.jsonl import unwritable
from bamboo.planner.prices.auxiliary import (
    Extras,
    auxiliary_parts,
    auxiliary_usd_per_hour,
    beside_run,
)
from bamboo.planner.prices.catalogue import Catalogue, InstanceType
from bamboo.ports import Note, ObjectStore, Told
from bamboo.quantities import count, duration, size, usd
from bamboo.runs import lock
from bamboo.runs.run_folder import CHECKS, RunFolder, job_of, promised, write_json
from bamboo.runs.run_status import strategy_of
from bamboo.runs.verifying import check_ended
from bamboo.signals import Interrupts
from bamboo.sites.account.account_ready import (
    check_bucket_for_account,
)
from bamboo.sites.account.boot_files import (
    put_code_and_data,
    put_settings,
    remove_boot_files,
    torch_for,
)
from bamboo.sites.account.instances import run_settings
from bamboo.sites.account.run_roles import each, make_role, remove_role
from bamboo.sites.run_logs import bring_logs
from bamboo.telemetry.records import read_metrics
from cloud.ec2.provider import Ec2Provider
from cloud.ending import TERMINATE_DEADLINE_S
from cloud.fleet import Fleet
from cloud.provider import CloudRefused, CloudThrottled, CloudUnavailable, Market, Offer
from cloud.recorder import Recorded

LOG = "cloud.jsonl"
RESULT = "result.json"
"""What a check found, in its folder; the machine's verdict has this or an error, and a name of its
own."""
BOOT_S = 600.0
"""Modelled: an instance boots and installs within so long."""
NEVER_BEGAN_S = 2700.0
"""A boot that hangs is ended after so long, by `infra/deadman.sh`."""
SILENT_S = 4500.0
"""A machine that gives no sign for so long is ended, by `infra/deadman.sh`."""
UNPLANNED_STEP_S = 1.0
"""Of a run of a single step whose plan knew no time of a step; NEVER_BEGAN_S, which each check may
take beside its steps, is much longer."""
SLACK = 2.0
"""A check may take so many times the time that is modelled."""
ENDS_WITHIN_S = 300.0
"""Until an instance whose time is over is off."""
CAPACITY_S = 900.0
"""A launcher waits so long for a machine, and for a cloud that does not answer, before it gives
up. Nothing is paid meanwhile, so the machine's own time begins after it."""
READ_AGAIN_S = 300.0
"""A bucket that does not answer is asked for so long after its machine is gone."""
LOOK_S = 2.0
AGAIN = "`bamboo verify RUN --rent` asks again"
UNTRAINED = "`--samples` and `--decisions` check the run without training it again"

_DAMAGE = (ValueError, KeyError, TypeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A check that could be rented now; nothing was made for it."""

    folder: RunFolder
    job: JobConfig
    check: RunId
    final: Final
    data_digest: str
    torch: str
    catalogue: Catalogue
    provider: Ec2Provider
    offers: tuple[Offer, ...]
    """The cheapest first."""
    step_s: float
    """Of the run, median; as it was planned where it has a single step."""

    @property
    def calm_step_s(self) -> float:
        """Modelled: one machine does the work of all slots, one after the other."""
        cluster = self.job.cluster
        return self.step_s * cluster.stages * max(cluster.pipelines, cluster.max_pipelines)

    @property
    def expected_s(self) -> float:
        """Of the machine, from its start to its verdict; modelled."""
        return BOOT_S + self.final.step * self.calm_step_s

    @property
    def limit_s(self) -> float:
        """After so long the machine ends itself."""
        return NEVER_BEGAN_S + SLACK * self.final.step * self.calm_step_s

    def usd(self, offer: Offer, seconds: float) -> float:
        """What the machine costs for so long, with its disk and address."""
        extras = Extras(instances=1, coordinator=False)
        beside = auxiliary_usd_per_hour(auxiliary_parts(self.catalogue.auxiliary, extras))
        return (offer.usd_per_hour + beside) * seconds / 3600

    def lines(self) -> list[str]:
        """The price, for a person."""
        first = self.offers[0]
        dearest = max(self.offers, key=lambda offer: offer.usd_per_hour)
        most = self.usd(dearest, self.limit_s + ENDS_WITHIN_S)
        else_on = (
            "" if dearest is first else f", or where that has no capacity up to {_priced(dearest)}"
        )
        return [
            f"{self.check}: one machine trains {self.folder.id} again, and is given back",
            f"  {_priced(first)}{else_on}",
            f"  about {usd(self.usd(first, self.expected_s))} for {duration(self.expected_s)} "
            f"(modelled): {duration(BOOT_S)} to boot, {count(self.final.step, 'step')} of "
            f"{duration(self.calm_step_s)}",
            f"  at most {usd(most)}: after {duration(self.limit_s)} the machine ends itself",
        ]


def _priced(offer: Offer) -> str:
    return f"{offer.pool} at {usd(offer.usd_per_hour)}/h"


def check_rented(
    folder: RunFolder, *, agree: Callable[[str], bool], note: Note, told: Told
) -> dict[str, Any] | None:
    """Verify a run on a machine that is rented for it, and return the result with the bill, as
    `rented`; None: `agree` said no. `note` gets the price before, and the bill after. Handles
    signals meanwhile, so the caller is the main thread: an interrupt gives the machine back.

    Raises InputError where there is nothing to compare or nothing to rent; BambooError where the
    cloud took the machine, it ended or its time was over, and where something is left of it."""
    asked = _asked(folder, note)
    for line in asked.lines():
        note(line)
    if not agree("Rent it?"):
        return None
    with Interrupts().listening() as interrupts:
        return _carried_out(asked, interrupts, note=note, told=told)


# ---------------------------------------------------------------- before anything is made


def _asked(folder: RunFolder, note: Note) -> Asked:
    job = job_of(folder)
    if job.cloud.provider == "local":
        raise InputError(
            f"--rent: run {folder.id} was trained on this machine, and only machines of an account "
            "can be rented; leave it out"
        )
    check_ended(folder)
    semantics = strategy_of(folder).semantics
    # A model's own data are made, and compared, where they are used, and so are tokens.
    digest = semantics.data_digest
    if not job.unit and not job.data.is_prepared:
        digest = hashlib.sha256(read_source(job)).hexdigest()
    # The machine that is rented compares the code.
    same_semantics(job, semantics, data_digest=digest, code=semantics.model.get("code"))
    attested = known_in(folder.path, semantics)
    check_bucket_for_account(job)
    catalogue = load_catalogue(job.cloud.region)
    check = run_id(f"{folder.id[:48]}-check-{secrets.token_hex(4)}")
    provider = Ec2Provider.connect(
        settings=run_settings(job, check),
        instance_types=_large_enough(folder, job, catalogue),
        zones=job.cloud.zones,
        markets={Market(job.cloud.market), Market.ON_DEMAND},
        on_demand_usd_per_hour=catalogue.on_demand_prices(),
        ceilings=catalogue.ceilings(),
        note=note,
    )
    offers = provider.offers()
    if not offers:
        raise InputError(f"--rent: no pool of {', '.join(job.cloud.zones)} has a price; ask later")
    asked = Asked(
        folder=folder,
        job=job,
        check=check,
        final=read_final(folder.final),
        data_digest=digest,
        torch=next((str(f.value) for f in attested.numerics if f.name == "torch"), ""),
        catalogue=catalogue,
        provider=provider,
        offers=offers,
        step_s=_step_s(folder),
    )
    if SLACK * asked.calm_step_s > SILENT_S:
        raise InputError(
            f"--rent: one machine takes about {duration(asked.calm_step_s)} for a step (modelled), "
            f"and it would be ended as one that hangs: a check says at each step that it goes on, "
            f"and has {duration(SILENT_S)} for that; {UNTRAINED}"
        )
    return asked


def _large_enough(folder: RunFolder, job: JobConfig, catalogue: Catalogue) -> tuple[str, ...]:
    """The instance types of the run that hold the whole model. A calm run has parameters, moments
    and gradients, and sums of gradients at each height of the reduction tree. Raises InputError."""
    state_bytes = sum(file.stat().st_size for file in folder.final.glob("stage-*.safetensors"))
    gradients = 1 + batch_shape(job).virtual_nodes.bit_length()
    needed_bytes = state_bytes * (3 + gradients) / 3  # three tensors of state for each gradient
    started = [one for one in read_bill_log(folder.cloud) if one["kind"] == "start"]
    # Another type may compute other bits, so one that the run has not had is the last resort.
    names = {str(one["instance_type"]): None for one in started} or job.cloud.instance_types
    kinds = [catalogue.find(name) for name in names]
    fit = tuple(kind.name for kind in kinds if _memory_bytes(kind, job) >= needed_bytes)
    if not fit:
        raise InputError(
            f"--rent: one machine has to hold the whole model, {size(needed_bytes)} and its "
            f"activations, and none of {', '.join(names)} does; {UNTRAINED}"
        )
    return fit


def _memory_bytes(kind: InstanceType, job: JobConfig) -> float:
    if job.cluster.device == "cuda":
        return kind.gpu_memory_bytes
    return inf if kind.host_memory_bytes is None else kind.host_memory_bytes


def _step_s(folder: RunFolder) -> float:
    at_s = [one.at_s for one in read_metrics(folder.metrics) if one.at_s is not None]
    took_s = [after - before for before, after in pairwise(at_s) if after > before]
    planned = promised(folder) or {}
    return median(took_s) if took_s else float(planned.get("step_s") or UNPLANNED_STEP_S)


# ---------------------------------------------------------------- what is agreed to


def _carried_out(asked: Asked, interrupts: Interrupts, *, note: Note, told: Told) -> dict[str, Any]:
    job, check = asked.job, asked.check
    kept = asked.folder.path / CHECKS / check
    recorded = Recorded(asked.provider, kept / LOG, asks_prices=True, note=note)
    fleet = Fleet(
        recorded, run=check, intents=kept / "intents.jsonl", pool_out_s=job.cloud.pool_out_s
    )
    begins = wiring.bucket(wiring.start_url(job, check), region=job.cloud.region)
    results = wiring.bucket(wiring.run_url(job, check), region=job.cloud.region)
    body: dict[str, Any] = {}
    held = _held(RunFolder(id=check, path=kept))
    try:
        try:
            make_role(job, check)
            _put_files(asked, begins, note)
            results.get(VERDICT)  # where that is refused, a verdict would be paid for in vain
            body = _followed(asked, fleet, results, log=kept / LOG, note=note, told=told)
        finally:
            interrupts.start_counting()  # none breaks into what follows
        try:
            write_json(kept / RESULT, body)
        except BooksUnwritable as error:
            note(f"{error}; the verdict is said all the same")
    finally:
        if not body:
            with suppress(BambooError, OSError):
                bring_logs(results, kept / "logs")
        try:
            _give_back(asked, fleet, note)
        except BambooError as error:
            if body:
                raise BambooError(f"{error}; the result is in {kept / RESULT}") from error
            note(str(error))  # the first error is the one to report
        finally:
            receipt = _receipt(asked, recorded, kept / LOG, note)
            held.close()
    return body | {"rented": receipt}


def _held(kept: RunFolder) -> lock.Lock:
    """The launcher's lock of a new check: while it is held, `bamboo doctor` knows that the check
    goes on. Raises BooksUnwritable, InputError."""
    try:
        kept.path.mkdir(parents=True)
    except OSError as error:
        raise unwritable(kept.path, error) from error
    held = lock.take(kept)
    assert held is not None, "its id is new"
    return held


def _put_files(asked: Asked, begins: ObjectStore, note: Note) -> None:
    """What the machine starts from; the settings last, as it begins with them."""
    job = asked.job
    put_checked(begins, asked.folder.path, asked.final)
    settings = put_code_and_data(
        begins,
        job,
        asked.check,
        kept=asked.folder.path,
        shared=wiring.bucket(f"s3://{job.cloud.bucket}", region=job.cloud.region),
        data_digest=asked.data_digest,
        torch=torch_for(job, before=asked.torch),
        note=note,
    )
    put_settings(begins, settings)


def _followed(
    asked: Asked,
    fleet: Fleet,
    results: ObjectStore,
    *,
    log: Path,
    note: Note,
    told: Told,
) -> dict[str, Any]:
    """Rent one machine, once, and wait for its verdict. `log` is what the fleet sees. Raises
    InputError, BambooError."""
    began_s, gone_s = time.time(), inf
    over_s = 0.0
    started = False
    said = {""}

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            note(f"{asked.check}: {text}")

    while True:
        over_s = over_s or time.time() + asked.limit_s
        fleet.end_by(over_s)
        try:
            report = fleet.ensure(1, new=0 if started else 1)
            say("" if started else "; ".join(report.reasons))
            started = started or report.live > 0 or bool(report.launched)
            over_s = over_s if started else 0.0  # where no answer came it may be rented since
            if started and not report.live:
                gone_s = min(gone_s, time.time())
            if (verdict := results.get(VERDICT)) is not None:
                return _read(verdict)
            if gone_s < inf:
                raise BambooError(_why_ended(asked, log))
            if (progress := results.get(PROGRESS)) is not None:
                with suppress(*_DAMAGE):  # the next sign says more
                    told(*map(int, json.loads(progress)))
        except (CloudThrottled, CloudUnavailable, StorageUnavailable) as error:
            say(str(error))
        except CloudRefused as error:
            if not started:
                raise
            say(str(error))  # credentials may be renewed
        if not started and time.time() - began_s > CAPACITY_S:
            raise BambooError(f"no machine was there to rent in {duration(CAPACITY_S)}; {AGAIN}")
        if time.time() > gone_s + READ_AGAIN_S:
            raise BambooError(
                f"the machine of {asked.check} is gone, and the bucket cannot be read, so nothing "
                f"is known; {AGAIN}"
            )
        if started and time.time() > over_s:
            raise BambooError(
                f"the machine had no verdict within {duration(asked.limit_s)}, so nothing is "
                f"known; {AGAIN}"
            )
        time.sleep(LOOK_S)


def _read(verdict: bytes) -> dict[str, Any]:
    """What the machine found. Raises what it found wrong."""
    try:
        said = json.loads(verdict)
        if "error" in said:
            kind = InputError if said["exit_code"] == InputError.exit_code else BambooError
            raise kind(f"on the rented machine: {said['error']}")
        body = dict(said["body"])
        if not isinstance(body["equal"], bool):
            raise TypeError(f"equal is {body['equal']!r}")
    except _DAMAGE as error:
        raise BambooError(f"the rented machine's verdict is damaged: {error}; {AGAIN}") from error
    return body


def _why_ended(asked: Asked, log: Path) -> str:
    if any(one.interrupted for one in _rented(asked, log)):
        return f"the cloud took the machine of {asked.check}, and nothing was compared; {AGAIN}"
    return (
        f"the machine of {asked.check} ended without a verdict; its log is in "
        f"{log.parent / 'logs'}; {AGAIN}"
    )


def _rented(asked: Asked, log: Path) -> list[Rented]:
    return rented_in(
        log,
        on_demand_usd_per_hour=asked.catalogue.on_demand_prices(),
        free_first_hour=asked.job.budget.free_first_hour,
    )


# ---------------------------------------------------------------- afterwards


def _give_back(asked: Asked, fleet: Fleet, note: Note) -> None:
    """End the machine and delete all that was stored for it. Raises BambooError with what is
    left."""
    job, check = asked.job, asked.check

    def machine_and_files() -> None:
        # A machine that may still be there goes on writing, so its files stay for `bamboo stop`.
        fleet.terminate_all(deadline_s=2 * TERMINATE_DEADLINE_S, waiting=note)
        remove_stored(job, check)

    try:
        each(machine_and_files, lambda: remove_role(job, check))
    except BambooError as error:
        raise BambooError(
            f"{error}; `bamboo stop {check} --region {job.cloud.region}` ends what is left"
        ) from error


def remove_stored(job: JobConfig, run: RunId, *, reference: str = "") -> None:
    """Delete what instances of a run start from, and of a check what its machine has written; the
    results of a run stay. `reference`: the store that has its login. Raises BambooError."""
    region = job.cloud.region
    remove_boot_files(
        wiring.bucket(wiring.start_url(job, run), region=region),
        run,
        secrets=wiring.run_secrets(region, job.cloud.stack),
        reference=reference,
        results=wiring.bucket(wiring.run_url(job, run), region=region),
    )


def _receipt(asked: Asked, recorded: Recorded, log: Path, note: Note) -> dict[str, Any]:
    """What the check cost, which `note` gets line by line."""
    try:
        recorded.close()
    except BooksUnwritable as error:
        note(f"the bill may lack something: {error}")
    found = bill(_rented(asked, log), now_s=time.time(), modelled=False)
    beside = beside_run(asked.catalogue.auxiliary, instance_s=found.instance_seconds, lasted_s=0.0)
    for line in found.lines:
        note(
            f"{asked.check}: {line.instance}, {line.market} {line.instance_type} in {line.zone}, "
            f"{line.billed_s} s at {usd(line.usd_per_hour)}/h: {usd(line.usd)}"
            + (f" ({line.note})" if line.note else "")
        )
    whole_usd = found.usd + beside.usd
    note(
        f"  with disk and address (modelled) {usd(whole_usd)}"
        if found.lines
        else f"{asked.check}: no machine was rented, and nothing is to be paid"
    )
    return {
        "check": asked.check,
        **found.to_body(),
        "beside": beside_body(beside, crossed_bytes=0.0),
        "whole_usd": round(whole_usd, 6),
    }
