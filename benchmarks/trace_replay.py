"""A recorded spot market, replayed for Bamboo, checkpoint-restart and torchft.

    python -m benchmarks.trace_replay --trace bamboo-p3.csv [--settings spare-60] [--rounds 2]
                                      [--systems bamboo,torchft] [--charges]

Real processes through `bamboo launch --trace`, on the virtual device, at most 8 nodes, one system
after the other, because two systems of sixteen processes at once would load the machine for each
other. The ratio is that of the steps that they end with.

Bamboo: redundancy "stash"; all time in which it stands still counts, multiplied by the time scale.
Checkpoint-restart: redundancy "off". All nodes stop for every change of membership and continue
from the newest checkpoint, or from the boundary that they agreed on. Its processes stay warm, it
has as many standbys, its checkpoints are written in the background, and its own time to stop and
continue counts once. In addition each restart is charged a constant, in seconds of the trace
(`CONSTANTS_S`).

torchft (where `benchmarks/peers/setup.sh` was run), with its settings of best goodput: a replica is
a pipeline that lives while all of its nodes do (`benchmarks.measuring.trace_torchft`).

Dollars are modelled, and the same for all systems of a setting: the node hours of the trace, at the
price of an hour in our receipt.

Each setting (`SETTINGS`, and more `BY_NAME`): Bamboo, then checkpoint-restart with three checkpoint
intervals, of which the one that serves it best is played in every further round too; with
`--charges`, in the first round of some settings at scale 60, also with the other constants.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bamboo.config.load import load_job
from bamboo.study.played_trace import Replayed, settle
from benchmarks.failover_vs_peers import THEIR_BEST, TORCHFT
from benchmarks.measuring.options import at_least, chosen, parsed, trace_file
from benchmarks.measuring.report import command_of, write_result
from benchmarks.measuring.trace_torchft import node_hours, samples_on_trace, scaled, work_of
from benchmarks.peers.processes import at_hand, end_in_order, missing

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
SYSTEMS = ("bamboo", "restart", "torchft")
LIMIT_S = 1800.0
"""A run that takes longer is stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What both systems play, and with which settings."""

    stages: int
    standbys: int
    time_scale: float
    hours: float
    pipelines: int = 2
    forward_ms: float = 40.0
    """Time of a forward on the virtual device; a backward takes twice that. With 40 ms two cores
    can keep sixteen nodes at their times."""
    constants: tuple[float, ...] = ()
    """Constants other than `MAIN`, played once where they are asked for."""


OTHERS_S = tuple(seconds for name, seconds in CONSTANTS_S.items() if name != MAIN)
SETTINGS = {
    "spare-60": Setting(stages=3, standbys=2, time_scale=60.0, hours=3.0, constants=OTHERS_S),
    "all-60": Setting(stages=4, standbys=0, time_scale=60.0, hours=3.0, constants=OTHERS_S),
    "spare-10": Setting(stages=3, standbys=2, time_scale=10.0, hours=1.5),
    "all-10": Setting(stages=4, standbys=0, time_scale=10.0, hours=1.5),
}
"""Two pipelines of three stages and two warm standbys; and all eight nodes in the grid."""
WIDE = Setting(pipelines=4, stages=2, standbys=0, forward_ms=160.0, time_scale=60.0, hours=3.0)
BY_NAME = {
    **SETTINGS,
    "wide-60": WIDE,
    "wide-slow-60": replace(WIDE, forward_ms=320.0),
}
"""Also those that are played only by name: four pipelines of two stages, whose steps take 86 and
173 s of the trace."""


@dataclass(frozen=True, slots=True)
class Play:
    """One run of a trace."""

    setting: Setting
    redundancy: str
    every_steps: int
    restart_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The result of a run."""

    play: Play
    run: str
    steps: int
    wall_s: float
    preemptions: int
    """Of nodes that the run had."""
    failovers: int
    restarts: int
    """How often all nodes stopped and continued in a new layout."""
    restores: int
    """How many of these went back to a checkpoint."""
    steps_done_again: int
    overruns: int
    """Operations that took longer than the virtual device's times."""
    samples: int
    usd_per_node_hour: float
    """The mean price in the run's own bill."""


def keys_of(setting: Setting) -> list[str]:
    """The job's keys, the same for every system."""
    return [
        "train.steps=100000",
        f"cluster.pipelines={setting.pipelines}",
        f"cluster.max_pipelines={setting.pipelines}",
        f"cluster.stages={setting.stages}",
        f"cluster.standbys={setting.standbys}",
        f"cluster.virtual_forward_ms=[{setting.forward_ms}]",
        f"cluster.virtual_backward_ms=[{2 * setting.forward_ms}]",
    ]


