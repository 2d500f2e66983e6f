"""From the paper's rules to ours on a recorded market, one change at a time, with its gain.

    python -m benchmarks.waterfall --trace bamboo-p3.csv

BERT-large, up to 4 pipelines of 12 stages, one world and one price. Every row is a policy simulated
over the whole trace; only the first uses the published table of step times, all others use the
schedule's dry run for one profile, which is fitted to that table (`testbed.published_profile`).
Value is samples per second divided by dollars per hour, over the whole time. All of it is modelled.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bamboo.core.state import GridTime, Policy
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.step.step_time import StepTimes
from bamboo.sim.asked import Asked
from bamboo.sim.market.prices import constant
from bamboo.sim.market.trace import Trace, read_trace
from bamboo.sim.members import Pauses
from bamboo.sim.other_ways.published import PaperRules, PaperTerms
from bamboo.sim.run import Figures, figures_of, simulate
from bamboo.sim.ways import CHECKPOINT_RESTART, ORACLE, OURS, REROUTING
from bamboo.sim.world import Terms, World
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from benchmarks.measuring.options import parsed, trace_file
from benchmarks.measuring.report import command_of, write_result
from benchmarks.published.nsdi23 import MODELS, ON_DEMAND_USD_PER_HOUR, SPOT_USD_PER_HOUR
from testbed.published_profile import STAGES, bert_large

MODEL = "bert"
PIPELINES = 4
LEAST_STAGES = 6
"""The fewest stages of a pipeline after a new cut. The published table has no time for the exchange
between pipelines. With half the stages twice the bytes would have to be hidden as well, and fewer
stages are not claimed. The result has other limits, too."""
OTHER_LEAST_STAGES = (8, 10, 12)
PATIENCE_S, SURPLUS_S = 10.0, 60.0
RECUT, FRUGAL = "+ pipelines cut anew", "+ surplus given back"
NO_PAUSES, FRUGAL_NO_PAUSES = "no pauses at all", "no pauses at all, surplus given back"
PROFILE = "dry run of the profile"
TABLE = "published table"


def asked(
    work: WorkloadFigures, trace: Trace, *, least: int = STAGES, redundancy: str = "stash"
) -> Asked:
    """Our policy, with pipelines of at least `least` stages."""
    times = StepTimes(work, redundancy)
    shares = {d: equal_shares(work.shape.virtual_nodes, d) for d in range(1, PIPELINES + 1)}
    grids = tuple(
        GridTime(
            pipelines=d,
            stages=p,
            step_s=times.calm_s(Grid(pipelines=d, stages=p), shares[d]),
        )
        for d in shares
        for p in range(least, STAGES + 1)
    )
    return Asked(
        workload=work,
        policy=Policy(
            cuts=tuple(work.cut(p) for p in range(least, STAGES + 1)),
            virtual_nodes=work.shape.virtual_nodes,
            pipelines=PIPELINES,
            stages=STAGES,
            checkpoint_every=100,
            grids=grids,
        ),
        grid=Grid(pipelines=1, stages=STAGES),
        redundancy=redundancy,
        standbys=0,
        patience_s=PATIENCE_S,
        park_s=math.inf,
        terms=Terms(),
        pauses=Pauses(),
        prices=constant(SPOT_USD_PER_HOUR),
        on_demand_usd_per_hour=ON_DEMAND_USD_PER_HOUR,
        horizon_s=trace.length_s,
    )


def by_paper(
    one: Asked, trace: Trace, step_s: Callable[[int], float], terms: PaperTerms
) -> Figures:
    """The paper's rules in the same world, for the same price."""
    world = World(trace=trace, terms=one.terms, horizon_s=one.horizon_s)
    rules = PaperRules.in_world(
        world, stages=STAGES, pipelines=PIPELINES, step_s=step_s, terms=terms
    )
    world.play(rules)
    return figures_of(world, one, prices=one.prices, spot=True)


