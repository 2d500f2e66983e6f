"""A strategy in a file: `bamboo plan` writes it, `launch` and `simulate` use it for the placement.

Rule: a strategy places a job and never changes what it trains. One whose semantics are not those of
the job is refused, by the names of what differs.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.named_files import read_bounded
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.written import facts_from
from bamboo.runs.semantics import differences, told
from bamboo.topology.strategy import AUTO, Placement, Semantics, Strategy

KEY = "strategy"
"""The key in a larger object, such as what `bamboo plan --json` prints."""
SYNCED_KEY = "synced"
"""The key beside it with the facts of its parameters."""
PLACED = ("pipelines", "stages", "cut", "redundancy")
"""The keys of [cluster] that a strategy decides."""
REMEDY = "write one again: bamboo plan JOB --json > FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a person gave with `--strategy`."""

    path: Path
    strategy: Strategy
    facts: tuple[ParameterFacts, ...] = ()
    """Of the parameters, where the file has them beside the strategy."""
    places: bool = True
    """Whether its grid, cut and redundancy count; False: its rules alone, on the job's own grid."""
    has_rules: bool = True
    """Whether its rules of synchronisation count; False: it is a grid that a plan has chosen, and
    they are still to be made."""

    @property
    def placement(self) -> Placement:
        return self.strategy.placement


def read_strategy(path: Path) -> Given:
    """Read a strategy alone, or an object with one under `strategy`. Raises InputError with the
    file, what is wrong with it, and the remedy."""
    try:
        text = read_bounded(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; name a strategy that can be read") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is no strategy: it is not text; {REMEDY}") from error
    except ValueError as error:
        raise InputError(f"{path}: is no strategy: {error}; {REMEDY}") from error
    facts: tuple[ParameterFacts, ...] = ()
    try:
        raw: Any = json.loads(text, object_pairs_hook=_once)
        if isinstance(raw, dict) and KEY in raw:
            facts = _facts_in(raw)
            raw = raw[KEY]
        strategy = Strategy.from_json(json.dumps(raw))
    except (ValueError, RecursionError) as error:
        # This also covers an integer of thousands of digits and a list nested that deep.
        raise InputError(f"{path}: is no strategy: {error}; {REMEDY}") from error
    return Given(path=path, strategy=strategy, facts=facts)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Raises ValueError where a key is there twice, as after a careless edit: only one
    of the two would count."""
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"it names {name[:80]!r} twice in one object")
        made[name] = value
    return made


def _facts_in(raw: dict[str, Any]) -> tuple[ParameterFacts, ...]:
    """Raises ValueError for what are no facts."""
    synced = raw.get(SYNCED_KEY)
    listed = synced.get("parameters") if isinstance(synced, dict) else None
    return tuple(map(facts_from, listed)) if isinstance(listed, list) else ()


def strategy_for(job: JobConfig, path: Path, overrides: Sequence[str]) -> Given:
    """The strategy that is to place a job, which already contains the overrides. Raises InputError
    where it cannot be read, or an override contradicts it."""
    given = read_strategy(path)
    refuse_contradiction(given, job, overrides)
    return given


def refuse_another_training(given: Given, semantics: Semantics) -> None:
    """Raises InputError unless the strategy has the job's own semantics."""
    # What a machine computes with is no part of a plan; files of older releases have it.
    theirs = replace(given.strategy.semantics, numerics={})
    if theirs.hash() == semantics.hash():
        return
    differ = ", ".join(
        f"{name} is {told(there)} there and {told(here)} in the job"
        for name, here, there in differences(semantics, theirs)
    )
    raise InputError(
        f"{given.path}: is a strategy of another training: {differ}; set the job alike, or {REMEDY}"
    )


def refuse_contradiction(given: Given, job: JobConfig, overrides: Sequence[str]) -> None:
    """Raises InputError for a `--set` that contradicts the strategy. `job` has the overrides."""
    there = placed(job, given.placement).cluster
    for override in overrides:
        key = override.partition("=")[0].strip()
        name = key.removeprefix("cluster.")
        if key == "cluster.sync":
            raise InputError(
                f"--set {override} contradicts {given.path}, whose placement.sync has the rules; "
                "leave one of them out"
            )
        if name == key or name not in PLACED:
            continue
        asked, value = getattr(job.cluster, name), getattr(there, name)
        if asked not in (value, AUTO, ()):
            shown = list(value) if isinstance(value, tuple) else value
            raise InputError(
                f"--set {override} contradicts {given.path}, where {key} = {shown!r}; leave one of "
                "them out"
            )


def placed(job: JobConfig, placement: Placement) -> JobConfig:
    """The job with that grid, cut and redundancy; not checked. One that does not grow stays so."""
    cluster, grid = job.cluster, placement.grid
    grows = cluster.max_pipelines > cluster.pipelines
    return replace(
        job,
        cluster=replace(
            cluster,
            pipelines=grid.pipelines,
            max_pipelines=max(cluster.max_pipelines, grid.pipelines) if grows else grid.pipelines,
            stages=grid.stages,
            cut=placement.cut[:-1],
            redundancy=placement.redundancy,
        ),
    )