def played(play: Play, run: str, trace: Path, home: Path) -> "Played":
    """A launch in another process, to its end; its text goes to a file next to its folder."""
    setting = play.setting
    keys = [
        f"cluster.redundancy={play.redundancy}",
        f"checkpoint.every_steps={play.every_steps}",
        *keys_of(setting),
    ]
    command = [sys.executable, "-m", "cli.main", "launch", str(JOB), "--run", run]
    command += ["--trace", str(trace), "--max-nodes", str(MAX_NODES)]
    command += ["--time-scale", f"{setting.time_scale:g}", "--hours", f"{setting.hours:g}"]
    command += [part for key in keys for part in ("--set", key)]
    if play.restart_s is not None:
        command += ["--restart-seconds", f"{play.restart_s:g}"]
    with (home / f"{run}.out").open("w") as out:
        process = subprocess.Popen(command, env=_environment(home), stdout=out, stderr=out)
        try:
            process.wait(LIMIT_S)
        finally:
            end_in_order(process)
    return result_of(play, run, home)


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
    reconfigured = receipt["reconfigurations"]
    return Played(
        play=play,
        run=run,
        steps=receipt["step"],
        wall_s=round(receipt["wall_s"], 1),
        preemptions=receipt["trace"]["preemptions"],
        failovers=sum("takes over" in reason for reason in reasons),
        restarts=len(reconfigured),
        restores=sum(one["checkpoint"] for one in reconfigured),
        steps_done_again=sum(one["steps_again"] for one in reconfigured),
        overruns=sum(node["overruns"] for node in receipt["nodes"]),
        samples=receipt["step"] * load_job(JOB, keys_of(play.setting)).train.batch,
        usd_per_node_hour=price_in(receipt["bill"]),
    )


def price_in(bill: Mapping[str, Any]) -> float:
    """USD of a node hour, on average over the seconds in which instances existed."""
    lines = bill["instances"]
    seconds = sum(line["seconds"] for line in lines)
    return float(sum(line["usd_per_hour"] * line["seconds"] for line in lines) / seconds)


