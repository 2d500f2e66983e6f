"""`bamboo explain`: how each parameter of a job or of a run is synchronised, what the other kinds
would cost, and why.

Rule: a job is planned as a launch would plan it; of a run the documents of its folder are read, and
nothing is looked at again. Bytes and times are modelled; densities of a run are those of its last
steps where its records have them.
"""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from bamboo.config.load import load_job
from bamboo.config.tree import JobConfig
from bamboo.core.events import StrategyReady
from bamboo.core.proposals import chosen_in
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.planner.sync.builders import build
from bamboo.planner.sync.explained import Row, explained
from bamboo.planner.sync.price import can_hide, price
from bamboo.planner.sync.resolved import resolve
from bamboo.planner.sync.worth import LEAST
from bamboo.planner.sync.written import facts_from, situation_from
from bamboo.ports import Note
from bamboo.quantities import count, duration, size
from bamboo.runs.books import DENSITY
from bamboo.runs.initial import begin_with
from bamboo.runs.run_folder import REMEDY, RunFolder, job_of
from bamboo.runs.run_status import newest_sync_of, strategy_of
from bamboo.study.modelled import look_at
from bamboo.study.planning import plan_job
from bamboo.study.strategies import SYNCED_KEY, strategy_for
from bamboo.study.synchronising import UNKNOWN, Synchronised, Totals
from bamboo.study.told import Bar, no_bar, silent
from bamboo.telemetry.records import read_events
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import AUTO
from bamboo.topology.sync import entries

