"""A SIGKILL every few seconds: Bamboo, torchft and torchrun elastic side by side, and the oracle.

    python -m benchmarks.failover_vs_peers [--seconds 90] [--every 10] [--quiet-seconds 180]
        [--systems A,B] [--rounds 1]

Every system is played at both rates: a kill every few seconds, and one a minute. The same GPT and
global batch, five processes each (four train, one is a warm spare), the same kills at the same
instants, and a new process as soon as one is killed. Ours run on the virtual device: four stages,
eight microbatches, 20 ms forward and 40 ms backward, so that a step takes 660 ms at best; a step of
the others' replicas sleeps to these 660 ms. The systems do not protect the same thing: torchft
protects replicas, Bamboo protects stages. Ours is one pipeline of a model that needs four nodes,
any of which may be lost; a replica of the others is a whole model on one node. Where a replica
needs a pipeline of P nodes, one loss takes all P.

Stall: from the kill to the next new step, minus a calm step of the same system. Goodput: new
samples per time, as a share of the same system's own calm rate, and of the oracle's
(`benchmarks.failover.failover_oracle`). Bits: the weights after every step compared with those of a
run of the same system without kills; where two such runs differ, it says so. Each round has its own
kills and its own calm runs. torchft with the smaller batch is another training: four replicas and
no spare, and it goes on with those that are left. The peers need an environment of their own:
`benchmarks/peers/setup.sh`.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bamboo.config.load import job_to_json
from bamboo.config.resolve import resolve
from benchmarks.failover import failover_ours as ours
from benchmarks.failover.failover_claims import A_MINUTE, HEAD, SMALLER, Row, claims, pooled, row
from benchmarks.failover.failover_figures import Kill, Play, kills_every, never_ended, step_s
from benchmarks.failover.failover_oracle import Device, Oracle, oracle
from benchmarks.measuring.options import at_least, chosen, more_than_zero, parsed, selected
from benchmarks.measuring.report import command_of, write_result
from benchmarks.peers import torchft_group, torchrun_agents
from benchmarks.peers.processes import at_hand, missing
from benchmarks.peers.torchft_group import Settings, Theirs, Work
from testbed.forker import close_shared_forker

TORCHFT = {
    "torchft 1 s": Settings(heartbeat_ms=1000, join_ms=1000, tick_ms=20, collective_s=1.0),
    "torchft tight": Settings(heartbeat_ms=500, join_ms=700, tick_ms=20, collective_s=0.4),
    "torchft defaults": Settings(heartbeat_ms=5000, join_ms=60000, tick_ms=100, collective_s=60.0),
    SMALLER: Settings(heartbeat_ms=1000, join_ms=1000, tick_ms=20, collective_s=1.0, fixed=False),
}
"""The play shows which one is its best. Tighter settings get out of step with each other: with a
shorter time to join, a calm step takes twice as long (it was tried)."""
SYSTEMS = ("bamboo", *TORCHFT, "torchrun")
OURS = ("bamboo", "bamboo" + A_MINUTE)
PLAYED_BADLY = (RuntimeError, AssertionError, OSError, ValueError, subprocess.TimeoutExpired)
"""Errors that one play may end with. The others are played and written all the same."""
WARM_STEPS = 4
LEAST_CALM_STEPS = 6
QUIET_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calm:
    """A run of another system without kills."""

    digests: dict[int, str]
    step_s: float
    control: str
    """How the weights of a second such run compare."""


class Bench:
    """The plays, printed as they end."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._for_s, self._calm_steps = arguments.seconds, arguments.calm_steps
        self._quiet_s = arguments.quiet_seconds
        self._every_s, self._seed = arguments.every, arguments.seed
        device = Device(forward_s=ours.FORWARD_S, backward_s=ours.BACKWARD_S, microbatches=8)
        self.best = oracle(device)
        self._work = Work(
            job=job_to_json(resolve(ours.job())),
            active=ours.STAGES,
            each=ours.BATCH // ours.STAGES,
            microbatch=1,
            step_s=self.best.step_s,
        )
        self._earlier: dict[str, dict[int, str]] = {}
        """Digests of each system's longest calm run."""
        self.rounds: list[tuple[Kill, ...]] = []
        self.begin_round()
        self.details: dict[str, list[dict[str, Any]]] = {}
        """Details of each system's plays."""

    def begin_round(self) -> None:
        """Draw other kills, and measure our calm pace again."""
        seed = self._seed + len(self.rounds)
        self.kills = kills_every(self._every_s, for_s=self._for_s, seed=seed)
        self._quiet_kills = kills_every(QUIET_EVERY_S, for_s=self._quiet_s, seed=seed)
        self.rounds.append(tuple(self.kills))
        self._calm_s = 0.0

    def bamboo(self, kills: Sequence[Kill], for_s: float, name: str) -> Row:
        """Play Bamboo."""
        if not self._calm_s:
            self._calm_s = ours.calm_step_s(self._calm_steps)
        found = ours.killed(kills, for_s)
        detail = {
            "failovers": found.failovers,
            "merged_steps": found.merged_steps,
            "overruns": found.overruns,
            "play": asdict(found.play),
        }
        self.details.setdefault(name, []).append(detail)
        bits = f"differ: {found.difference}" if found.difference else "equal"
        bound = self.best.goodput(_stages(kills), for_s=for_s)
        return self._row(name, found.play, calm_s=self._calm_s, bits=bits, bound=bound)

    def torchft(self, system: str, kills: Sequence[Kill], for_s: float, name: str) -> Row:
        """Play torchft with one of the settings."""
        settings = TORCHFT[system]
        work = self._work if settings.fixed else replace(self._work, active=0)
        count = ours.STAGES + ours.STANDBYS * settings.fixed
        killed = torchft_group.killed(work, settings, kills, for_s, count=count, warm=WARM_STEPS)
        bound = self.best.goodput(_stages(kills), for_s=for_s)
        return self._theirs(
            name,
            killed,
            work,
            lambda work: torchft_group.calm(work, settings, count=count),
            bound=bound,
        )

    def torchrun(self, kills: Sequence[Kill], for_s: float, name: str) -> Row:
        """Play torchrun with checkpoints."""
        killed = torchrun_agents.played(
            self._work, kills, for_s, spares=ours.STANDBYS, warm=WARM_STEPS
        )
        bound = self.best.goodput(_stages(kills), for_s=for_s)
        return self._theirs(
            name,
            killed,
            self._work,
            lambda work: torchrun_agents.played(
                work, (), 120.0 + work.steps, spares=ours.STANDBYS, warm=WARM_STEPS
            ),
            bound=bound,
        )

    def _theirs(
        self,
        name: str,
        killed: Theirs,
        work: Work,
        calm: Callable[[Work], Theirs],
        *,
        bound: float,
    ) -> Row:
        """The row of another system, compared with a calm run of as many steps; `bound` is the
        oracle's goodput."""
        detail: dict[str, Any] = {"play": asdict(killed.play), "processes_unlike": killed.unlike}
        self.details.setdefault(name, []).append(detail)
        system = name.removesuffix(A_MINUTE)
        beside = self._beside(system, max(killed.digests) + 1, work, calm)
        detail["two_calm_runs"] = beside.control
        unlike = unlike_from(killed.digests, beside.digests)
        bits = "equal" if unlike is None else f"differ from step {unlike} on"
        if unlike is not None:
            bits += f" (two calm runs {beside.control})"
        elif never_ended(killed.play) == len(killed.play.kills_s):
            bits = "no step after a kill"
        if killed.unlike:
            bits += f", {killed.unlike} unlike between processes"
        if system == SMALLER:
            bits = "another training"
        return self._row(name, killed.play, calm_s=beside.step_s, bits=bits, bound=bound)

    def _beside(self, name: str, steps: int, work: Work, calm: Callable[[Work], Theirs]) -> Calm:
        """A calm run of so many steps. The first steps have their normal pace, the others run as
        fast as they can, since only their bits count. An earlier run, or a second one, shows how
        reliable these bits are."""
        paced = self._calm_steps + WARM_STEPS
        steps = max(steps, paced)
        one = calm(replace(work, slow_steps=paced, steps=steps))
        try:
            other = (
                self._earlier.get(name) or calm(replace(work, slow_steps=0, steps=steps)).digests
            )
        except PLAYED_BADLY as error:
            control = f"were not compared: {error}"
        else:
            both = {step: digest for step, digest in one.digests.items() if step in other}
            unlike = unlike_from(both, other)
            control = "are equal" if unlike is None else f"differ from {unlike} on"
        self._earlier.setdefault(name, one.digests)
        found_s = step_s([c for c in one.play.commits if c.step < paced][WARM_STEPS:])
        return Calm(digests=one.digests, step_s=found_s, control=control)

    def _row(self, name: str, play: Play, *, calm_s: float, bits: str, bound: float) -> Row:
        step_s = self.best.step_s
        return row(name, play, calm_s=calm_s, bits=bits, bound=bound, oracle_step_s=step_s)

    def play(self, system: str) -> Row:
        """Play one of SYSTEMS; a name that ends in A_MINUTE means one kill a minute."""
        name, kills, for_s = system, self.kills, self._for_s
        if name.endswith(A_MINUTE):
            system, kills, for_s = name.removesuffix(A_MINUTE), self._quiet_kills, self._quiet_s
        if system == "bamboo":
            return self.bamboo(kills, for_s, name)
        if system in TORCHFT:
            return self.torchft(system, kills, for_s, name)
        return self.torchrun(kills, for_s, name)


