"""The search for a strategy beside the best of all strategies, on paper.

    python -m benchmarks.strategies.search_on_paper [--jobs 20]

Random jobs: one or two stages, 2 to 4 pipelines, links of 0.5 to 10 Gbps, a sparse table, wide
layers that see few rows or many, and vectors, in three to five groups of parameters. Each has at
least 2,000 strategies: kind, owner and bucket of each group. All of them are priced by the model
that the search uses, so this says what the search misses, and not what the model does.
"""

import argparse
import itertools
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.builders import BUILDERS, MIB, Pricing, build
from bamboo.planner.sync.price import price
from bamboo.planner.sync.resolved import resolve
from bamboo.planner.sync.search import search, space_of
from bamboo.planner.sync.situation import Situation
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.options import at_least, parsed
from benchmarks.measuring.report import command_of, write_result

SEED, JOBS = 11, 20
LEAST, MOST = 2_000, 60_000
SHARE = 0.05
"""Of the strategies, which the search may price."""
BOUNDS: tuple[int | None, ...] = (None, MIB)
ALONE = [name for name in BUILDERS if name not in ("auto", "zoned")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Parameters, and the grid on which they are synchronised."""

    facts: tuple[ParameterFacts, ...]
    situation: Situation


def random_job(chance: random.Random) -> Job:
    """Layers of which each has a weight of its own kind, and where they are."""
    stages, pipelines = chance.choice((1, 2)), chance.choice((2, 3, 4))
    layers = chance.choice((3, 4))
    facts = []
    for layer in range(layers):
        rows, columns = (2 ** chance.randint(8, 12) for _ in range(2))
        name, shape = f"{layer}.weight", (rows, columns)
        if layer == 0 and chance.random() < 0.7:
            density = 10 ** chance.uniform(-3, -0.3)
            facts.append(
                ParameterFacts(
                    name=name, shape=(8 * rows, 128), layer=0, density=density / 2,
                    step_density=density, why_not="is a table",
                )
            )  # fmt: skip
        else:
            facts.append(
                ParameterFacts(
                    name=name, shape=shape, layer=layer, rows_k=2 ** chance.randint(1, 10)
                )
            )
    backward_s = [chance.uniform(0.005, 0.05) for _ in range(layers)]
    cut = (0, layers) if stages == 1 else (0, layers // 2, layers)
    passed_s: list[float] = []
    for first, stop in itertools.pairwise(cut):
        passed_s += [sum(backward_s[first:layer]) for layer in range(first, stop)]
    step_s = chance.uniform(1.5, 4) * sum(backward_s)
    gbps = chance.choice((0.5, 1.0, 2.5, 10.0))
    return Job(
        facts=tuple(facts),
        situation=Situation(
            cut=cut,
            shares=tuple(chance.choice((1, 1, 2)) for _ in range(pipelines)),
            microbatches=chance.choice((1, 2, 4)),
            replica=stages > 1,
            latency_s=chance.choice((1e-4, 1e-3)),
            bytes_per_s=gbps * 125e6,
            node_bytes_per_s=chance.choice((0.0, gbps * 125e6)),
            flops_per_s=chance.choice((5e9, 5e10, 5e12)),
            added_per_s=chance.choice((2e8, 2e10)),
            message_s=2e-4,
            ends_s=tuple(step_s * (1 - 0.1 * stage) for stage in range(stages)),
            passed_s=tuple(passed_s),
            busy_s=(0.7 * step_s,) * stages,
            after_s=(0.0,) * stages,
        ),
    )


def drawn(count: int) -> list[Job]:
    """Jobs with as many strategies as they are to have."""
    chance, found = random.Random(SEED), list[Job]()
    while len(found) < count:
        job = random_job(chance)
        pricing = Pricing(job.facts, job.situation)
        if LEAST <= space_of(pricing.facts, job.situation, bounds=BOUNDS).size <= MOST:
            found.append(job)
    return found


def exhaustive_s(job: Job) -> list[float]:
    """The step of each of all strategies."""
    pricing = Pricing(job.facts, job.situation)
    space = space_of(pricing.facts, job.situation, bounds=BOUNDS)
    numbers = itertools.product(*(range(len(some)) for some in space.options))
    return [pricing.priced(space.entries(chosen)).price.step_s for chosen in numbers]


def compared(job: Job) -> dict[str, Any]:
    """What the search found in one job."""
    pricing = Pricing(job.facts, job.situation)
    size = space_of(pricing.facts, job.situation, bounds=BOUNDS).size
    found = search(job.facts, job.situation, evaluations=int(SHARE * size), bounds=BOUNDS)
    all_s = exhaustive_s(job)
    best_s = min(all_s)
    built = {
        name: price(resolve(build(name, job.facts, job.situation), job.facts, job.situation)).step_s
        for name in (*ALONE, "auto")
    }
    return {
        "strategies": size,
        "priced": found.evaluations,
        "proven": found.proven,
        "best_s": best_s,
        "behind": found.best.price.step_s / best_s - 1,
        "auto_behind": built["auto"] / best_s - 1,
        "best_builder_behind": min(built[name] for name in ALONE) / best_s - 1,
        "median_behind": statistics.median(all_s) / best_s - 1,
    }


def claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """Median and worst distance, and the share of strategies that was priced."""
    behind = [100 * one["behind"] for one in rows]
    priced = [100 * one["priced"] / one["strategies"] for one in rows]
    fewest = min(one["strategies"] for one in rows)
    return [
        Claim(about="% behind the best of all, median", found=statistics.median(behind), limit=2),
        Claim(about="% behind the best of all, worst", found=max(behind), limit=5),
        Claim(about="% of the strategies priced, most", found=max(priced), limit=100 * SHARE),
        Claim(about="strategies of a job, fewest", found=fewest, limit=LEAST, at_most=False),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=at_least(1), default=JOBS)
    options = parsed(parser)
    rows = []
    for job in drawn(options.jobs):
        one = compared(job)
        rows.append(one)
        print(
            f"{one['strategies']:6} strategies, {one['priced']:4} priced: {one['behind']:7.2%} "
            f"behind the best (auto {one['auto_behind']:.2%}, best builder "
            f"{one['best_builder_behind']:.1%}, median of all {one['median_behind']:.0%})"
            f"{', proven' if one['proven'] else ''}",
            flush=True,
        )
    found = claims(rows)
    for claim in found:
        print(claim.line())
    body = {"modelled": True, "jobs": rows, "claims": [asdict(claim) for claim in found]}
    print(write_result("search-on-paper", command_of("strategies.search_on_paper", options), body))


if __name__ == "__main__":
    main()
