"""Bamboo in the plays of kills: processes on the virtual device, warm standbys, SIGKILL by pid.

Rule: the fork server starts another node as soon as one is killed, so that each kill meets the same
number of standbys.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bamboo.config.tree import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from bamboo.coord.follow import Decision
from bamboo.core.events import StopRequested
from bamboo.core.state import Outcome
from bamboo.topology.slots import Slot
from benchmarks.failover.failover_figures import Commit, Kill, Play, step_s, taken_back
from testbed.calm import difference
from testbed.cluster import Cluster, cluster

STAGES = 4
STANDBYS = 1
BATCH = 8
FORWARD_S, BACKWARD_S = (0.020,) * STAGES, (0.040,) * STAGES
HORIZON_STEPS = 4000
"""Horizon of the learning rate: more steps than any play takes."""
WARM_STEPS = 3
"""Before a play begins, for connections, caches and replicas."""


def job(mode: str = "stash", forward_s: Sequence[float] = FORWARD_S) -> JobConfig:
    """GPT of 0.8 M parameters, eight microbatches of one sequence; a backward takes twice as long
    as its forward."""
    return JobConfig(
        checkpoint=CheckpointConfig(every_steps=0),
        model=ModelConfig(layers=4, width=128, heads=4, context=16),
        data=DataConfig(max_bytes=200_000),
        train=TrainConfig(steps=HORIZON_STEPS, batch=BATCH, microbatch=1),
        cluster=ClusterConfig(
            stages=STAGES,
            standbys=STANDBYS,
            redundancy=mode,
            device="virtual",
            virtual_forward_ms=tuple(1e3 * x for x in forward_s),
            virtual_backward_ms=tuple(2e3 * x for x in forward_s),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """One play of Bamboo."""

    play: Play
    failovers: tuple[dict[str, Any], ...]
    """For each kill: `stage`, and ms after it `seen`, `decided`, `promoted`, `first_operation`."""
    merged_steps: tuple[int, ...]
    """For each kill: steps after the hit one that a merged node took."""
    difference: str
    """The first bit that differs from the calm run; "" when all are equal."""
    overruns: int


def calm_step_s(steps: int, mode: str = "stash", forward_s: Sequence[float] = FORWARD_S) -> float:
    """Seconds of a step of the same job without kills."""
    settled = job(mode, forward_s)
    settled = replace(settled, train=replace(settled.train, steps=steps + WARM_STEPS))
    with cluster(settled) as run:
        run.start(STAGES + STANDBYS)
        ended(run)
        return step_s(commits_of(run)[WARM_STEPS:])


def killed(kills: Sequence[Kill], for_s: float) -> Ours:
    """Play the kills for so many seconds, then stop at a step boundary and compare the bits."""
    with cluster(job()) as run:
        run.start(STAGES + STANDBYS)
        run.wait_step(WARM_STEPS)
        clock_s = time.time() - time.monotonic()
        begin_s = time.monotonic()
        stamps: list[tuple[float, str, int]] = []
        for kill in kills:
            sleep_until(begin_s + kill.at_s)
            stamps.append(strike(run, kill))
            run.start_one()
        sleep_until(begin_s + for_s)
        end_s = time.monotonic()
        stop(run)
        commits, reconfigurations = commits_of(run), unplanned(run.decisions())
        play = Play(
            begin_s=begin_s,
            end_s=end_s,
            kills_s=tuple(stamp for stamp, _, _ in stamps),
            commits=tuple(replace(c, at_s=c.at_s - clock_s) for c in commits),
            discarded=len(reconfigurations),
            again=taken_back(commits, reconfigurations),
        )
        return Ours(
            play=play,
            failovers=failovers(run, stamps),
            merged_steps=merged_steps(run, [victim for _, victim, _ in stamps]),
            difference=difference(run, len(run.losses())),
            overruns=sum(m["overruns"] for m in run.metrics("memory")),
        )


def strike(run: Cluster, kill: Kill) -> tuple[float, str, int]:
    """Kill a node: (time by the monotonic clock, victim, stage)."""
    assignment = run.state().assignment
    assert assignment is not None, "a play begins when training has"
    stage = int(kill.share * STAGES)
    victim = assignment.owner(Slot(pipeline=0, stage=stage))
    return run.kill(victim) / 1e9, victim, stage


def stop(run: Cluster) -> None:
    """Request an end at a step boundary, and check that it came."""
    run.append(StopRequested(outcome=Outcome.STOPPED, reason="the play is over"))
    ended(run)


def ended(run: Cluster) -> None:
    state = run.finish(timeout_s=600)
    if state.outcome not in (Outcome.DONE, Outcome.STOPPED):
        raise RuntimeError(f"the run ended {state.outcome}: {state.sentence}\n{run.report()}")


def commits_of(run: Cluster) -> list[Commit]:
    """Each step once, when it was first reported as committed; by the wall clock."""
    first: dict[int, float] = {}
    for record in run.metrics("step"):
        first[record["step"]] = min(record["t_s"], first.get(record["step"], record["t_s"]))
    return [Commit(step=s, at_s=at_s, samples=BATCH) for s, at_s in sorted(first.items())]


def unplanned(decisions: Sequence[Decision]) -> list[tuple[float, int]]:
    """When all nodes had stopped where they were, and the step that they continued from. What was
    done of the step under way was lost, and so was everything committed from that step on."""
    out, known = [], -1
    for decision in decisions:
        reconfiguration = decision.state.reconfiguration
        if (
            reconfiguration is None
            or reconfiguration.base is None
            or reconfiguration.since == known
        ):
            continue
        known = reconfiguration.since
        if not reconfiguration.planned:
            out.append((decision.now_s, reconfiguration.base))
    return out


def failovers(run: Cluster, stamps: Sequence[tuple[float, str, int]]) -> tuple[dict[str, Any], ...]:
    """What the successors recorded, in ms after the kill."""
    records = {r["victim"]: r for r in run.metrics("failover") if not r["planned"]}
    out = []
    for at_s, victim, stage in stamps:
        found = records.get(victim)
        if found is None:
            continue
        names = ("seen", "decided", "promoted", "first_operation")
        parts = {name: 1e3 * (found[f"{name}_s"] - at_s) for name in names}
        out.append({"stage": stage, "step": found["step"], **parts})
    return tuple(out)


def merged_steps(run: Cluster, victims: Sequence[str]) -> tuple[int, ...]:
    """Steps after the hit one until the slot of each victim moved on from its shadow."""
    hit = {r["victim"]: r for r in run.metrics("failover") if not r["planned"]}
    moved = [r for r in run.metrics("failover") if r["planned"]]
    out = []
    for victim in victims:
        if victim not in hit:
            continue
        first = hit[victim]
        later = [
            r["step"] - first["step"] - 1
            for r in moved
            if r["slot"] == first["slot"]
            and r["victim"] == first["successor"]
            and r["step"] > first["step"]
        ]
        out.append(min(later, default=-1))
    return tuple(out)


def sleep_until(at_s: float) -> None:
    """Sleep until `at_s` of the monotonic clock."""
    time.sleep(max(0.0, at_s - time.monotonic()))
