"""The same job on the same trace, by real processes and simulated: steps and dollars.

    python -m benchmarks.simulated_vs_real --trace bamboo-p3.csv [--rounds 1] [--jobs spare,all]

Real: `bamboo launch --trace`, on the virtual device, so that a few cores suffice for the nodes.
Each run is stopped after so many hours of the trace. Simulated: `bamboo simulate --time-scale` of
the same job file with the same keys, from the times that the virtual device is given. The dollars
are modelled in both: what the mock of the cloud bills for real seconds, and what the simulator
bills.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring.options import at_least, chosen, parsed, trace_file
from benchmarks.measuring.report import command_of, write_result
from benchmarks.peers.processes import end_in_order

JOB = Path(__file__).parents[1] / "examples" / "trace-local.toml"
MAX_NODES = 8
LIMIT_S = 1200.0
"""A run that takes longer is stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job that both play, and how fast."""

    keys: tuple[str, ...]
    time_scale: float
    hours: float


COMMON = (
    "train.steps=100000",
    "cluster.virtual_forward_ms=[40.0]",
    "cluster.virtual_backward_ms=[80.0]",
    "checkpoint.every_steps=6",
)
JOBS = {
    "spare": Job(
        keys=(
            "cluster.pipelines=2",
            "cluster.stages=3",
            "cluster.standbys=2",
            "cluster.redundancy=stash",
        ),
        time_scale=60.0,
        hours=3.0,
    ),
    "all": Job(
        keys=("cluster.pipelines=2", "cluster.stages=4", "cluster.redundancy=eager"),
        time_scale=60.0,
        hours=3.0,
    ),
    "peer": Job(
        keys=("cluster.pipelines=2", "cluster.stages=4", "cluster.redundancy=peer"),
        time_scale=30.0,
        hours=1.5,
    ),
}


def words_of(verb: str, job: Job, trace: Path) -> list[str]:
    """The arguments that both have in common."""
    command = [sys.executable, "-m", "cli.main", verb, str(JOB), "--trace", str(trace), "--json"]
    command += ["--time-scale", f"{job.time_scale:g}", "--hours", f"{job.hours:g}"]
    return [*command, *(part for key in (*COMMON, *job.keys) for part in ("--set", key))]


def simulated(job: Job, trace: Path) -> dict[str, float]:
    """Steps and dollars by `bamboo simulate`."""
    done = subprocess.run(
        words_of("simulate", job, trace),
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    figures = json.loads(done.stdout)["systems"]["bamboo"]["figures"]
    names = ("steps", "usd", "preemptions", "failovers", "reconfigurations", "restores")
    return {name: figures[name]["mean"] for name in names}


def real(job: Job, trace: Path, run: str, home: Path) -> dict[str, float]:
    """Steps and dollars from a run's receipt. Raises RuntimeError unless its trace stopped it."""
    command = [*words_of("launch", job, trace), "--run", run, "--max-nodes", str(MAX_NODES)]
    with (home / f"{run}.out").open("w") as out:
        process = subprocess.Popen(
            command, env={**os.environ, "BAMBOO_HOME": str(home)}, stdout=out, stderr=out
        )
        try:
            process.wait(LIMIT_S)
        finally:
            end_in_order(process)
    receipt = json.loads((home / run / "receipt.json").read_text())
    if receipt["exit_code"] != 130:
        raise RuntimeError(f"{run} ended {receipt['outcome']}: see {home / run}.out")
    return {
        "steps": receipt["step"],
        "usd": receipt["bill"]["usd"],
        "preemptions": receipt["trace"]["preemptions"],
        "reconfigurations": len(receipt["reconfigurations"]),
        "overruns": sum(node["overruns"] for node in receipt["nodes"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trace", type=trace_file, required=True, help="a recorded market")
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--rounds", type=at_least(1), default=1)
    arguments = parsed(parser)
    names = chosen(parser, "job", arguments.jobs, JOBS)
    body: dict[str, Any] = {"trace": arguments.trace.name, "max_nodes": MAX_NODES, "jobs": {}}
    with tempfile.TemporaryDirectory(prefix="bamboo-simulated-vs-real-") as folder:
        for name in names:
            job = JOBS[name]
            model = simulated(job, arguments.trace)
            rounds = []
            for number in range(arguments.rounds):
                found = real(job, arguments.trace, f"{name}-{number}", Path(folder))
                rounds.append(found)
                print(
                    f"{name}: {found['steps']} steps real, {model['steps']:.0f} simulated "
                    f"({model['steps'] / found['steps'] - 1:+.1%}); ${found['usd']:.4f} real, "
                    f"${model['usd']:.4f} simulated ({model['usd'] / found['usd'] - 1:+.1%}); "
                    f"{found['overruns']} overruns",
                    flush=True,
                )
            body["jobs"][name] = {
                "job": asdict(job),
                "simulated": model,
                "real": rounds,
                "simulated_to_real": {
                    figure: model[figure] / statistics.median(one[figure] for one in rounds)
                    for figure in ("steps", "usd")
                },
            }
    part = "" if names == list(JOBS) else arguments.jobs
    command = command_of("simulated_vs_real", arguments)
    print(write_result("simulated-vs-real", command, body, part).name)


if __name__ == "__main__":
    main()
