"""The search in a real run, with one slow link and one slow owner that the model does not know.

    python -m benchmarks.strategies.live_search_run [--steps 300] [--rounds 3]

Two real worker processes on the virtual device, over the virtual link: the mixed job in a small
size. What goes from node 0 to node 1 takes `LINK` times as long as the link should, and what node 1
computes for an exchange `SUMS` times as long (`testbed.faults`). The launcher's own searcher
follows the run, without a launch around it. Then the strategy with which the run ends is measured
in turn with those of a hand that knows what is slow: the best of a search on paper that is told of
it, its neighbours, and every builder that is not hopeless.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bamboo.errors import InputError
from bamboo.planner.sync.builders import BUILDERS, build
from bamboo.planner.sync.candidates import neighbours
from bamboo.planner.sync.price import price
from bamboo.planner.sync.resolved import resolve
from bamboo.planner.sync.search import search
from bamboo.planner.sync.situation import Slow
from bamboo.planner.sync.trials import read_log
from bamboo.topology.sync import Sync
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.local_run import LEAST_STEPS, step_times_s
from benchmarks.measuring.options import at_least, parsed
from benchmarks.measuring.report import command_of, in_turn, write_result
from testbed.cluster import cluster
from testbed.followed_search import Case, Followed, case_of

LINK, SUMS = 6.0, 8.0
SLOW = (
    Slow(stage=0, pipeline=0, to=1, times=LINK),
    Slow(stage=0, pipeline=1, times=SUMS),
)
FAULTS = {0: f"slow_link:i-01.1,{LINK}", 1: f"slow_sums:{SUMS}"}
NEAR = 6
"""Neighbours of the best on paper that the hand tries."""
EVALUATIONS = 1000
WORSE = 2.0
"""A builder is tried if its price is at most so many times the best one's."""
BY_HAND_STEPS = 20


def followed(case: Case, log: Path) -> dict[str, Any]:
    """A run with a search."""
    now = build("auto", case.facts, case.situation)
    with cluster(case.job, sync=now) as running:
        follower = Followed(case, running, log)
        running.start(2, FAULTS)
        state = follower.until(lambda state: False)
        stamps = [record["t_s"] for record in running.metrics("step")]
    total_s = stamps[-1] - stamps[0]
    nothing = {"trials": 0, "excess_s": 0.0, "why": "nothing was tried"}
    (booked,) = follower.said.booked or [nothing]
    return {
        "first": now.body(),
        "ended": follower.ended.body(),
        "sync": follower.ended,
        "total_s": total_s,
        "spent": booked["excess_s"] / total_s,
        **booked,
        "found": [asdict(one) for one in read_log(log.read_text().splitlines()).findings],
        "why_last": state.syncs[-1].why if state.syncs else "",
    }


def by_hand(case: Case) -> dict[str, Sync]:
    """What one tries who knows what is slow: of all builders those that are not hopeless."""
    there = replace(case.situation, slow=SLOW)
    best = search(case.facts, there, evaluations=EVALUATIONS)
    found = {"the best on paper": best.sync}
    for name in BUILDERS:
        try:
            sync = build(name, case.facts, case.situation)
        except InputError:
            continue
        if price(resolve(sync, case.facts, there)).step_s <= WORSE * best.best.price.step_s:
            found[name] = sync
    near = neighbours(case.facts, there, best.sync)
    near.sort(key=lambda one: one.price_s)
    return found | {f"near that, {number}": one.sync for number, one in enumerate(near[:NEAR])}


def compared(case: Case, ended: Sync, rounds: int) -> dict[str, list[float]]:
    """The median step of each of the hand's strategies and of the search's, round by round."""
    job = replace(case.job, train=replace(case.job.train, steps=BY_HAND_STEPS))
    syncs = {"the search": ended, **by_hand(case)}
    found: dict[str, list[float]] = {name: [] for name in syncs}
    for number in range(rounds):
        for name in in_turn(list(syncs), number):
            times, _ = step_times_s(job, syncs[name], FAULTS)
            found[name].append(statistics.median(times))
            print(f"  round {number}, {name}: {1e3 * found[name][-1]:.0f} ms", flush=True)
    return found


def claims(ran: Mapping[str, Any], steps_s: Mapping[str, Sequence[float]]) -> list[Claim]:
    """How far behind the hand, and what trials cost."""
    ended_s = statistics.median(steps_s["the search"])
    best_s = min(statistics.median(own) for own in steps_s.values())
    return [
        Claim(about="% behind the best by hand", found=100 * (ended_s / best_s - 1), limit=5),
        Claim(about="% of the run that trials cost", found=100 * ran["spent"], limit=5),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=at_least(LEAST_STEPS), default=300)
    parser.add_argument("--rounds", type=at_least(1), default=3)
    options = parsed(parser)
    with tempfile.TemporaryDirectory() as name:
        case = case_of(Path(name), options.steps)
        ran = followed(case, Path(name) / "trials.jsonl")
        print(f"{ran['trials']} trials cost {ran['spent']:.1%} of {ran['total_s']:.0f} s")
        print(f"{ran['why']}; {ran['why_last']}; {ran['found']}", flush=True)
        steps_s = compared(case, ran.pop("sync"), options.rounds)
    made = claims(ran, steps_s)
    for claim in made:
        print(claim.line())
    body = {"run": ran, "steps_s": steps_s, "claims": [asdict(one) for one in made]}
    command = command_of("strategies.live_search_run", options)
    print(write_result("live-search-run", command, body))


if __name__ == "__main__":
    main()
