"""How much longer the step is that a loss hits, with `stash` and with `eager`.

    python -m benchmarks.hit_step [--rounds 2] [--kills 8]

Four later-heavier stages on the virtual device (14, 18, 22, 26 ms forward and twice that back),
eight microbatches, a warm standby. The modes take turns; in a round both lose the same stages at
the same shares of a step. The extra time is the time between the commits before and after the hit
step, minus the median of the run's calm steps. It is compared with the planner's own dry run
(`benchmarks.failover.failover_oracle`).
"""

import argparse
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from bamboo.config.tree import JobConfig
from bamboo.core.state import State
from bamboo.topology.slots import Slot
from bamboo.topology.sync import Sync
from benchmarks.failover import failover_ours as ours
from benchmarks.failover.failover_oracle import Device, oracle
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.options import at_least, parsed
from benchmarks.measuring.report import (
    command_of,
    in_turn,
    median_with_interval,
    ratio_of_means,
    write_result,
)
from testbed.calm import difference
from testbed.cluster import NO_RULES, Cluster, cluster, protected
from testbed.forker import close_shared_forker

FORWARD_S = (0.014, 0.018, 0.022, 0.026)
MODES = ("stash", "eager")
LIMIT = 0.75
"""Eager's extra time in the hit step divided by stash's, at most."""
PROTECTED_S = 30.0
SETTLED_STEPS = 2
"""Steps after every slot is protected again, before the next kill; the last one counts as calm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The loss of a stage, at this share of a step."""

    stage: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One run of one mode."""

    extra_s: tuple[float, ...]
    failovers: tuple[Mapping[str, float], ...]
    """For each kill: ms after it until it was `seen`, `decided`, and its shadow was `promoted` and
    began its `first_operation`."""
    calm_s: float
    difference: str

    @property
    def pause_s(self) -> tuple[float, ...]:
        """From each kill to the lost stage's first operation on its shadow."""
        return tuple(found["first_operation"] / 1e3 for found in self.failovers)


def losses(count: int, seed: int, stages: int = ours.STAGES) -> tuple[Loss, ...]:
    """Every stage in turn, at shares that are spread over the step."""
    rng = random.Random(seed)
    shares = [(number + rng.random()) / count for number in range(count)]
    rng.shuffle(shares)
    return tuple(Loss(stage=i % stages, share=share) for i, share in enumerate(shares))


def whole(state: State) -> bool:
    """Every slot has a node of its own and a shadow, and nothing is under way."""
    assignment = state.assignment
    alone = assignment is not None and len(set(assignment.owners)) == assignment.grid.size
    return alone and protected(state)


def played(job: JobConfig, todo: Sequence[Loss], step_s: float, sync: Sync = NO_RULES) -> Found:
    """Lose stages of pipeline 0 one after the other, each once everything is protected again."""
    stamps: list[float] = []
    struck: list[tuple[float, str, int]] = []
    with cluster(job, sync=sync) as run:
        run.start(job.cluster.pipelines * job.cluster.stages + ours.STANDBYS)
        run.wait_step(ours.WARM_STEPS)
        for loss in todo:
            run.wait(whole, PROTECTED_S, "protection")
            run.wait_step(max(run.losses()) + SETTLED_STEPS)
            time.sleep(loss.share * step_s)
            stamps.append(time.time())
            struck.append(_strike(run, loss))
            run.start_one()
        run.wait(whole, PROTECTED_S, "protection")
        run.wait_step(max(run.losses()) + SETTLED_STEPS)
        ours.stop(run)
        commits = [commit.at_s for commit in ours.commits_of(run)]
        failovers = ours.failovers(run, struck)
        unlike = difference(run, len(run.losses()))
    calm_s = _calm_s(commits, stamps)
    extra = tuple(_hit_s(commits, at_s) - calm_s for at_s in stamps)
    return Found(extra_s=extra, failovers=failovers, calm_s=calm_s, difference=unlike)


def _strike(run: Cluster, loss: Loss) -> tuple[float, str, int]:
    """SIGKILL a node: (time by the monotonic clock, victim, stage). Returns once the run knows of
    the loss."""
    victim = run.owner(Slot(pipeline=0, stage=loss.stage))
    at_s = run.kill(victim) / 1e9
    run.wait_lost(victim)
    return at_s, victim, loss.stage


def _hit_s(commits: Sequence[float], at_s: float) -> float:
    """Seconds of the step that was under way then."""
    return next(after - before for before, after in pairwise(commits) if after > at_s)


def _calm_s(commits: Sequence[float], stamps: Sequence[float]) -> float:
    """The median of the steps before which nothing had happened for a step."""
    steps = list(pairwise(commits))
    before_hit = [
        steps[i - 1][1] - steps[i - 1][0]
        for at_s in stamps
        for i, (begin_s, end_s) in enumerate(steps)
        if begin_s <= at_s < end_s and i
    ]
    return statistics.median(before_hit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=at_least(1), default=2)
    parser.add_argument("--kills", type=at_least(1), default=8, help="of each mode in a round")
    arguments = parsed(parser)
    expected = {
        mode: oracle(
            Device(
                forward_s=FORWARD_S,
                backward_s=tuple(2 * x for x in FORWARD_S),
                microbatches=ours.BATCH,
                mode=mode,
            )
        )
        for mode in MODES
    }
    extra: dict[str, list[float]] = {mode: [] for mode in MODES}
    calm: dict[str, list[float]] = {mode: [] for mode in MODES}
    try:
        for number in range(arguments.rounds):
            todo = losses(arguments.kills, seed=number)
            for mode in in_turn(MODES, number):
                found = played(ours.job(mode, FORWARD_S), todo, expected[mode].step_s)
                if found.difference:
                    raise RuntimeError(f"{mode}: not the calm run's bits: {found.difference}")
                extra[mode] += found.extra_s
                calm[mode].append(found.calm_s)
                print(f"round {number}, {mode}: {_ms(found.extra_s)} ms more", flush=True)
    finally:
        close_shared_forker()
    print(
        f"\n{'mode':6} {'calm ms':>8} {'hit: ms more':>13} {'95 %':>12} {'mean':>6} {'dry run':>8}"
    )
    for mode in MODES:
        middle, low, high = (1e3 * x for x in median_with_interval(extra[mode]))
        dry = statistics.fmean(hit.extra_s for hit in expected[mode].hits)
        print(
            f"{mode:6} {1e3 * statistics.median(calm[mode]):8.0f} {middle:13.0f} "
            f"{low:6.0f} -{high:5.0f} {1e3 * statistics.fmean(extra[mode]):6.0f} {1e3 * dry:8.0f}"
        )
    ratio, low, high = ratio_of_means(extra["eager"], extra["stash"])
    claim = Claim(
        about="eager over stash, means over all instants",
        found=ratio,
        limit=LIMIT,
        interval=(low, high),
    )
    print(f"{claim.line()}; bits equal in every run")
    command = command_of("hit_step", arguments)
    body = {
        "claims": [asdict(claim)],
        "extra_s": extra,
        "calm_s": calm,
        "ratio_of_means": [ratio, low, high],
    }
    print(f"written: {write_result('hit-step', command, body).name}")


def _ms(seconds: Sequence[float]) -> str:
    return ", ".join(f"{1e3 * one:.0f}" for one in seconds)


if __name__ == "__main__":
    main()
