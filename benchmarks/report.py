"""What every benchmark shares: medians with spread, the machine's facts, and the dated result."""

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def median_and_quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, first quartile, third quartile)."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def paired_ratios(numerator: Sequence[float], denominator: Sequence[float]) -> list[float]:
    """Round by round, so that what both rounds suffered alike cancels."""
    return [a / b for a, b in zip(numerator, denominator, strict=True)]


def facts(command: str) -> dict[str, Any]:
    """Where and on what a result was measured."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": command,
        "commit": commit,
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def write_result(name: str, command: str, body: Mapping[str, Any]) -> Path:
    """Write `results/<name>-<date>.json`; the newest of a day stays."""
    RESULTS.mkdir(exist_ok=True)
    head = facts(command)
    path = RESULTS / f"{name}-{head['date']}.json"
    path.write_text(json.dumps({"facts": head, **body}, indent=1) + "\n")
    return path
