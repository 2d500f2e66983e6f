"""Continues a run of which nothing lives any more, from its newest good checkpoint.

Rules. (1) The run stays the same: its semantics are compared and another hash is refused; grid,
redundancy, cloud and budget may change. (2) What earlier parts of the run wrote is kept: books and
bills continue, the rest is moved to `parts/<n>/`. (3) `budget.max_usd` limits the whole run,
`budget.max_hours` each part: time in which nothing ran does not count. (4) A checkpoint that is
torn, damaged or of other semantics is skipped, by name; one of other semantics is not deleted. (5)
A run that writes no periodic checkpoints may have one of its stop or of an emergency, and continues
from that.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from bamboo import wiring
from bamboo.billing import parts
from bamboo.billing.money import bill
from bamboo.billing.run_cost import rented_of
from bamboo.checkpoint.catalogue import Found, newest_good, steps
from bamboo.checkpoint.manifest import MANIFEST, HashAt, Manifest, folder_of, hash_at
from bamboo.checkpoint.retention import delete
from bamboo.checkpoint.stopped import keep_final
from bamboo.config.load import job_with
from bamboo.config.tree import LIVE, JobConfig
from bamboo.controller import attempt, longer
from bamboo.controller.budget import refuse_beyond
from bamboo.controller.launching import (
    Prepared,
    check_place,
    plan_again,
    refuse_lacking,
    with_tokens,
)
from bamboo.controller.machine import refuse_too_small, refuse_unfit
from bamboo.controller.spending import spending_of
from bamboo.controller.terms import job_to_plan, save_terms, terms_of
from bamboo.coord.attested import attested_in
from bamboo.core.numerics import differing, facts_of, named
from bamboo.errors import BambooError, BooksUnwritable, InputError
from bamboo.ports import ObjectStore
from bamboo.runs import initial, live, lock, named_store, run_folder
from bamboo.runs.lock import Lock
from bamboo.runs.ports import Screen
from bamboo.runs.run_folder import RunFolder, catalogue_of, job_of
from bamboo.runs.run_status import begun_progress, strategy_of
from bamboo.runs.semantics import differences, told
from bamboo.signals import Interrupts
from bamboo.sites import opened
from bamboo.study.planning import Planned
from bamboo.study.strategies import SYNCED_KEY, Given
from bamboo.topology.strategy import Semantics, Strategy
from bamboo.topology.sync import BUILDERS
from bamboo.user_code.bundle import check_identity
from bamboo.user_code.wheels import WHEELS_FOLDER, check_wheels
from bamboo.wiring.begun import Begun
from bamboo.wiring.store_reference import store_of_job

STILL_S = 3.0
"""A store in which no node has beaten for so long has no live node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A run that can continue. Nothing was started."""

    prepared: Prepared
    from_step: int
    """The step of the checkpoint to continue from; 0: there is none, and it begins again."""
    final_stages: int
    """Number of stages of the final state, where that has to become this checkpoint; 0: it is one
    already."""
    rejected: tuple[str, ...]
    older: tuple[int, ...]
    """Steps of the complete checkpoints before it, in case it turns out to be damaged."""
    after: int
    """The number of the part that it continues."""


def settle(folder: RunFolder, screen: Screen, *, listens: bool = True) -> float:
    """Write the receipt of a part that lost launcher and cloud at once. Returns when it ended, in
    Unix time. Only its store knows its last steps. Those before a checkpoint are not repeated, so
    their losses and samples would otherwise be recorded nowhere.

    With `listens` an interrupt is raised when the receipt is written; otherwise signals are left
    as they are. Raises InputError when the run is going on, BooksUnwritable on a full disk.
    """
    _refuse_unless_over(folder)
    ended_s = parts.ended_at_s(folder)
    if folder.receipt.exists() or not live.has_site(folder):
        return ended_s
    held = lock.take(folder)
    if held is None:
        raise InputError(f"run {folder.id} has a launcher by now; `bamboo attach {folder.id}`")
    if folder.receipt.exists():  # another process was faster
        held.close()
        return ended_s
    interrupts = Interrupts()
    interrupts.start_counting()
    try:
        with interrupts.listening() if listens else nullcontext():
            attempt.take_up(folder, screen, Interrupts(detached=True), ready=lambda: None)
    except BooksUnwritable:
        raise
    except BambooError as error:
        screen.note(
            f"{folder.id}: its store cannot be read any more ({error}); losses and samples of the "
            "last steps before the end may be missing in its books"
        )
    finally:
        held.close()
    if interrupts.count:
        raise KeyboardInterrupt
    return ended_s


def prepare(
    folder: RunFolder,
    overrides: Sequence[str],
    begun: Begun | None = None,
    *,
    steps: int | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Resumed:
    """Check everything that can be checked before a start. `begun` and `note` as in `plan_again`;
    `steps` is the total that it is to reach, in a further segment. Raises InputError when the run
    is going on, is done, or would not be the same run."""
    _refuse_unless_over(folder)
    after = run_folder.part_of(folder).number
    refuse_unfit(job_with(job_to_plan(folder), overrides), folder.path)
    strategy, asked = strategy_of(folder), _asked(folder, overrides, steps=steps)
    job = asked.job
    initial.check_kept(folder, job_of(folder), job)
    _refuse_another_region(folder, job)
    if job.code:  # first, since damage would otherwise look like the user's own error
        check_identity(Path(job.code), strategy.semantics.model.get("code", {}))
    # With the prices that the whole run is billed by.
    catalogue = catalogue_of(folder)
    rules = _kept_rules(folder, strategy, overrides)
    prepared = plan_again(folder.id, job, given=rules, catalogue=catalogue, begun=begun, note=note)
    prepared = _as_counted(prepared, strategy.semantics)
    prepared = replace(prepared, planned=_with_newest(folder, prepared.planned, overrides))
    _refuse_another_run(folder, asked, prepared.planned.strategy.semantics)
    _refuse_other_evaluations(folder, prepared.job)
    refuse_other_numerics(folder, prepared.job, strategy.semantics, here=prepared.planned.numerics)
    refuse_too_small(prepared.planned, folder.path)
    check_place(prepared.job, folder.id)
    _refuse_other_wheels(folder, prepared.job)
    refuse_lacking(prepared.job, prepared.planned, wheels=folder.path / WHEELS_FOLDER)
    url = store_of_job(prepared.job)
    if url:
        named_store.check_may_go(
            folder,
            url,
            semantic_hash=strategy.semantics.hash(),
            gone_s=max(job.cluster.gone_s, STILL_S),
        )
    found, final_stages = _state(folder, asked, layers=prepared.planned.layers)
    from_step = asked.done if asked.further else 0
    if found.manifest is not None:
        from_step = found.manifest.step
    if folder.final_manifest.exists():  # otherwise the final state is not written yet
        _refuse_nothing_left(folder, job, from_step)
    refuse_beyond(
        prepared.job,
        prepared.planned,
        from_step=from_step,
        spent_usd=_spent_usd(folder, job),
    )
    return Resumed(
        prepared=with_tokens(prepared),
        from_step=from_step,
        final_stages=final_stages,
        rejected=found.rejected,
        older=found.older,
        after=after,
    )


def _kept_rules(folder: RunFolder, strategy: Strategy, overrides: Sequence[str]) -> Given | None:
    """The rules of synchronisation that the run keeps: those from a file of the user's, which may
    be gone by now. A builder of Bamboo's makes them again for the grid, as `cluster.sync` does."""
    made = folder.read_json(folder.resolved).get(SYNCED_KEY, {}).get("builder", BUILDERS[0])
    if _names_sync(overrides) or made in BUILDERS:
        return None
    return Given(path=folder.strategy, strategy=strategy, places=False)


