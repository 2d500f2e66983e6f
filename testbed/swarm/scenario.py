"""One world to be played: its parameters and its faults, as a value and as a text.

    scenario v1                       # comments are for people
    seed 17
    pipelines 2
    fault 3.25 stop_process who=4 for_s=6

Rule: the scenario holds everything that a play depends on, so a text plays the same everywhere. A
line that cannot be parsed is an error with its number.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from bamboo.errors import InputError
from bamboo.topology.strategy import REDUNDANCY_MODES, wrong_with

HEAD = "scenario v1"
MOST = 100_000
LIMITS: dict[str, tuple[float, float]] = {
    "seed": (0, math.inf),
    "pipelines": (1, 64),
    "stages": (1, 64),
    "layers": (1, 1024),
    "zones": (1, 64),
    "pipelines_max": (1, 64),
    "standbys": (0, 1024),
    "steps": (1, MOST),
    "step_s": (0.001, 3600),
    "twice": (0, 1),
}
"""Bounds of a world's parameters; all others are from 0 to MOST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of the world. `who` and `other` are indices into the nodes that are present at its
    time."""

    at_s: float
    kind: str
    who: int = 0
    other: int = 0
    for_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The parameters of a world; times in seconds."""

    seed: int = 0
    """Seed of the random choices within the world, such as delays."""
    pipelines: int = 1
    stages: int = 2
    redundancy: str = "stash"
    layers: int = 4
    zones: int = 1
    apart: bool = False
    """Whether neighbours lie in different zones; with one stage, pipelines."""
    elastic: bool = True
    pipelines_max: int = 1
    timed_grids: bool = False
    """Whether the core knows the step time of each grid."""
    standbys: int = 0
    replaced: bool = True
    """Whether lost nodes are replaced before the world heals."""
    checkpoint_every: int = 0
    resume_step: int = 0
    """The run begins from a checkpoint of this step; 0: from the beginning."""
    steps: int = 20
    eval_every: int = 0
    """Steps between evaluations; 0: there are none."""
    eval_patience: int = 0
    """How many evaluations in a row may be no better than the best one; 0: any number."""
    budget_step: int = 0
    """The step at which the budget is spent; 0: never."""
    step_s: float = 0.6
    read_s: float = 0.05
    """Time in which most nodes read a decision; some take ten times as long."""
    say_s: float = 0.02
    commit_s: float = 0.0
    """Time from a decision to its commit, in which other nodes may commit first."""
    twice: float = 0.0
    """Share of the reports that are repeated, up to `twice_s` later and in any order."""
    twice_s: float = 0.0
    transfer_s: float = 1.0
    build_s: float = 0.5
    save_s: float = 0.5
    boot_s: float = 2.0
    patience_s: float = 5.0
    park_s: float = 20.0
    heal_s: float = 12.0
    """From then on no more faults come."""
    faults: tuple[Fault, ...] = ()


def to_text(scenario: Scenario, comments: tuple[str, ...] = ()) -> str:
    """The text of a scenario; default values are left out."""
    lines = [HEAD, *(f"# {line}" for line in comments)]
    usual = Scenario()
    for field in fields(Scenario):
        value = getattr(scenario, field.name)
        if field.name != "faults" and value != getattr(usual, field.name):
            lines.append(f"{field.name} {_written(value)}")
    for fault in scenario.faults:
        words = [f"fault {fault.at_s:g} {fault.kind}"]
        none = Fault(at_s=0.0, kind="")
        words += [
            f"{name}={_written(getattr(fault, name))}"
            for name in ("who", "other", "for_s")
            if getattr(fault, name) != getattr(none, name)
        ]
        lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


def from_text(text: str) -> Scenario:
    """Read what `to_text` wrote. Raises InputError with the line that cannot be parsed, or for an
    impossible world."""
    lines = [line.split("#", 1)[0].strip() for line in text.splitlines()]
    if not lines or lines[0] != HEAD:
        raise InputError(f"line 1 is not {HEAD!r}; this is no scenario")
    kinds: dict[str, type] = {f.name: type(getattr(Scenario(), f.name)) for f in fields(Scenario)}
    del kinds["faults"]  # each fault has a line
    found: dict[str, Any] = {}
    faults: list[Fault] = []
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        name, _, rest = line.partition(" ")
        try:
            if name == "fault":
                faults.append(_fault(rest))
            elif name in found:
                raise ValueError(f"{name} was said before")
            else:
                found[name] = _read(kinds[name], rest.strip())
        except (KeyError, ValueError) as error:
            raise InputError(f"line {number}: {line!r} is not understood: {error}") from error
    scenario = replace(Scenario(**found), faults=tuple(faults))
    _refuse_no_world(scenario)
    return scenario


def _refuse_no_world(scenario: Scenario) -> None:
    """Refuse a world whose red would not be a fault of the core."""
    parts: tuple[Scenario | Fault, ...] = (scenario, *scenario.faults)
    for one in parts:
        for field in fields(one):
            value = getattr(one, field.name)
            if not isinstance(value, int | float):
                continue
            least, most = LIMITS.get(field.name, (0, MOST))
            if not least <= value <= most:
                raise InputError(
                    f"{field.name} {value:g} makes no world; give {least:g} to {most:g}"
                )
    if scenario.redundancy not in REDUNDANCY_MODES:
        raise InputError(
            f"redundancy {scenario.redundancy} is none; give one of {', '.join(REDUNDANCY_MODES)}"
        )
    if (wrong := wrong_with(scenario.redundancy, scenario.stages)) is not None:
        raise InputError(f"redundancy {scenario.redundancy} {'; '.join(wrong)}")


def _fault(text: str) -> Fault:
    at, kind, *rest = text.split()
    given: dict[str, Any] = {}
    for word in rest:
        name, value = word.split("=")
        given[name] = {"who": int, "other": int, "for_s": float}[name](value)
    return Fault(at_s=float(at), kind=kind, **given)


def _read(kind: type, text: str) -> Any:
    if kind is bool:
        return {"yes": True, "no": False}[text]
    return kind(text)


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
