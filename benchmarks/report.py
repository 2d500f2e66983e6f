"""What every benchmark shares: medians with spread, the machine's facts, and the dated result."""

import json
import os
import platform
import random
import statistics
import subprocess
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
RESAMPLES = 4000
"""Of a bootstrap: the ends of the interval move by less than their last printed digit."""


def median_and_quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, first quartile, third quartile)."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def paired_ratios(numerator: Sequence[float], denominator: Sequence[float]) -> list[float]:
    """Round by round, so that what both rounds suffered alike cancels."""
    return [a / b for a, b in zip(numerator, denominator, strict=True)]


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): the median and its 95 % confidence interval.

    The interval is the percentile bootstrap's (Efron 1979) of always the same resamples, so that a
    result file and its table agree. One value has no interval: it is its own ends.
    """
    rng = random.Random(len(values))
    medians = sorted(
        statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    low, high = medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]
    return statistics.median(values), low, high


def facts(command: str) -> dict[str, Any]:
    """Where and on what a result was measured."""
    commit = _git("describe", "--always")
    # A benchmark that ran just before this one has changed its own result, and nothing else.
    if _git("status", "--porcelain", "--", ":/", ":!/benchmarks/results"):
        commit += "-dirty"
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": command,
        "commit": commit,
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def _git(*words: str) -> str:
    """What it says of this checkout; "" outside of one."""
    done = subprocess.run(
        ["git", *words], cwd=RESULTS.parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def command_of(module: str, arguments: Namespace) -> str:
    """How to get the same again: what is empty is left out, and the folders of files are."""
    words = (
        f"--{name.replace('_', '-')} {value.name if isinstance(value, Path) else value}"
        for name, value in vars(arguments).items()
        if value is not False and value not in ("", None)
    )
    return " ".join([f"python -m benchmarks.{module}", *words])


def write_result(name: str, command: str, body: Mapping[str, Any], *parts: str) -> Path:
    """Write `results/<name>-<date>.json`; the newest of a day stays. `parts`: of what is measured
    these alone, comma separated; they get a file of their own, beside that of the whole."""
    RESULTS.mkdir(exist_ok=True)
    head = facts(command)
    words = (part.replace(",", "+") for part in parts if part)
    path = RESULTS / f"{'-'.join([name, *words])}-{head['date']}.json"
    path.write_text(json.dumps({"facts": head, **body}, indent=1) + "\n")
    return path