def unlike_from(digests: Mapping[int, str], others: Mapping[int, str]) -> int | None:
    """The first step after which the weights differ from those of the other run; None: none."""
    return min((step for step in digests if digests[step] != others.get(step)), default=None)


def played(
    bench: Bench, systems: Sequence[str], rounds: int
) -> tuple[dict[str, Row], dict[str, list[str]]]:
    """Play all systems round by round, each round beginning with another one. Returns all plays of
    each system as one row, and for systems with unfinished plays the reasons, by round."""
    rows: dict[str, list[Row]] = {}
    failed: dict[str, list[str]] = {}
    try:
        for number in range(rounds):
            if number:
                bench.begin_round()
            first = number % len(systems)
            for name in (*systems[first:], *systems[:first]):
                try:
                    found = bench.play(name)
                except PLAYED_BADLY as error:
                    failed.setdefault(name, []).append(f"round {number}: {error}")
                    print(f"{name} did not play to its end: {error}", flush=True)
                    continue
                rows.setdefault(name, []).append(found)
                print(f"{HEAD}\n{found.line()}", flush=True)
    finally:
        close_shared_forker()
    return {name: pooled(rows[name]) for name in systems if name in rows}, failed


def _stages(kills: Sequence[Kill]) -> list[int]:
    return [int(kill.share * ours.STAGES) for kill in kills]


