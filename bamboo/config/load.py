"""Reads a job: TOML file and `--set` into one checked, resolved tree; and the tree as JSON.

Rule: this file returns checked values only; an error is one line with file, key, value, remedy.
"""

import json
import os
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from bamboo.config.account import account_defaults, read_toml
from bamboo.config.check import check_inputs, check_job, check_values
from bamboo.config.parse import parse_job, parse_segments, sections, together
from bamboo.config.prepared import find_tokens
from bamboo.config.resolve import resolve
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError

SCHEMA_VERSION = 1


def load_job(
    path: str | Path, overrides: Sequence[str] = (), *, prepared: bool = True
) -> JobConfig:
    """Read, check and resolve a job file; `overrides` are `section.key=value`, later ones win.
    With `prepared` its data must be so, where they need it, and give the vocabulary unless the job
    does.

    A value of an override is read as TOML, or as plain text if it is not TOML. Raises InputError:
    no such file, not TOML, unknown key, wrong type, impossible value, data that are not prepared.
    """
    path = Path(os.path.realpath(path))  # pathlib raises for a link to itself
    tables = read_toml(path, remedy="name a job file that can be read")
    job = _with_overrides(parse_job(tables, file=str(path)), overrides)
    if job.cloud.provider == "ec2":
        account = account_defaults()
        tables["cloud"] = {**account, **tables.get("cloud", {})}
        there = _with_overrides(parse_job(tables, file=str(path)), overrides)
        # Account values of one region are useless in another.
        if there.cloud.region == account.get("region", there.cloud.region):
            job = there
    job = _finish(job, overrides, inputs=True)
    if not prepared or not job.data.is_prepared:
        return job
    said = "vocabulary" in tables.get("model", {}) or _named(overrides, "model.vocabulary")
    return _finish(_with_tokens(job, vocabulary=not said), overrides)


def job_with(job: JobConfig, overrides: Sequence[str]) -> JobConfig:
    """A resolved job with other values, given as for `load_job`. Figures by stage must be given
    again for another number of stages. Raises InputError."""
    changed = _finish(_with_overrides(job, overrides), overrides)
    if changed.data == job.data or not changed.data.is_prepared:
        return changed
    return _with_tokens(changed, vocabulary=False)


def checked(job: JobConfig) -> JobConfig:
    """A job with values from elsewhere, checked and resolved again. Raises InputError."""
    return _finish(job)


def job_to_json(job: JobConfig) -> str:
    """The whole tree as JSON with its schema version."""
    return json.dumps({"schema_version": SCHEMA_VERSION, "job": asdict(job)}, indent=2)


def job_from_json(text: str, *, name: str = "resolved job") -> JobConfig:
    """Read and check what `job_to_json` wrote. Raises InputError for anything else, with `name` for
    what was read."""
    try:
        raw: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: is not JSON ({error}); write it again with launch") from error
    if not isinstance(raw, dict) or raw.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"{name}: has another schema than {SCHEMA_VERSION}; use the release that wrote it"
        )
    tables = raw.get("job")
    if not isinstance(tables, dict) or not isinstance(tables.get("file"), str):
        raise InputError(f"{name}: holds no job; write it again with launch")
    file = tables.pop("file")
    if isinstance(budget := tables.setdefault("budget", {}), dict):
        budget.setdefault("free_first_hour", True)  # releases without the key billed a run this way
    segments = parse_segments(tables.pop("segments", ()), file=name)
    keys = ("code", "pretrained", "weights", "wheels", "unit", "tokens", "evaluated_on")
    found: dict[str, Any] = {key: str(tables.pop(key, "")) for key in keys}
    job = parse_job(tables, file=name)
    return _finish(replace(job, file=file, segments=segments, **found))


def _with_tokens(job: JobConfig, *, vocabulary: bool) -> JobConfig:
    """The job with the token file of its data, and with the size of its vocabulary where that is
    asked for."""
    path, header = find_tokens(job, job.data)
    if vocabulary:
        job = replace(job, model=replace(job.model, vocabulary=header.vocabulary))
    return replace(job, tokens=str(path))


def _named(overrides: Sequence[str], key: str) -> bool:
    return any(override.partition("=")[0].strip() == key for override in overrides)


def _with_overrides(job: JobConfig, overrides: Sequence[str]) -> JobConfig:
    wrong = []
    for override in overrides:
        try:
            job = _override(job, override)
        except InputError as error:
            wrong.append(error)
    if wrong:
        raise together(wrong)
    return job


def _override(job: JobConfig, override: str) -> JobConfig:
    key, equals, text = override.partition("=")
    section, _, name = key.strip().partition(".")
    if not equals or not name:
        of = [f"{one}.{key}" for one, cls in sections().items() if key in _names(cls)]
        near = f", such as {of[0]}=..." if equals and of else ""
        raise InputError(f"--set {override!r}: is no override; write --set section.key=value{near}")
    try:
        value, *others = tomllib.loads(f"value = {text}").values()
    except tomllib.TOMLDecodeError:
        value, others = text.strip(), []
    except (ValueError, RecursionError) as error:
        raise InputError(f"--set {key}: cannot be read: {error}; give another value") from error
    if others:
        raise InputError(f"--set {override!r}: is more than one value; write a --set for each")
    # Parsed alone first, so that an error names `--set` and not the file.
    parsed = getattr(parse_job({section: {name: value}}, file="--set"), section)
    changed = replace(getattr(job, section), **{name: getattr(parsed, name)})
    return replace(job, **{section: changed})


def _names(section: type[Any]) -> set[str]:
    return {field.name for field in fields(section)}


def _finish(job: JobConfig, overrides: Sequence[str] = (), *, inputs: bool = False) -> JobConfig:
    """`inputs`: the files that the job names must exist too. For an existing run they need not."""
    try:
        check_values(job)
        resolved = resolve(job)
        check_job(resolved)
        if inputs:
            check_inputs(resolved)
    except InputError as error:
        if error.key in {override.partition("=")[0].strip() for override in overrides}:
            raise InputError(f"--set: {error.of_key}") from None  # not from the job file
        raise
    return resolved