LATELY = 10
"""Records over which a run's densities are averaged."""
LITTLE, LITTLE_S = 0.02, 0.002
"""A builder wins something if it saves more than this share of a step's bytes, or of its time."""
NO_RATE = (
    "Its links are within one machine and have no rate in the model, so bytes cost no time on "
    "them. Kinds are compared by bytes alone here."
)
TOO_LITTLE = f"; auto takes no other kind for less than {100 * LEAST:.0f} % of a step"
WORTH_A_LOOK = ("auto", "sparse-hybrid", "factors-hybrid")
"""Builders that may win over `tree` on any grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Every parameter of a job or a run."""

    name: str
    grid: Grid
    builder: str
    """What made the rules."""
    said: str
    """Whether anything is to be won, in a sentence."""
    totals: Totals
    has_times: bool
    """Whether links have a rate; otherwise kinds are compared by bytes alone."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    """Name of a figure of the situation -> where it is from."""


def explain_job(
    path: Path,
    overrides: tuple[str, ...] = (),
    *,
    strategy: Path | None = None,
    gpu: str | None = None,
    bar: Bar = no_bar,
    note: Note = silent,
) -> Explained:
    """Every parameter of a job, which is planned as a launch would plan it. Raises InputError."""
    job, _ = begin_with(load_job(path, overrides))
    given = None if strategy is None else strategy_for(job, strategy, overrides)
    with bar("looking at model and data") as told:
        seen = look_at(job, gpu=gpu, told=told, note=note)
    planned = plan_job(job, seen, run=RunId("explain"), now_s=0.0, given=given)
    return _explained(path.name, planned.synced, planned.job)


def explain_run(folder: RunFolder) -> Explained:
    """Every parameter of a run, from what its folder keeps. Raises InputError where the folder is
    of a release that kept no facts of parameters, or is damaged."""
    strategy, job = strategy_of(folder), job_of(folder)
    newest = newest_sync_of(folder)
    kept = folder.read_json(folder.resolved).get(SYNCED_KEY)
    if kept is None:
        raise InputError(
            f"run {folder.id} was launched by a release that kept no facts of its parameters; "
            f"`bamboo explain {shlex.quote(job.file)}` explains its job"
        )
    try:
        synced = Synchronised(
            sync=newest or strategy.placement.sync,
            builder=str(kept["builder"]),
            facts=tuple(map(facts_from, kept["parameters"])),
            situation=situation_from(kept["situation"]),
        )
        entries(synced.sync, [one.name for one in synced.facts if one.trained])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder.resolved} is damaged: {error}; {REMEDY}") from error
    lately, decided = _recorded(folder)
    found = _explained(folder.id, synced, job, lately=lately)
    if not decided:
        return found
    whose = "that its search chose last" if newest else "of its launch"
    changed = f"These are the rules {whose}; the last decision: {decided}."
    return replace(found, notes=(*found.notes, changed))


def _recorded(folder: RunFolder) -> tuple[dict[str, float], str]:
    """Name of a parameter -> mean density of its gradient over the last LATELY records of it, none
    for those that were never below 1; and the last decision on another strategy, "" without any.
    Raises InputError for a damaged file."""
    books = folder.events / "launcher.jsonl"
    found: dict[str, list[float]] = {}
    decided = ""
    for event in read_events(books) if books.exists() else ():
        if event.kind == DENSITY:
            for name, share in event.data["density"].items():
                found.setdefault(name, []).append(share)
        if event.kind == StrategyReady.__name__:
            decided = chosen_in(str(event.data.get("reason", ""))) or decided
    return {name: fmean(shares[-LATELY:]) for name, shares in found.items()}, decided


def _explained(
    name: str, synced: Synchronised, job: JobConfig, *, lately: Mapping[str, float] | None = None
) -> Explained:
    totals = synced.totals()
    if totals is None:
        raise InputError(f"{name}: {UNKNOWN}; leave --gpu out")
    situation = synced.situation
    return Explained(
        name=name,
        grid=Grid(pipelines=situation.pipelines, stages=situation.stages),
        builder=synced.builder,
        said=_said(synced, totals, job),
        totals=totals,
        has_times=situation.bytes_per_s > 0,
        rows=explained(
            synced.sync,
            synced.facts,
            situation,
            lately=lately,
        ),
        notes=(*_notes(synced, job), *_hidden(synced)),
        sources=situation.sources,
    )


def _said(synced: Synchronised, totals: Totals, job: JobConfig) -> str:
    """What a step sends, and whether anything is to be won."""
    if not totals.tree_bytes:
        return "Nothing is sent between pipelines or to shadows, so nothing is to be won."
    said = f"A step of all nodes sends {size(totals.bytes)}"
    alone = not synced.sync.rules
    said += ", all by tree and dense" if alone else " by these kinds"
    said += "" if alone else f", and {size(totals.tree_bytes)} by tree and dense"
    if not synced.situation.bytes_per_s:
        return f"{said}. {NO_RATE}{_modelled_words(job)}"
    step_s = _step_s(synced)
    others = [replace(synced, sync=build(x, synced.facts, synced.situation)) for x in WORTH_A_LOOK]
    for name, other in zip(WORTH_A_LOOK, others, strict=True):
        less_s, sent = step_s - _step_s(other), _bytes(other)
        if less_s > LITTLE_S * step_s:
            words = f"it would be {size(sent)}, and by the model a step {duration(less_s)} shorter"
            little = alone and synced.builder == AUTO and less_s < LEAST * step_s
            return f'{said}. By sync = "{name}" {words}{TOO_LITTLE if little else ""}.'
    for name, other in zip(WORTH_A_LOOK, others, strict=True):
        sent, same = _bytes(other), _step_s(other) <= step_s * (1 + LITTLE_S)
        if same and totals.bytes - sent > LITTLE * totals.bytes:
            return f'{said}. By sync = "{name}" it would be {size(sent)}, in the same time.'
    more = "" if alone else "more "
    return f"{said}. By the model nothing {more}is to be won: no builder makes a step shorter."


def _modelled_words(job: JobConfig) -> str:
    """How to see what the links of instances would make of it."""
    if job.cluster.device == "virtual":
        return ""
    file = shlex.quote(job.file)
    first = "" if job.model.is_gpt else f"`bamboo profile {file}` and then "
    return f" See {first}`bamboo explain {file} --gpu` for the links of the job's instances."


def _step_s(synced: Synchronised) -> float:
    return price(resolve(synced.sync, synced.facts, synced.situation)).step_s


def _bytes(synced: Synchronised) -> float:
    totals = synced.totals()
    assert totals is not None, "the parameters are known"
    return totals.bytes


def _hidden(synced: Synchronised) -> tuple[str, ...]:
    """How much of the exchange is under way while backwards go on."""
    situation = synced.situation
    if situation.pipelines == 1 or not situation.bytes_per_s:
        return ()
    share = can_hide(resolve(synced.sync, synced.facts, situation))
    if not share:
        return ("No exchange begins before the last backward ends: each stage has one bucket.",)
    return (f"Buckets hide {share:.0%} of the exchanges behind the last backwards; modelled.",)


def _notes(synced: Synchronised, job: JobConfig) -> tuple[str, ...]:
    """What K counts: tokens in a text, of which linear layers see every one, or rows of samples."""
    rows = [one.rows_k for one in synced.facts if one.rows_k]
    if not rows:
        return ()
    if job.tokens_per_sample:
        return (
            f"K counts tokens: a step has {job.train.batch} x {job.tokens_per_sample}. So the "
            "linear layers of a transformer stay as they are, and only its input embedding is "
            "worth rows, unless it is tied.",
        )
    situation, microbatch = synced.situation, job.train.microbatch
    samples = max(situation.shares) * situation.microbatches * microbatch
    few, many = (math.ceil(one / microbatch) for one in (min(rows), max(rows)))
    seen = count(few, "row") if few == many else f"{few:,} to {many:,} rows"
    return (
        f"K counts rows: a pipeline's step has {count(samples, 'sample')}, of each of which "
        f"linear layers see {seen}.",
    )