def first_operations_ms(plays: Sequence[dict[str, Any]]) -> list[float]:
    """For every failover, the time from the kill to the lost stage's first operation."""
    return sorted(one["first_operation"] for play in plays for one in play["failovers"])


def of_first_operation(plays: Sequence[dict[str, Any]]) -> str:
    """The same in words, with the steps that a merged node took."""
    found = first_operations_ms(plays)
    if not found:
        return "no failover"
    return (
        f"kill to the lost stage's first operation: median {statistics.median(found):.0f} ms, "
        f"longest {found[-1]:.0f} ms; steps with a merged node after the hit one: "
        f"{[steps for play in plays for steps in play['merged_steps']]}"
    )


def said_of(best: Oracle, bench: Bench, arguments: argparse.Namespace) -> str:
    """The oracle in words."""
    extra = statistics.fmean(hit.extra_s for hit in best.hits)
    until = statistics.fmean(hit.to_commit_s for hit in best.hits)
    later = statistics.fmean(best.merged_s) - best.step_s
    bound = best.goodput(_stages(bench.kills), for_s=arguments.seconds)
    return (
        f"oracle: a step takes {1e3 * best.step_s:.0f} ms, a hit one {1e3 * extra:.0f} ms more "
        f"({1e3 * until:.0f} ms from the loss to its commit), a later one with a merged node "
        f"{1e3 * later:.0f} ms more; with these kills its goodput is {bound:.3f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=more_than_zero, default=90.0, help="of each play of kills"
    )
    parser.add_argument(
        "--every", type=more_than_zero, default=10.0, help="seconds from kill to kill"
    )
    parser.add_argument(
        "--quiet-seconds",
        type=at_least(0),
        default=180,
        help="of each play with a kill a minute; 0: not played",
    )
    parser.add_argument("--calm-steps", type=at_least(LEAST_CALM_STEPS), default=20)
    parser.add_argument("--rounds", type=at_least(1), default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    arguments = parsed(parser)
    if arguments.seconds < arguments.every:
        parser.error(
            f"no kill falls into {arguments.seconds:g} s: give --seconds of --every at least"
        )
    systems = chosen(parser, "system", arguments.systems, SYSTEMS)
    if not at_hand():
        print(missing())
        systems = [name for name in systems if name == "bamboo"]
        if not systems:
            return 2
    bench = Bench(arguments)
    print(said_of(bench.best, bench, arguments), flush=True)
    every_minute = [name + A_MINUTE for name in systems] if arguments.quiet_seconds else []
    rows, failed = played(bench, [*systems, *every_minute], arguments.rounds)
    every = f"a kill every {arguments.every:g} s for {arguments.seconds:g} s"
    print(f"\n{every}, rounds of them: {arguments.rounds}\n{HEAD}")
    for name, found in rows.items():
        print(found.line())
        if name in OURS:
            print(f"{'':21} {of_first_operation(bench.details[name])}")
    first_ms = first_operations_ms(bench.details.get("bamboo", ()))
    made = claims(rows, first_operation_ms=first_ms, failed=failed)
    for claim in made:
        print(claim.line())
    body = {
        "failed": failed,
        "claims": [asdict(claim) for claim in made],
        "oracle": asdict(bench.best),
        "kills": [[asdict(kill) for kill in kills] for kills in bench.rounds],
        "torchft_settings": {name: asdict(found) for name, found in TORCHFT.items()},
        "rows": [asdict(found) for found in rows.values()],
        "plays": bench.details,
    }
    command = command_of("failover_vs_peers", arguments)
    part = selected(parser, arguments, "systems")
    print(f"written: {write_result('failover-vs-peers', command, body, *part).name}")
    bits = any(rows[name].bits != "equal" for name in OURS if name in rows)
    return int(bool(failed) or bits)


if __name__ == "__main__":
    sys.exit(main())
