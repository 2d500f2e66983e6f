"""How long `bamboo cost` takes over at least 30 instance types and five policies on spot.

    python -m benchmarks.cost_of_types [--rounds 3] [--job examples/gpt2-xl-300usd.toml]

The command itself, as a user gives it, in a process of its own: all types of the catalogue, on
demand, on spot and mixed, every layout over zones, every redundancy mode, and the best of them
played on simulated markets. It gives wall seconds and CPU seconds of all its processes; the latter
are more reliable where others use the machine.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bamboo.config.catalogue import installed_catalogue
from benchmarks.measuring.options import at_least, job_file, parsed
from benchmarks.measuring.report import command_of, write_result

JOB = Path(__file__).parents[1] / "examples" / "gpt2-xl-300usd.toml"
LIMIT_S = 20.0
LEAST_TYPES = 30
STUCK_S = 600.0


def once(job: Path, home: Path) -> tuple[float, float, dict[str, Any]]:
    """Wall seconds, CPU seconds and the table. Raises RuntimeError when there is none."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "cost", str(job), "--json"],
        env={**os.environ, "BAMBOO_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=STUCK_S,
    )
    wall_s = time.perf_counter() - begin_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in {0, 2} or not done.stdout:
        raise RuntimeError(f"bamboo cost ended with {done.returncode}: {done.stderr.strip()}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s, cpu_s, json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument("--job", type=job_file, default=JOB)
    arguments = parsed(parser)
    types = len(installed_catalogue().types)
    taken: list[tuple[float, float]] = []
    body: dict[str, Any] = {}
    for _ in range(arguments.rounds):
        wall_s, cpu_s, body = once(arguments.job, arguments.job.parent / "no prices of a user")
        taken.append((wall_s, cpu_s))
        print(f"{wall_s:.1f} s wall, {cpu_s:.1f} s CPU, {body['lines']} options", flush=True)
    walls = [wall_s for wall_s, _ in taken]
    within = "within" if max(walls) <= LIMIT_S else "OVER"
    print(
        f"{types} types, {body['lines']} options: median {statistics.median(walls):.1f} s wall "
        f"({min(walls):.1f} to {max(walls):.1f}; {within} {LIMIT_S:g} s)"
    )
    result = {
        "job": arguments.job.name,
        "types": types,
        "options": body["lines"],
        "limit_s": LIMIT_S,
        "wall_s": walls,
        "cpu_s": [cpu_s for _, cpu_s in taken],
    }
    print(write_result("cost-of-types", command_of("cost_of_types", arguments), result))
    return 0 if types >= LEAST_TYPES and max(walls) <= LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
