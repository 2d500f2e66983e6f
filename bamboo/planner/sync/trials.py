"""What runs have measured of strategies, as the lines of `$BAMBOO_HOME/trials.jsonl`.

Rule: the log is of many runs, jobs and fleets, and anybody may have torn or written a line of it.
A line that is not exactly a trial or a finding is passed over and counted, and never believed.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Any

SCHEMA_VERSION = 1
MOST_FEATURES = 1024
MOST_FEATURE = 1e18
"""No step sends as many bytes, or has as many flops."""
MOST_ERROR = 10.0
"""No price is off by more, as a standard deviation of log time: a factor of some thousands."""
MOST_STEPS = 100_000
SHORTEST_S, LONGEST_S = 1e-9, 1e6
"""No step takes less, or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A stretch of steps of one run that were synchronised by one strategy. Raises ValueError for
    figures that make no sense."""

    job: str
    """What decides the work of a step: the model's shape, the batch, the precision."""
    fleet: str
    """What decides how fast it is done: grid, shares, machines, links, and the densities."""
    strategy: str
    """Its hash."""
    price_s: float
    """The step time that the model predicts."""
    features: Mapping[str, float]
    """Of the strategy on this fleet; all finite and at least 0."""
    seconds: tuple[float, ...]
    """Of each step."""

    def __post_init__(self) -> None:
        for name in ("job", "fleet", "strategy"):
            if not (isinstance(said := getattr(self, name), str) and said):
                raise ValueError(f"{name} is {said!r}")
        if not (self.seconds and len(self.seconds) <= MOST_STEPS):
            raise ValueError(f"a trial of {len(self.seconds)} steps")
        if not all(map(_is_time, (self.price_s, *self.seconds))):
            raise ValueError("a time that is none")
        if len(self.features) > MOST_FEATURES or not all(map(_is_count, self.features.values())):
            raise ValueError("a feature that is none")
        if max(self.features.values(), default=0) > MOST_FEATURE:
            raise ValueError("a feature beyond any")

    @property
    def context(self) -> tuple[str, str]:
        """Trials of one context can be compared with each other."""
        return self.job, self.fleet

    def line(self) -> str:
        """The line of the log."""
        body = {**asdict(self), "features": dict(self.features)}
        return json.dumps({"v": SCHEMA_VERSION, **body}, sort_keys=True, allow_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a search found slower in its fleet than the model says. Raises ValueError for figures
    that make no sense."""

    job: str
    fleet: str
    links: tuple[float, ...] = ()
    """For each slow link, how many times as long it takes as the model says."""
    nodes: tuple[float, ...] = ()
    """The same for each slow node, at what it computes for exchanges."""
    in_phases: float = 0.0
    """How far exchanges go in phases, from 0 to 1 (`repriced.Case`)."""
    prices_s: Mapping[str, float] = field(default_factory=dict)
    """Strategy -> the step that the model predicts with all this, for each that was tried."""
    error: float
    """How far these prices are off: the standard deviation of log time."""
    degrees: int = 0
    """The degrees of freedom of that error: the strategies beyond the number of fitted figures."""

    def __post_init__(self) -> None:
        for name in ("job", "fleet"):
            if not (isinstance(said := getattr(self, name), str) and said):
                raise ValueError(f"{name} is {said!r}")
        slow = (*self.links, *self.nodes)
        if len(slow) > MOST_FEATURES or not all(map(_is_time, slow)):
            raise ValueError("a factor that is none")
        if not _is_count(self.in_phases) or self.in_phases > 1:
            raise ValueError("a share that is none")
        if len(self.prices_s) > MOST_STEPS or not all(map(_is_time, self.prices_s.values())):
            raise ValueError("a time that is none")
        if not _is_count(self.error) or not _is_count(self.degrees) or self.degrees > MOST_STEPS:
            raise ValueError("an error that is none")
        if self.error > MOST_ERROR:
            raise ValueError("an error beyond any")

    @property
    def context(self) -> tuple[str, str]:
        """The context of the trials that it was inferred from."""
        return self.job, self.fleet

    def line(self) -> str:
        """The line of the log."""
        body = {**asdict(self), "prices_s": dict(self.prices_s)}
        return json.dumps({"v": SCHEMA_VERSION, **body}, sort_keys=True, allow_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What could be read of a log."""

    trials: tuple[Trial, ...] = ()
    findings: tuple[Finding, ...] = ()
    passed_over: int = 0
    """Lines that are neither."""


def read_log(lines: Iterable[str]) -> Log:
    """What these lines say, in order."""
    trials: list[Trial] = []
    findings: list[Finding] = []
    passed_over = 0
    for line in lines:
        try:
            one = _read(json.loads(line))
            if isinstance(one, Trial):
                trials.append(one)
            else:
                findings.append(one)
        except (ValueError, TypeError, RecursionError, OverflowError):
            passed_over += 1
    return Log(trials=tuple(trials), findings=tuple(findings), passed_over=passed_over)


def _read(raw: Any) -> Trial | Finding:
    if not isinstance(raw, dict) or raw.pop("v", None) != SCHEMA_VERSION:
        raise ValueError("another schema")
    if set(raw) == {one.name for one in fields(Finding)}:
        if not isinstance(raw["prices_s"], dict):
            raise ValueError("no prices")
        lists = {name: tuple(raw[name]) for name in ("links", "nodes")}
        return Finding(**{**raw, **lists})
    if set(raw) != {one.name for one in fields(Trial)}:
        raise ValueError("another schema")
    if not isinstance(raw["features"], dict) or not isinstance(raw["seconds"], list):
        raise ValueError("no features, or no steps")
    return Trial(**{**raw, "seconds": tuple(raw["seconds"])})


def _is_time(figure: Any) -> bool:
    return _is_count(figure) and SHORTEST_S <= figure <= LONGEST_S


def _is_count(figure: Any) -> bool:
    plain = isinstance(figure, int | float) and not isinstance(figure, bool)
    return plain and math.isfinite(figure) and figure >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A strategy in one context, over all its trials there."""

    price_s: float
    features: Mapping[str, float]
    seconds: float
    """The median of its steps."""
    noise: float
    """The standard error of that median, as a share of it."""


def measured_of(trials: Iterable[Trial]) -> dict[tuple[str, str], dict[str, Measured]]:
    """Context -> strategy -> what was measured of it; the one with the newest trial is the last."""
    found: dict[tuple[str, str], dict[str, list[Trial]]] = {}
    for trial in trials:
        own = found.pop(trial.context, {})
        own[trial.strategy] = [*own.pop(trial.strategy, []), trial]
        found[trial.context] = own
    return {context: _merged(own) for context, own in found.items()}


def _merged(own: Mapping[str, list[Trial]]) -> dict[str, Measured]:
    steps = {name: [s for one in trials for s in one.seconds] for name, trials in own.items()}
    spread = spread_of(steps.values())
    return {
        name: Measured(
            price_s=trials[-1].price_s,
            features=trials[-1].features,
            seconds=median(steps[name]),
            noise=MEDIAN_ERROR * spread / math.sqrt(len(steps[name])),
        )
        for name, trials in own.items()
    }


MEDIAN_ERROR = 1.2533
"""The standard error of a median over that of a mean, of normal values: the root of pi / 2."""
LEAST_SPREAD = 0.005
"""The spread of steps is taken to be this at least, however alike the measured ones are."""
UNKNOWN_SPREAD = 0.05
"""The spread where there are too few deviations."""
LEAST_DEVIATIONS = 8
"""With fewer deviations no spread is computed."""


def spread_of(steps: Iterable[list[float]]) -> float:
    """How far steps are from the median of their strategy, as a share of it: 1.4826 times the
    median absolute deviation (Hampel, 1974). For normal values that is the standard deviation, and
    a few steps that were disturbed hardly change it."""
    deviations: list[float] = []
    for own in steps:
        if len(own) > 1:
            middle = median(own)
            deviations += [abs(one - middle) / middle for one in own]
    if len(deviations) < LEAST_DEVIATIONS:
        return UNKNOWN_SPREAD
    return max(LEAST_SPREAD, 1.4826 * median(deviations))