def rows(trace: Trace) -> list[tuple[str, str, Figures]]:
    """(what, the source of its step times, its figures) for each row."""
    work = bert_large()
    times = StepTimes(work, "eager")
    leaves = work.shape.virtual_nodes

    def profile_s(pipelines: int) -> float:
        grid = Grid(pipelines=pipelines, stages=STAGES)
        return times.calm_s(grid, equal_shares(leaves, pipelines))

    fixed, recut = asked(work, trace), asked(work, trace, least=LEAST_STAGES)
    eager = asked(work, trace, redundancy="eager")
    table = MODELS[MODEL].step_s
    published = PaperTerms()
    quick = PaperTerms(
        start_s=Pauses().restore_s, reconfiguration_s=Pauses().reconfiguration_s + _copy_s(work)
    )
    return [
        (
            "the paper's rules as published",
            TABLE,
            by_paper(fixed, trace, lambda d: table[d - 1], published),
        ),
        ("on the profile's step times", PROFILE, by_paper(fixed, trace, profile_s, published)),
        ("+ our pauses", PROFILE, by_paper(fixed, trace, profile_s, quick)),
        (
            "+ our decisions, a replica made anew at once; eager, fixed stages",
            PROFILE,
            simulate(eager, trace, system=OURS),
        ),
        ("+ redundancy only when it is needed", PROFILE, simulate(fixed, trace, system=OURS)),
        (RECUT, PROFILE, simulate(recut, trace, system=OURS)),
        (
            FRUGAL,
            PROFILE,
            simulate(replace(recut, surplus_s=SURPLUS_S), trace, system=OURS),
        ),
        (NO_PAUSES, PROFILE, simulate(recut, trace, system=ORACLE)),
        (
            FRUGAL_NO_PAUSES,
            PROFILE,
            simulate(replace(recut, surplus_s=SURPLUS_S), trace, system=ORACLE),
        ),
        (CHECKPOINT_RESTART, PROFILE, simulate(recut, trace, system=CHECKPOINT_RESTART)),
        (REROUTING, PROFILE, simulate(recut, trace, system=REROUTING)),
        (
            "the paper's rules, were no step slow for the loss of one who waited",
            TABLE,
            by_paper(fixed, trace, lambda d: table[d - 1], PaperTerms(waiting_slows=False)),
        ),
    ]


def _copy_s(work: WorkloadFigures) -> float:
    """Seconds to send a stage's state over the network."""
    size = work.state_bytes(range(len(work.layers) // STAGES))
    return size / work.state_bytes_per_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--trace", type=trace_file, required=True, help="Bamboo's p3 trace, event CSV"
    )
    arguments = parsed(parser)
    trace = read_trace(arguments.trace)
    found = rows(trace)
    value = {name: one.samples_per_s / one.usd_per_hour for name, _, one in found}
    first = found[0][0]
    print(f"{'':68}{'value':>7}{'of the first':>14}{'samples/s':>11}{'nodes':>7}  step times")
    body: list[dict[str, Any]] = []
    for name, source, one in found:
        print(
            f"{name:68}{value[name]:7.3f}{value[name] / value[first]:14.3f}"
            f"{one.samples_per_s:11.1f}{one.mean_nodes:7.2f}  {source}"
        )
        body.append(
            {
                "policy": name,
                "step_times": source,
                "value": round(value[name], 4),
                "of_first": round(value[name] / value[first], 4),
                "steps": one.steps,
                "samples_per_s": one.samples_per_s,
                "mean_nodes": one.mean_nodes,
                "usd_per_hour": one.usd_per_hour,
                "restores": one.restores,
                "lost_steps": one.lost_steps,
            }
        )
    shares = {
        "all nodes kept": value[RECUT] / value[NO_PAUSES],
        "surplus given back": value[FRUGAL] / value[FRUGAL_NO_PAUSES],
    }
    restarts = value[FRUGAL] / value[CHECKPOINT_RESTART]
    print(f"ours beside checkpoint and restart: {restarts:.3f} x the value")
    for what, share in shares.items():
        print(f"of the oracle that never pauses, {what}: {share:.3f}")
    others = {}
    for least in OTHER_LEAST_STAGES:
        one = simulate(replace(asked(bert_large(), trace, least=least), surplus_s=SURPLUS_S), trace)
        others[least] = round(one.samples_per_s / one.usd_per_hour, 4)
        print(f"with {least} stages at least: {others[least]:.3f}")
    result = {
        "trace": arguments.trace.name,
        "modelled": True,
        "least_stages": LEAST_STAGES,
        "of_no_pauses": shares,
        "of_checkpoint_restart": restarts,
        "rows": body,
        "value_with_other_least_stages": others,
    }
    print(write_result("waterfall", command_of("waterfall", arguments), result))


if __name__ == "__main__":
    main()
