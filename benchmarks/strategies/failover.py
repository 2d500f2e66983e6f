"""Pause and hit step of a failover in every kind of exchange and of ship.

    python -m benchmarks.strategies.failover [--rounds 2] [--kills 6]

The job of `benchmarks.hit_step` in mode `stash`, on two pipelines of two stages. The strategies
take turns; in a round all lose the same stages at the same shares of a step. Ratios are those of
each strategy over `tree`, means over all losses.
"""

import argparse
from dataclasses import asdict, replace
from statistics import median

from bamboo.config.tree import JobConfig
from bamboo.topology.sync import FACTORS, OWNER, ROWS, ZONED, Sync, SyncRule
from benchmarks.failover import failover_ours as ours
from benchmarks.hit_step import Found, losses, played
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.options import at_least, parsed
from benchmarks.measuring.report import (
    command_of,
    in_turn,
    median_with_interval,
    ratio_of_means,
    write_result,
)
from testbed.forker import close_shared_forker

PIPELINES, STAGES = 2, 2
FORWARD_MS = (36.0, 44.0)
LINEAR = ("*.qkv.weight", "*.project.weight", "*.expand.weight", "*.contract.weight")
LIMIT = 1.1
"""Of a kind's over that of `tree`, at most: the spread of these figures from run to run."""
STRATEGIES = {
    "tree": Sync(),
    "owner": Sync(rules=(SyncRule(match="*", exchange=OWNER, owners=(0, 1)),), bucket=0),
    "rows": Sync(rules=(SyncRule(match="*.weight", exchange=ROWS, ship=ROWS),), bucket=0),
    "factors": Sync(
        rules=tuple(SyncRule(match=name, exchange=FACTORS, ship=FACTORS) for name in LINEAR),
        bucket=0,
    ),
    "zoned": Sync(rules=(SyncRule(match="*", exchange=ZONED),), bucket=0, zones=(0, 1)),
}


def job() -> JobConfig:
    """Two pipelines of two stages, with the work of four stages in each."""
    one = ours.job("stash")
    cluster = replace(
        one.cluster,
        pipelines=PIPELINES,
        stages=STAGES,
        virtual_forward_ms=FORWARD_MS,
        virtual_backward_ms=tuple(2 * x for x in FORWARD_MS),
    )
    return replace(one, cluster=cluster)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=at_least(1), default=2)
    parser.add_argument("--kills", type=at_least(1), default=6, help="of each strategy in a round")
    arguments = parsed(parser)
    found: dict[str, list[Found]] = {name: [] for name in STRATEGIES}
    step_s = ours.BATCH / PIPELINES * 3 * max(FORWARD_MS) / 1e3
    try:
        for number in range(arguments.rounds):
            todo = losses(arguments.kills, seed=number, stages=STAGES)
            for name in in_turn(tuple(STRATEGIES), number):
                one = played(job(), todo, step_s, STRATEGIES[name])
                if one.difference:
                    raise RuntimeError(f"{name}: not the calm run's bits: {one.difference}")
                found[name].append(one)
                print(f"round {number}, {name}: calm {1e3 * one.calm_s:.0f} ms", flush=True)
    finally:
        close_shared_forker()
    claims = []
    body: dict[str, object] = {}
    for what in ("pause", "hit step"):
        seconds = {name: _seconds(what, runs) for name, runs in found.items()}
        body[what] = seconds
        for name, values in seconds.items():
            middle, low, high = (1e3 * x for x in median_with_interval(values))
            print(f"{what:9} {name:8} median {middle:7.1f} ms, 95 % {low:.1f} - {high:.1f}")
            if name == "tree":
                continue
            ratio, low, high = ratio_of_means(values, seconds["tree"])
            about = f"{what} with {name} over tree, means over all losses"
            claims.append(Claim(about=about, found=ratio, limit=LIMIT, interval=(low, high)))
            print(claims[-1].line())
    body["claims"] = [asdict(claim) for claim in claims]
    body["calm_s"] = {name: median(x.calm_s for x in runs) for name, runs in found.items()}
    command = command_of("strategies.failover", arguments)
    print(f"written: {write_result('strategy-failover', command, body).name}")


def _seconds(what: str, runs: list[Found]) -> list[float]:
    if what == "pause":
        return [pause for run in runs for pause in run.pause_s]
    return [run.calm_s + extra for run in runs for extra in run.extra_s]


if __name__ == "__main__":
    main()
