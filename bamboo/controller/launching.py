"""A launch, from the job file to the claim on the run's id; what follows is `attempt`.

    load, preflight, plan  ->  (dry run: show, stop)  ->  claim the id  ->  lead the run here, or in
    a launcher in the background (`background`)

Rule: everything that can be checked is checked before anything is started, by a dry run as by a
launch. The only exception is what looks at the model: a process, or a local cloud that has begun
and does not belong to a run yet (`begun`).
"""

import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from bamboo import wiring
from bamboo.checkpoint.initial import Weights
from bamboo.config.catalogue import load_catalogue
from bamboo.config.load import load_job
from bamboo.config.resolve import nodes_of
from bamboo.config.tree import JobConfig
from bamboo.controller import attempt
from bamboo.controller.budget import refuse_beyond, refuse_too_few_instances
from bamboo.controller.machine import refuse_too_small, refuse_unfit
from bamboo.controller.terms import save_terms
from bamboo.errors import BambooError, InputError, RunExists
from bamboo.ids import RunId, run_id
from bamboo.kept_weights import INIT_FOLDER
from bamboo.named_files import what_is_wrong
from bamboo.planner.prices.catalogue import Catalogue
from bamboo.runs import initial, lock, run_folder
from bamboo.runs.lock import Lock
from bamboo.runs.ports import Screen
from bamboo.runs.run_folder import RunFolder
from bamboo.signals import Interrupts
from bamboo.sites.account.account_ready import check_account, check_free, pins_of_instances
from bamboo.sites.account.shared import InBucket, in_bucket
from bamboo.sites.account.wheelhouse import check_imports, kept_at, wheels_for
from bamboo.study.devices import with_device
from bamboo.study.modelled import look_at, seen_for_launch
from bamboo.study.planning import Planned, cheapest_pool, plan_job
from bamboo.study.played_trace import Replayed, TraceAsked, settle
from bamboo.study.prices import refresh_for_launch
from bamboo.study.settling import grid_of
from bamboo.study.strategies import Given, placed, strategy_for
from bamboo.trackers import places as trackers
from bamboo.user_code.bundle import write_bundle
from bamboo.user_code.wheels import WHEELS_FOLDER, kept_wheels
from bamboo.wiring.begun import Begun
from bamboo.wiring.slow_work import SlowWork
from bamboo.wiring.store_reference import store_of_job

Look: TypeAlias = Callable[[JobConfig], dict[str, Any]]
"""Looks at a job's model and data, as the preflight does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A job that could be launched now. Nothing was started for it."""

    run: RunId
    job: JobConfig
    planned: Planned
    trace: Replayed | None
    weights: Weights | None = None
    """The weights of another run that it begins with, where `train.init` names one."""
    in_bucket: tuple[InBucket, ...] = ()
    """The tokens that its instances read in a bucket."""

    @property
    def begins(self) -> str:
        """A sentence on those weights; "" without any."""
        return "" if self.weights is None else initial.said(self.weights)

    @property
    def upload_bytes(self) -> int | None:
        """How many bytes of its tokens a start uploads; None: its instances read none in a
        bucket."""
        uploaded = [one.upload_bytes for one in self.in_bucket]
        return sum(uploaded) if uploaded else None

    @property
    def logs_to(self) -> dict[str, str]:
        """Tracker -> where the run is logged to."""
        return trackers.where(self.job.log, run_folder.home() / self.run)