def proofs(run: str, home: Path) -> dict[str, bool]:
    """Whether bits, samples and decisions of a run are right, by `bamboo verify`."""
    out = {}
    for name, options in (("bits", ()), ("samples", ("--samples",)), ("log", ("--decisions",))):
        command = [sys.executable, "-m", "cli.main", "verify", run, *options, "--json"]
        done = subprocess.run(
            command,
            env=_environment(home),
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        if not done.stdout:
            raise RuntimeError(f"verify of {run} says nothing: {done.stderr[-800:]}")
        out[name] = bool(json.loads(done.stdout)["equal"])
    return out


class Bench:
    """The plays, printed and kept as they end."""

    def __init__(
        self,
        trace: Path,
        home: Path,
        keep: Callable[[Mapping[str, Any]], Path],
        systems: Collection[str] = SYSTEMS,
        *,
        charges: bool = False,
    ) -> None:
        self._trace, self._home, self._keep = trace, home, keep
        self._systems, self._charges = systems, charges
        self._value: list[dict[str, Any]] = []
        """Samples and modelled dollars of each play."""
        self._plays: list[dict[str, Any]] = []
        self._ratios: dict[str, list[float]] = {}
        self._best: dict[str, int] = {}
        """The best checkpoint interval for checkpoint-restart, by setting."""

    def round(self, name: str, number: int) -> None:
        """Play Bamboo once, and checkpoint-restart as often as this round requires."""
        setting = BY_NAME[name]
        ours = self._play(f"{name}-{number}-bamboo", Play(setting, "stash", 6))
        if "torchft" in self._systems:
            self._torchft(name, number)
        if "restart" not in self._systems:
            return
        theirs: dict[int, int] = {}
        for every in INTERVALS if number == 0 else (self._best[name],):
            theirs[every] = self._beside(name, number, ours, every, CONSTANTS_S[MAIN])
        if number == 0:
            self._best[name] = max(INTERVALS, key=lambda every: theirs[every])
            for restart_s in setting.constants if self._charges else ():
                self._beside(name, number, ours, self._best[name], restart_s)

    def _torchft(self, name: str, number: int) -> None:
        """The same trace, nodes and standbys, with replicas of torchft."""
        setting, job = BY_NAME[name], load_job(JOB, keys_of(BY_NAME[name]))
        trace = self._settled(setting)
        found = samples_on_trace(
            work_of(job, pipelines=setting.pipelines, stages=setting.stages),
            TORCHFT[THEIR_BEST],
            scaled(trace.events, setting.time_scale),
            size=setting.stages,
            most=setting.pipelines,
            begin_s=trace.terms.begin_s / setting.time_scale,
            end_s=trace.end_s / setting.time_scale,
        )
        run = f"{name}-{number}-torchft"
        self._plays.append({"load_before": round(os.getloadavg()[0], 2), "run": run, **found})
        before = next(v for v in self._value if v["run"] == f"{name}-{number}-bamboo")
        self._worth(run, found["samples"], before["usd"])
        print(f"{run}: {found['steps']} steps, {found['kills']} replicas killed", flush=True)
        self.write()

    def _settled(self, setting: Setting) -> Replayed:
        return settle(
            self._trace,
            time_scale=setting.time_scale,
            restart_s=None,
            max_nodes=MAX_NODES,
            hours=setting.hours,
            needed=setting.pipelines * setting.stages,
        )

    def _worth(self, run: str, samples: int, usd: float) -> None:
        value = samples / usd
        self._value.append({"run": run, "samples": samples, "usd": usd, "samples_per_usd": value})
        print(
            f"  {run}: {samples:,} samples for {usd:.2f} USD (modelled), {value:,.0f} samples per "
            "USD",
            flush=True,
        )

    def _usd(self, setting: Setting, usd_per_node_hour: float) -> float:
        """Modelled: the cost of all nodes of the trace while it was played."""
        trace = self._settled(setting)
        hours = node_hours(trace.events, begin_s=trace.terms.begin_s, end_s=trace.end_s)
        return hours * usd_per_node_hour

    def _beside(self, name: str, number: int, ours: int, every: int, restart_s: float) -> int:
        run = f"{name}-{number}-every-{every}-restart-{restart_s:g}"
        steps = self._play(run, Play(BY_NAME[name], "off", every, restart_s))
        about = f"{name}: every {every} steps, a restart {restart_s:g} s"
        self._ratios.setdefault(about, []).append(ours / steps)
        print(f"  {about}: {ours} steps against {steps}, {ours / steps:.2f} x", flush=True)
        self.write()
        return steps

    def _play(self, run: str, play: Play) -> int:
        load = os.getloadavg()[0]
        done = played(play, run, self._trace, self._home)
        verified = proofs(run, self._home)
        self._plays.append({"load_before": round(load, 2), "verified": verified, **asdict(done)})
        print(
            f"{run}: {done.steps} steps, {done.preemptions} preemptions, {done.failovers} "
            f"failovers, {done.restarts} restarts, {done.steps_done_again} steps again; {verified}",
            flush=True,
        )
        self._worth(run, done.samples, self._usd(play.setting, done.usd_per_node_hour))
        self.write()
        return done.steps

    @property
    def all_verified(self) -> bool:
        """Whether bits, samples and decisions of every run of ours were right."""
        return all(all(play.get("verified", {}).values()) for play in self._plays)

    def write(self) -> Path:
        """The result so far."""
        body = {
            "trace": self._trace.name,
            "max_nodes": MAX_NODES,
            "constants_s": CONSTANTS_S,
            "best_interval_steps": self._best,
            "ratios": {about: spread(ratios) for about, ratios in self._ratios.items()},
            "value_modelled": self._value,
            "plays": self._plays,
        }
        return self._keep(body)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--trace", type=trace_file, required=True, help="Bamboo's p3 trace, event CSV"
    )
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--rounds", type=at_least(1), default=2)
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="bamboo is always played")
    parser.add_argument("--charges", action="store_true", help="other constants a restart, too")
    arguments = parsed(parser)
    systems = chosen(parser, "system", arguments.systems, SYSTEMS)
    settings = chosen(parser, "setting", arguments.settings, BY_NAME)
    if "torchft" in systems and not at_hand():
        print(missing())
        systems.remove("torchft")
    home = Path(tempfile.mkdtemp(prefix="bamboo-trace-"))
    command = command_of("trace_replay", arguments)
    asked = {arguments.settings: SETTINGS, arguments.systems: SYSTEMS}
    parts = [given for given, every in asked.items() if given != ",".join(every)]

    def keep(body: Mapping[str, Any]) -> Path:
        return write_result("trace-replay", command, body, *parts)

    bench = Bench(arguments.trace, home, keep, systems, charges=arguments.charges)
    print(f"runs are in {home} until all of them are played and verified", flush=True)
    for number in range(arguments.rounds):
        for name in settings:
            bench.round(name, number)
    print(bench.write())
    if not bench.all_verified:
        return 1
    shutil.rmtree(home)
    return 0


def spread(ratios: list[float]) -> dict[str, float]:
    """The median over the rounds, and the lowest and highest."""
    middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
    return {
        "rounds": len(ratios),
        "median": round(middle, 3),
        "least": round(low, 3),
        "most": round(high, 3),
    }


if __name__ == "__main__":
    sys.exit(main())
