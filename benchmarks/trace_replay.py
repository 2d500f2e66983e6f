"""A recorded spot market, replayed for Bamboo and for checkpoint-restart, at the same time.

    python -m benchmarks.trace_replay --trace bamboo-p3.csv [--parts interval,constant,slow]

Real processes through `bamboo launch --trace`, on the virtual device: at most 8 nodes, two
pipelines of four stages while there are eight. In each round both systems play the same trace side
by side, so that they share the machine's load; the ratio is that of the steps they end with.

Bamboo: redundancy "stash"; whatever it stands still for counts, multiplied by the time scale.
Checkpoint-restart: redundancy "off". All stop for every change of membership and go on from the
newest checkpoint, or from the boundary that they agreed on. Its processes stay warm, its spare
nodes are the same, its checkpoints are written behind its back, and its own time to stop and go on
counts once. Upon that each restart is charged a constant, in seconds of the trace (`CONSTANTS_S`).

`interval`: the trace's first 3 h at scale 60, three checkpoint intervals; the one that serves
checkpoint-restart best is played in every further round. `slow`: the first 1.5 h at scale 10, that
interval, in every round. `constant`: the first 3 h at scale 60, other constants, once.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import write_result

JOB = Path(__file__).parents[1] / "examples" / "trace-local.toml"
MAX_NODES = 8
INTERVALS = (2, 6, 18)
"""Steps between two checkpoints."""
CONSTANTS_S = {
    "torchrun, a node killed, as measured on one machine": 42.0,
    "Varuna, the shortest published restart": 76.0,
    "Varuna, the geometric middle of the published ones": 231.0,
    "Varuna, the longest published restart": 701.0,
}
MAIN = "Varuna, the geometric middle of the published ones"
LIMIT_S = 1800.0
"""Beyond this a run is stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One run of a trace."""

    redundancy: str
    every_steps: int
    time_scale: float
    hours: float
    restart_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a run came to."""

    play: Play
    run: str
    steps: int
    wall_s: float
    preemptions: int
    """Of nodes that the run had."""
    failovers: int
    restarts: int
    """Times that all stopped and went on in a new layout."""
    restores: int
    """Those of them that went back to a checkpoint."""
    steps_done_again: int
    overruns: int
    """Operations that took longer than the virtual device's figures."""


def started(play: Play, run: str, trace: Path, home: Path) -> "subprocess.Popen[bytes]":
    """A launch in another process; its text goes to a file beside its folder."""
    keys = [
        f"cluster.redundancy={play.redundancy}",
        f"checkpoint.every_steps={play.every_steps}",
        "train.steps=100000",
        "cluster.pipelines=2",
        # Long enough for two cores to keep sixteen nodes at their figures.
        "cluster.virtual_forward_ms=[40.0]",
        "cluster.virtual_backward_ms=[80.0]",
    ]
    command = [sys.executable, "-m", "cli.main", "launch", str(JOB), "--run", run]
    command += ["--trace", str(trace), "--max-nodes", str(MAX_NODES)]
    command += ["--time-scale", f"{play.time_scale:g}", "--hours", f"{play.hours:g}"]
    command += [part for key in keys for part in ("--set", key)]
    if play.restart_s is not None:
        command += ["--restart-seconds", f"{play.restart_s:g}"]
    with (home / f"{run}.out").open("w") as out:
        return subprocess.Popen(command, env=_environment(home), stdout=out, stderr=out)


def _environment(home: Path) -> dict[str, str]:
    return {**os.environ, "BAMBOO_HOME": str(home)}


def result_of(play: Play, run: str, home: Path) -> Played:
    """Read a run's receipt and log. Raises RuntimeError unless it was stopped by its trace."""
    receipt = json.loads((home / run / "receipt.json").read_text())
    if receipt["exit_code"] != 130:
        raise RuntimeError(f"{run} ended {receipt['outcome']}: see {home / run}.out")
    steps = [
        json.loads(line)["step"] for line in (home / run / "metrics.jsonl").read_text().splitlines()
    ]
    if steps != list(range(len(steps))):
        raise RuntimeError(f"{run} lost a step, or has two losses of one: see {home / run}")
    bodies = [
        json.loads(json.loads(line).get("body", "{}"))
        for line in (home / run / "decisions.jsonl").read_text().splitlines()
    ]
    reasons = [str(body.get("reason", "")) for body in bodies]
    relaid = receipt["reconfigurations"]
    return Played(
        play=play,
        run=run,
        steps=receipt["step"],
        wall_s=round(receipt["wall_s"], 1),
        preemptions=receipt["trace"]["preemptions"],
        failovers=sum("takes over" in reason for reason in reasons),
        restarts=len(relaid),
        restores=sum(one["checkpoint"] for one in relaid),
        steps_done_again=sum(one["steps_again"] for one in relaid),
        overruns=sum(node["overruns"] for node in receipt["nodes"]),
    )