def _refuse_other_evaluations(folder: RunFolder, job: JobConfig) -> None:
    """What a run is evaluated on, and when, is one thing from its first step to its last."""
    before = job_of(folder)
    for field in fields(before.eval):
        name, was = field.name, getattr(before.eval, field.name)
        if getattr(job.eval, name) != was:
            raise InputError(
                f"run {folder.id} was launched with eval.{name} = {was!r}; resume it with the same"
            )
    if job.evaluated_on != before.evaluated_on:
        raise InputError(
            f"run {folder.id} was launched with other data in [eval], of digest "
            f"{before.evaluated_on[:12]}; put them back as they were"
        )


def _refuse_other_wheels(folder: RunFolder, job: JobConfig) -> None:
    """Instances install what the run took along at its launch."""
    before, asked = job_of(folder), job.model.requirements
    if job.cloud.provider == "local" or (not asked and not before.wheels):
        return
    if not before.wheels:
        raise InputError(
            f"run {folder.id} was launched on this machine and took no wheels along; launch the "
            "job in the account as a run of its own"
        )
    python = check_wheels(folder.path / WHEELS_FOLDER, before.wheels).python
    if asked != before.model.requirements or job.cloud.python != python:
        raise InputError(
            f"run {folder.id} took the wheels of {before.model.requirements} along, for Python "
            f"{python}; resume it with model.requirements and cloud.python as they were"
        )