def prepare(
    path: Path,
    *,
    overrides: Sequence[str],
    name: str,
    dry_run: bool,
    trace: TraceAsked | None = None,
    strategy: Path | None = None,
    gpu: str | None = None,
    begun: Begun | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Prepared:
    """Check everything that can be checked before a start. `strategy` is the file that places the
    job. `gpu` is for a dry run only, see `look_at`; `begun` as in `plan_again`; `note` is told what
    takes a while. Raises InputError, RunExists."""
    if gpu is not None and not dry_run:
        raise InputError(
            "--gpu models the times of a plan, and a launch looks at every layer; add --dry-run, "
            "or leave it out"
        )
    job, weights = initial.begin_with(load_job(path, overrides))
    for kept in () if dry_run else (path, *([] if trace is None else [trace.path])):
        if wrong := what_is_wrong(kept):
            keep = "a run keeps a copy of it, so write it to a file first"
            remedy = keep if os.path.exists(kept) else "correct the path"
            raise InputError(f"{wrong}; {remedy}")
    given = None if strategy is None else strategy_for(job, strategy, overrides)
    now = datetime.now().astimezone()
    run = run_id(name) if name else run_folder.fresh_id(path, now=now, chance=random.Random())
    if gpu is None:  # with `gpu` the plan is for a GPU that this machine does not have
        refuse_unfit(job, run_folder.home())
        _check_surroundings(job, run, played=trace is not None)
    if not dry_run and job.cloud.provider != "local":
        refresh_for_launch(
            job.cloud.region, note=note, source=wiring.price_source, now=datetime.now(UTC)
        )
    # Refuse a job without a price, or on the wrong device, before any work is done.
    catalogue = load_catalogue(job.cloud.region)
    cheapest_pool(job, catalogue)
    job = with_device(job, catalogue)
    there = job if given is None else placed(job, given.placement)
    refuse_too_few_instances(there, grid_of(there), standbys=there.cluster.standbys)
    played = None if trace is None else _settled(trace, there)
    if gpu is None:
        job = with_wheels(job, note=note)
    look: Look = partial(seen_for_launch, begun=begun, note=note)
    if dry_run:
        look = partial(look_at, gpu=gpu, note=note)
    if weights is not None:
        look = partial(_look_beside, look, weights)
    begins = None if dry_run else begun
    prepared = plan_again(run, job, played, given, look=look, begun=begins, note=note)
    prepared = replace(prepared, weights=weights)
    refuse_lacking(prepared.job, prepared.planned, wheels=kept_at(job.wheels))
    refuse_beyond(prepared.job, prepared.planned, traced=played is not None)
    if gpu is None:
        refuse_too_small(prepared.planned, run_folder.home())
        prepared = with_tokens(prepared)
    return prepared


def with_tokens(prepared: Prepared) -> Prepared:
    """The same, knowing what a start uploads of its tokens. Raises InputError,
    StorageUnavailable."""
    return replace(prepared, in_bucket=in_bucket(prepared.job, prepared.planned.catalogue))


def plan_again(
    run: RunId,
    job: JobConfig,
    played: Replayed | None = None,
    given: Given | None = None,
    catalogue: Catalogue | None = None,
    *,
    look: Look | None = None,
    begun: Begun | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Prepared:
    """As `prepare`, for a job that was launched before, with the prices of that launch where they
    are given. `look` looks at the job; by default it looks at everything, from the run's local
    cloud, which is then `begun`; `note` is told what takes a while. Raises InputError."""
    nodes = None if played is None else played.nodes_at_begin
    if job.autoscale.enabled and played is not None:
        raise InputError(
            "--trace and autoscale.enabled both say how many nodes there are; give one of them"
        )
    wiring.check_checkpoints(job)
    trackers.check(job.log)
    if begun is not None:
        with SlowWork(note, f"importing {wiring.imported_words(job)}"):
            begun.begin(job, preload=wiring.preloaded(job))
    seen = (look or partial(seen_for_launch, begun=begun, note=note))(job)
    planned = plan_job(
        job, seen, run=run, now_s=time.time(), nodes=nodes, given=given, catalogue=catalogue
    )
    return Prepared(run=run, job=planned.job, planned=planned, trace=played)


def _look_beside(look: Look, weights: Weights, job: JobConfig) -> dict[str, Any]:
    seen = look(job)
    initial.check_fits(job, weights, seen)
    return seen


def with_wheels(job: JobConfig, *, note: Callable[[str], None]) -> JobConfig:
    """The job with the wheels that its instances install, once they are here. Raises InputError for
    a requirement that has none, StorageUnavailable."""
    if job.cloud.provider == "local" or not job.model.requirements:
        return job
    note(f"finding the wheels of {job.model.requirements} for the instances")
    found = wheels_for(job, pins=pins_of_instances(job))
    return replace(job, wheels="" if found is None else found.digest)


def refuse_lacking(job: JobConfig, planned: Planned, *, wheels: Path) -> None:
    """Raises InputError unless the instances of a job have what its code imports, as it is here,
    StorageUnavailable. `wheels`: the folder of those that they install."""
    code = planned.code
    if job.cloud.provider == "local" or code is None:
        return
    found = kept_wheels(wheels, job.wheels) if job.wheels else None
    check_imports(job, code.requires, found, pins=pins_of_instances(job))


def _settled(asked: TraceAsked, job: JobConfig) -> Replayed:
    return settle(
        asked.path,
        time_scale=asked.time_scale,
        restart_s=asked.restart_s,
        max_nodes=nodes_of(job) if asked.max_nodes is None else asked.max_nodes,
        hours=asked.hours,
        needed=grid_of(job).size,
    )


def _check_surroundings(job: JobConfig, run: RunId, *, played: bool) -> None:
    if job.cloud.provider != "local" and played:
        raise InputError(
            "--trace models a spot market on this machine, and the job is for an account; leave it "
            "out, or --set cloud.provider=local"
        )
    if (run_folder.home() / run).exists():
        raise RunExists(
            f"run {run} exists already in {run_folder.home()}; take another --run id, or leave it "
            "out"
        )
    check_place(job, run)
    if job.cloud.provider != "local":
        check_free(job, run)


def check_place(job: JobConfig, run: RunId) -> None:
    """Raises InputError, StoreRefused or StorageUnavailable unless the run can live where the job
    says. For a job on this machine its store is checked, otherwise the account too."""
    if job.cloud.provider != "local":
        check_account(job, run)
    elif url := store_of_job(job):
        wiring.check_external_store(url, run)


def claim(
    prepared: Prepared, *, source: Path, started_s: float, detached: bool
) -> tuple[RunFolder, Lock]:
    """Make the run's folder with its fixed files, among them the user's code, and become its
    launcher. Raises RunExists, and InputError when that code has changed since it was looked at.
    Where it fails or is interrupted, the id is free again."""
    folder = run_folder.create(run_folder.home(), prepared.run)
    held = lock.take(folder)
    assert held is not None, "a folder made just now has no launcher"
    try:
        _write_files(folder, prepared, source=source, started_s=started_s, detached=detached)
    except (BambooError, OSError, KeyboardInterrupt):
        shutil.rmtree(folder.path)  # it never became a run
        held.close()
        raise
    return folder, held


def _write_files(
    folder: RunFolder, prepared: Prepared, *, source: Path, started_s: float, detached: bool
) -> None:
    job = _with_own_copies(folder, prepared)
    shutil.copyfile(source, folder.job)
    folder.events.mkdir()
    played = prepared.trace
    if played is not None:
        shutil.copyfile(played.trace.source, folder.trace)
    save_terms(
        folder,
        job,
        prepared.planned,
        trace=None if played is None else played.terms,
        started_s=started_s,
        detached=detached,
    )


def _with_own_copies(folder: RunFolder, prepared: Prepared) -> JobConfig:
    """The job that trains with the run's own copies of the user's code and of the initial weights,
    once those are written; the tokenizer is kept for what is done with the run afterwards."""
    job, code = prepared.job, prepared.planned.code
    weights = prepared.weights
    if weights is not None:
        initial.keep(job, weights, folder)
        if not job.train.init:
            job = replace(job, pretrained=str(folder.path.absolute() / INIT_FOLDER))
    if job.data.tokenizer:
        shutil.copyfile(job.named(job.data.tokenizer), folder.tokenizer)
    if job.wheels:
        shutil.copytree(kept_at(job.wheels), folder.path / WHEELS_FOLDER)
    if code is not None:
        write_bundle(code, folder.code)
        job = replace(job, code=str(folder.code))
    return job


def run_attached(folder: RunFolder, screen: Screen, begun: Begun) -> dict[str, Any]:
    """Run it to its end in the local cloud that has `begun`, and return the content of the receipt.
    Raises InputError for wrong input that only the start finds; then there is a receipt too."""
    body = attempt.launch(folder, screen, Interrupts(), ready=lambda: None, begun=begun)
    assert body is not None, "an attached launcher never leaves"
    return body