def side_by_side(name: str, plays: tuple[Play, Play], trace: Path, home: Path) -> list[Played]:
    """Both at the same time, to their ends."""
    runs = [f"{name}-{play.redundancy}" for play in plays]
    processes = [started(p, run, trace, home) for p, run in zip(plays, runs, strict=True)]
    try:
        for process in processes:
            process.wait(LIMIT_S)
    finally:
        for process in processes:
            process.terminate()
            process.wait(60.0)
    return [result_of(play, run, home) for play, run in zip(plays, runs, strict=True)]


def proofs(run: str, home: Path) -> dict[str, bool]:
    """Bits, samples and decisions of a run, by `bamboo verify`."""
    out = {}
    for name, options in (("bits", ()), ("samples", ("--samples",)), ("log", ("--decisions",))):
        command = [sys.executable, "-m", "cli.main", "verify", run, *options, "--json"]
        done = subprocess.run(
            command, env=_environment(home), capture_output=True, text=True, check=False
        )
        out[name] = bool(json.loads(done.stdout)["equal"])
    return out


class Bench:
    """The rounds, printed and kept as they end."""

    def __init__(self, trace: Path, home: Path, command: str) -> None:
        self._trace, self._home, self._command = trace, home, command
        self._body: dict[str, Any] = {
            "trace": trace.name,
            "max_nodes": MAX_NODES,
            "constants_s": CONSTANTS_S,
            "rounds": [],
        }

    def round(
        self, name: str, *, every: int, constant: str, time_scale: float, hours: float
    ) -> float:
        """One round; how many times the steps of checkpoint-restart Bamboo came to."""
        ours = Play(redundancy="stash", every_steps=6, time_scale=time_scale, hours=hours)
        theirs = Play(
            redundancy="off",
            every_steps=every,
            time_scale=time_scale,
            hours=hours,
            restart_s=CONSTANTS_S[constant],
        )
        load = os.getloadavg()[0]
        played = side_by_side(name, (ours, theirs), self._trace, self._home)
        ratio = played[0].steps / played[1].steps
        found = {
            "name": name,
            "constant": constant,
            "ratio": round(ratio, 3),
            "load_before": round(load, 2),
            "verified": proofs(played[0].run, self._home),
            "bamboo": asdict(played[0]),
            "checkpoint_restart": asdict(played[1]),
        }
        self._body["rounds"].append(found)
        print(
            f"{name}: scale {time_scale:g}, {hours:g} h, {every} steps a checkpoint, a restart "
            f"charged {theirs.restart_s:g} s: {played[0].steps} steps against {played[1].steps} "
            f"({played[1].restarts} restarts, {played[1].steps_done_again} steps again), "
            f"{ratio:.2f} x; {found['verified']}",
            flush=True,
        )
        self.write()
        return ratio

    def ended(self, **figures: Any) -> None:
        self._body |= figures

    def write(self) -> Path:
        """The result so far."""
        return write_result("trace-replay", self._command, self._body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, required=True, help="Bamboo's p3 trace, event CSV")
    parser.add_argument("--parts", default="interval,constant,slow")
    parser.add_argument("--best", type=int, default=INTERVALS[0], help="without part `interval`")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    start_s = time.time()
    home = Path(tempfile.mkdtemp(prefix="bamboo-trace-"))
    bench = Bench(arguments.trace, home, "python -m benchmarks.trace_replay")
    best, parts = arguments.best, arguments.parts.split(",")
    found: dict[str, list[float]] = {}

    def play(part: str, *, every: int, constant: str, time_scale: float, hours: float) -> None:
        ratio = bench.round(
            f"{part}-{len(found.get(part, []))}".replace(" ", "-"),
            every=every,
            constant=constant,
            time_scale=time_scale,
            hours=hours,
        )
        found.setdefault(part, []).append(ratio)
        bench.ended(ratios={name: spread(ratios) for name, ratios in found.items()})

    for number in range(arguments.rounds):
        if "interval" in parts:
            for every in INTERVALS if number == 0 else (best,):
                name = f"scale 60 every {every}"
                play(name, every=every, constant=MAIN, time_scale=60.0, hours=3.0)
            if number == 0:
                best = min(INTERVALS, key=lambda every: found[f"scale 60 every {every}"][0])
            bench.ended(best_interval_steps=best)
        if "slow" in parts:
            play("scale 10", every=best, constant=MAIN, time_scale=10.0, hours=1.5)
        if "constant" in parts and number == 0:
            for constant in (c for c in CONSTANTS_S if c != MAIN):
                name = f"scale 60 restart {CONSTANTS_S[constant]:g}"
                play(name, every=best, constant=constant, time_scale=60.0, hours=3.0)
    bench.ended(took_s=round(time.time() - start_s))
    print(bench.write())


def spread(ratios: list[float]) -> dict[str, float]:
    """The median over the rounds, and the lowest and highest."""
    middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
    return {"median": round(middle, 3), "least": round(low, 3), "most": round(high, 3)}


if __name__ == "__main__":
    main()
