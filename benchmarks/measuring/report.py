"""What all benchmarks share: medians with spread, the machine's facts, and the dated result."""

import contextlib
import importlib.metadata
import os
import platform
import random
import statistics
import subprocess
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import history

T = TypeVar("T")
RESULTS = Path(__file__).parents[1] / "results"
LOAD_BEFORE = round(os.getloadavg()[0], 2)
"""When the benchmark began, before any load of its own."""
ENOUGH = 6
"""Number of values from which a median has a 95 % interval."""
RESAMPLES = 4000
"""Resamples of a bootstrap. The ends of the interval move by less than their last printed digit."""


def median_and_quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, first quartile, third quartile)."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def paired_ratios(numerator: Sequence[float], denominator: Sequence[float]) -> list[float]:
    """Ratios round by round, so that what affected both in a round cancels."""
    return [a / b for a, b in zip(numerator, denominator, strict=True)]


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): the median and its 95 % confidence interval.

    The interval is a percentile bootstrap (Efron 1979) with the same resamples each time, so that a
    result file and its table agree. One value is both ends of its own interval. For fewer than six
    values the interval is their range, which contains the true median in only 1 - 2^(1 - n) of all
    cases.
    """
    rng = random.Random(len(values))
    medians = sorted(
        statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    low, high = medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]
    return statistics.median(values), low, high


def in_turn(items: Sequence[T], number: int) -> list[T]:
    """All of them, in another order each round, since the first may have warmer or colder
    caches."""
    shift = number % len(items)
    return [*items[shift:], *items[:shift]]


def interval_name(count: int) -> str:
    """The name of the interval that `median_with_interval` gives for so many values."""
    return "95 %" if count >= ENOUGH else f"range of {count}"


def facts(command: str) -> dict[str, Any]:
    """Where, and with which versions, a result was measured."""
    ended_on = commit()
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": command,
        "commit": COMMIT if ended_on == COMMIT else f"{COMMIT} to {ended_on}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "load_average_1min_before": LOAD_BEFORE,
        "load_average_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }


def ratio_of_means(
    numerator: Sequence[float], denominator: Sequence[float]
) -> tuple[float, float, float]:
    """(ratio, low, high) of the means of paired values, with the 95 % interval of a bootstrap."""
    pairs = list(zip(numerator, denominator, strict=True))
    rng = random.Random(len(pairs))
    ratios = sorted(_over(rng.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return _over(pairs), ratios[int(0.025 * RESAMPLES)], ratios[int(0.975 * RESAMPLES) - 1]


def _over(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(a for a, _ in pairs) / sum(b for _, b in pairs)


def _cpu() -> str:
    """The processor's model where the kernel gives it, otherwise its kind."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    """The commit that is checked out, and whether anything differs from it."""
    found = _git("describe", "--always")
    # A benchmark that ran just before this one has changed its own result, and nothing else.
    if _git("status", "--porcelain", "--", ":/", ":!/benchmarks/results"):
        found += "-dirty"
    return found


def _git(*words: str) -> str:
    """Git's answer in this checkout; "" outside of one."""
    done = subprocess.run(
        ["git", *words],
        cwd=RESULTS.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60.0,
    )
    return done.stdout.strip()


def command_of(module: str, arguments: Namespace) -> str:
    """The command that gives the same again, without empty options and the folders of files."""
    words = (
        f"--{name.replace('_', '-')} {_said(value)}".rstrip()
        for name, value in vars(arguments).items()
        if value is not False and value not in ("", None)
    )
    return " ".join([f"python -m benchmarks.{module}", *words])


def _said(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return value.name if isinstance(value, Path) else "" if value is True else str(value)


def write_result(name: str, command: str, body: Mapping[str, Any], *parts: str) -> Path:
    """Write `results/<name>-<date>.json`, which replaces the older file of that name, and its row
    in the table of all results. `parts`: only these parts were measured, comma separated; they have
    a file of their own, next to that of the whole. Where it cannot be written the command ends with
    1, and the older file stays."""
    head = facts(command)
    words = (part.replace(",", "+") for part in parts if part)
    path = RESULTS / f"{'-'.join([name, *words])}-{head['date']}.json"
    aside = path.with_suffix(".tmp")
    try:
        RESULTS.mkdir(exist_ok=True)
        aside.write_text(history.text_of({"facts": head, **body}))
        aside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise SystemExit(
            f"error: {path}: cannot be written: {error.strerror}; what is printed above is all "
            "there is of this run"
        ) from None
    try:
        history.tidy(RESULTS)
    except (OSError, ValueError) as error:
        raise SystemExit(
            f"error: {path.name} is written, its row in the table is not: {error}; then run "
            "`python -m benchmarks.history`"
        ) from None
    return path


COMMIT = commit()
"""When the benchmark began, because that is the code that ran."""