def _as_counted(prepared: Prepared, before: Semantics) -> Prepared:
    """The plan with the numerics of a run of an older release, whose hash counts them."""
    planned = prepared.planned
    meant = replace(planned.strategy.semantics, numerics=before.numerics)
    strategy = replace(planned.strategy, semantics=meant)
    return replace(prepared, planned=replace(planned, strategy=strategy))


def refuse_other_numerics(
    folder: RunFolder, job: JobConfig, before: Semantics, *, here: Mapping[str, Any]
) -> None:
    """Raise InputError, by the facts that differ, where a run that continues as `job` would compute
    other bits. `here` is what this machine computes with, which counts where the nodes run on it.
    In an account each node says that itself, before it joins, and the job alone is compared."""
    attested = attested_in(folder.path, before)
    if attested is None:
        return
    asked, run = dict(here), attested.numerics
    if job.cloud.provider != "local":
        device = "cuda" if job.cluster.device == "cuda" else "cpu"
        asked = {"device": device, "threads": job.cluster.threads}
        run = tuple(fact for fact in run if fact.name in asked)
    if differ := differing(facts_of(asked), run):
        raise InputError(
            f"run {folder.id} would not be the same run: {named(differ, 'here')}; resume it with "
            "what it was trained with, on such a machine"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the run is to continue as."""

    job: JobConfig
    semantics: Semantics
    """The run's semantics so far; in a further segment with another learning rate and more
    steps."""
    further: bool
    done: int
    """Steps so far."""


def _asked(folder: RunFolder, overrides: Sequence[str], *, steps: int | None) -> _Asked:
    before, ours = job_to_plan(folder), strategy_of(folder).semantics
    done = longer.steps_done(folder)
    early = done < before.train.steps and _outcome(folder) == "done"  # its evaluations ended it
    further = longer.is_further(before, overrides, steps=steps or 0, done=done) or early
    if steps is not None and further:
        job = longer.longer(folder, before, overrides, steps=steps, done=done)
        return _Asked(job=job, semantics=longer.expected(ours, job), further=True, done=done)
    if _outcome(folder) == "done":
        _refuse_nothing_left(folder, before, before.train.steps)
    job = job_with(before, overrides)
    return _Asked(job=job, semantics=ours, further=False, done=done)


def _outcome(folder: RunFolder) -> str:
    """How its last part ended; "" without a receipt."""
    return str(folder.read_json(folder.receipt)["outcome"]) if folder.receipt.exists() else ""


def _refuse_nothing_left(folder: RunFolder, job: JobConfig, from_step: int) -> None:
    if from_step >= job.train.steps:
        raise InputError(
            f"run {folder.id} is done: there is nothing to resume; `bamboo resume {folder.id} "
            f"--steps N` trains it to N steps, more than {job.train.steps}"
        )


def _refuse_another_run(folder: RunFolder, asked: _Asked, theirs: Semantics) -> None:
    if asked.semantics.hash() == theirs.hash():
        return
    others = "`--steps N` trains it longer, also with another learning rate"
    if asked.further:
        keys = ", ".join(f"train.{key}" for key in longer.RATE_KEYS)
        others = f"and, with --steps, the learning rate: {keys}"
    raise InputError(
        f"run {folder.id} would not be the same run: {_differences(asked.semantics, theirs)}; only "
        "what does not decide its numbers may change, such as [cluster] grid and redundancy, "
        f"[cloud] and [budget]; {others}"
    )


def _state(folder: RunFolder, asked: _Asked, *, layers: tuple[int, ...]) -> tuple[Found, int]:
    """The checkpoint to continue from, and how many stages the final state has where that is the
    checkpoint."""
    semantic_hash = asked.semantics.hash_at
    if not asked.further:
        return _newest(folder, asked.job, semantic_hash, layers=layers), 0
    stages = longer.stages_to_keep(
        folder,
        wiring.checkpoints_of(folder, asked.job),
        done=asked.done,
        semantic_hash=semantic_hash,
        layers=layers,
    )
    return Found(manifest=None, rejected=()), stages


def claim(
    folder: RunFolder, resumed: Resumed, *, ended_s: float, detached: bool | None = None
) -> Lock:
    """Become the run's launcher and put the last part's files away. That part ended at `ended_s`,
    from `settle`, unless its receipt says otherwise. `detached` says whether the run goes on
    without a launcher from now on; None: as before. Raises InputError when another process is
    faster."""
    held = lock.take(folder)
    if held is None:
        raise InputError(f"run {folder.id} has a launcher by now; `bamboo attach {folder.id}`")
    if run_folder.part_of(folder).number != resumed.after:
        held.close()
        raise InputError(f"run {folder.id} was resumed meanwhile; `bamboo status {folder.id}`")
    started_s = run_folder.started_at_s(folder)
    detached = run_folder.is_detached(folder) if detached is None else detached
    step = resumed.from_step
    objects = wiring.checkpoints_of(folder, resumed.prepared.job)
    ours = resumed.prepared.planned.strategy.semantics.hash_at
    forget_passed_over(objects, after=step, semantic_hash=ours)
    if resumed.final_stages:
        keep_final(
            objects,
            folder.final,
            run=folder.id,
            semantic_hash=ours,
            stages=resumed.final_stages,
            generation=0,
            layers=resumed.prepared.planned.layers,
            now_s=time.time(),
        )
    if folder.receipt.exists():
        ended_s = parts.ended_at_s(folder)
    parts.end_bill(folder, ended_s=ended_s)
    url = store_of_job(resumed.prepared.job)
    if url:
        named_store.give_up(folder, url)
    part = parts.part_after(folder, ended_s=ended_s, now_s=time.time())
    parts.put_away(folder)
    save_terms(
        folder,
        resumed.prepared.job,
        resumed.prepared.planned,
        started_s=started_s,
        detached=detached,
        from_step=step,
        older=resumed.older,
        part=part,
    )
    return held


def _names_sync(overrides: Sequence[str]) -> bool:
    """Whether a resume is asked for a builder of strategies by name."""
    return any(one.partition("=")[0].strip() == "cluster.sync" for one in overrides)


def _with_newest(folder: RunFolder, planned: Planned, overrides: Sequence[str]) -> Planned:
    """The plan, with the strategy that a search of the run chose last, unless the resume names
    another one. Raises InputError for a damaged file."""
    if planned.job.cluster.search != LIVE or _names_sync(overrides):
        return planned
    from bamboo.controller.searching import with_newest

    return with_newest(folder, planned)


def _spent_usd(folder: RunFolder, job: JobConfig) -> float:
    """What the earlier parts cost; a killed part counts until it was last seen."""
    if not job.budget.max_usd:
        return 0.0
    rented, ended_s = rented_of(folder, ()), parts.ended_at_s(folder)
    usd = bill(rented, now_s=ended_s, modelled=True).usd
    if folder.receipt.exists():
        billed = folder.read_json(folder.receipt)["bill"]
        if "beside" in billed:
            return usd + float(billed["beside"]["usd"])
    spending = spending_of(terms_of(folder))
    seen = begun_progress(folder, job)
    return usd + spending.beside_usd(seen, rented, now_s=ended_s)


def forget_passed_over(objects: ObjectStore, *, after: int, semantic_hash: HashAt) -> None:
    """Delete the torn and damaged checkpoints of steps after `after`, since new parts must not mix
    with them. Those of other semantics belong to another run."""
    for step in steps(objects):
        if step > after and _semantics_of(objects, step) in (None, hash_at(semantic_hash, step)):
            delete(objects, step)


def _semantics_of(objects: ObjectStore, step: int) -> str | None:
    """The semantic hash of a checkpoint; None: it has no readable manifest."""
    text = objects.get(f"{folder_of(step)}/{MANIFEST}")
    try:
        return None if text is None else Manifest.from_json(text).semantic_hash
    except ValueError:
        return None


def _refuse_unless_over(folder: RunFolder) -> None:
    lock.refuse_while_led(folder)
    if live.has_site(folder):
        site = opened.site_of(folder)
        if site.alive():
            raise InputError(
                f"run {folder.id} goes on without a launcher; `bamboo attach {folder.id}`"
            )
        site.stop()  # makes sure that nothing of it is left


def _refuse_another_region(folder: RunFolder, job: JobConfig) -> None:
    """A run keeps the prices that it began with, and those are of one region."""
    before = job_of(folder).cloud.region
    if job.cloud.region != before:
        raise InputError(
            f"cloud.region = {job.cloud.region!r}, but run {folder.id} is billed by the prices of "
            f"{before}; leave the setting as it was, or launch the job there as a run of its own"
        )


def _newest(
    folder: RunFolder, job: JobConfig, semantic_hash: HashAt, *, layers: tuple[int, ...]
) -> Found:
    here = folder.path / "checkpoints"
    if not job.checkpoint.url and here.exists() and not here.is_dir():
        raise InputError(
            f"{here} is no directory, so there is nothing that run {folder.id} could go on from; "
            "put its checkpoints back, or move that away to start over"
        )
    objects = wiring.checkpoints_of(folder, job)
    return newest_good(objects, run=folder.id, semantic_hash=semantic_hash, layers=layers)


def _differences(ours: Semantics, theirs: Semantics) -> str:
    """`train.steps was 60 and is 80`, with keys of the job file where there is one."""
    return ", ".join(
        f"{name} was {told(before)} and is {told(after)}"
        for name, before, after in differences(ours, theirs)
    )
