"""The value of a planned job on a recorded spot market, on demand and with checkpoint-restart.

    python -m benchmarks.value_on_trace --trace bamboo-p3.csv [--jobs gpt2-xl] [--seeds 10]

For each job it takes the plan of `bamboo cost --trace`, first with p3.2xlarge alone, the type of
the trace, then with all types, as if their markets were the same. The plan is played on the
recorded trace by the code of `bamboo simulate`: a fleet holds as many nodes as the plan has, and
takes the market's next one when one is lost. Nothing of that is random; it is shown with the median
of made-up markets like the trace.

It is compared with on demand on the same type; the best on demand of any type in the catalogue; and
checkpoint-restart on the same trace, with the best plan that has no redundancy. Value is samples
per dollar of instances. Spot is billed as EC2 does, which charges nothing for an instance that it
takes in its first hour, and with every second paid; at the catalogue's spot price, at the top of
its range, and at the paper's. All of it is modelled.
"""

import argparse
import math
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bamboo.planner.renting.chosen import on_spot
from bamboo.planner.renting.option import ON_DEMAND, Option
from bamboo.sim.market.prices import constant
from bamboo.sim.market.synth import fit
from bamboo.sim.market.trace import Trace, TraceEvent, read_trace
from bamboo.sim.run import Figures, simulate
from bamboo.sim.ways import CHECKPOINT_RESTART, OURS
from bamboo.sim.world import Terms
from bamboo.study.costing import CostAsked, JobCost, cost_of_job
from bamboo.study.outcomes import MarketTerms, row_of
from bamboo.study.pricing import TimesAsked
from benchmarks.measuring.options import at_least, chosen, parsed, selected, trace_file
from benchmarks.measuring.report import command_of, write_result
from benchmarks.published.nsdi23 import SPOT_USD_PER_HOUR

OF_THE_TRACE = "p3.2xlarge"
WANTED = 2.0
ROOT = Path(__file__).parents[1]
BERT = """
[model]
layers = 24
width = 1024
heads = 16
context = 512
vocabulary = 30522
[train]
steps = 20000
batch = 256
microbatch = 4
virtual_nodes = 4
[cluster]
stages = 12
max_pipelines = 4
[checkpoint]
every_steps = 20
"""
GPT2 = """
[model]
layers = 12
width = 768
heads = 12
context = 1024
vocabulary = 50257
[train]
steps = 20000
batch = 64
microbatch = 2
virtual_nodes = 4
[cluster]
stages = 4
max_pipelines = 4
[checkpoint]
every_steps = 50
"""
JOBS = {
    "bert-large": BERT,
    "gpt2-xl": (ROOT / "examples" / "gpt2-xl-300usd.toml").read_text(encoding="utf-8"),
    "gpt2-small": GPT2,
}
# The trace names no zones, so all nodes are in one. Without a budget the option of most value is
# taken.
OVERRIDES = ('cloud.zones=["us-east-1a"]', "budget.max_usd=0")


@contextmanager
def quiet(_what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows no bar."""
    yield lambda _done, _of_all: None


def held(trace: Trace, nodes: int) -> Trace:
    """The nodes that a fleet of this size gets from a market: the first that come, and for each
    that is lost the one that has waited longest, under a new name."""
    there: dict[str, str] = {}
    waiting: deque[TraceEvent] = deque()
    events: list[TraceEvent] = []

    def take(event: TraceEvent, at_s: float) -> None:
        there[event.node] = f"{event.node} {len(events)}"
        events.append(replace(event, at_s=at_s, node=there[event.node]))

    for event in trace.events:
        if event.comes:
            waiting.append(event)
        elif event.node in there:
            events.append(replace(event, node=there.pop(event.node)))
        else:
            waiting = deque(one for one in waiting if one.node != event.node)
        while waiting and len(there) < nodes:
            take(waiting.popleft(), event.at_s)
    return replace(trace, events=tuple(events))


def found(path: Path, trace: Path, *, types: tuple[str, ...], seeds: int) -> JobCost:
    """The result of `bamboo cost` for a job on a market like the trace."""
    asked = CostAsked(times=TimesAsked(types=types), trace=trace, seeds=seeds)
    return cost_of_job(path, asked, overrides=OVERRIDES, bar=quiet)


def played(
    cost: JobCost,
    option: Option,
    trace: Trace,
    *,
    system: str = OURS,
    usd_per_hour: float = 0.0,
    paid: bool = False,
) -> Figures:
    """An option on the trace, to its end. `usd_per_hour` 0: the price of its plan. `paid`: every
    second is paid."""
    market = fit(trace)
    terms = MarketTerms(
        bulk=market.bulk,
        spans=market.spans,
        back_s=market.back_s,
        boot_s=Terms().boot_s,
    )
    offer = cost.offers.by_name[option.line.instance_type]
    price = usd_per_hour or option.plan.usd_per_hour / option.plan.nodes
    asked = replace(
        row_of(cost.job, offer, option, terms).asked,
        prices=constant(price),
        free_first_hour=not paid and option.line.market != ON_DEMAND,
        horizon_s=trace.length_s,
        last_step=math.inf,
    )
    return simulate(asked, held(trace, option.plan.nodes), system=system, keep_moments=False)


def of_job(path: Path, file: Path, *, seeds: int) -> dict[str, Any]:
    """All figures of a job."""
    trace = read_trace(file)
    same = found(path, file, types=(OF_THE_TRACE,), seeds=seeds)
    every = found(path, file, types=(), seeds=seeds)
    fixed = same.table.first(lambda one: one.line.market == ON_DEMAND)
    best_fixed = every.table.first(lambda one: one.line.market == ON_DEMAND)
    bare = on_spot(same.table.found, redundant=False)
    ours, theirs = same.chosen.outcome, every.chosen.outcome
    if ours is None or theirs is None or fixed is None or best_fixed is None or not bare:
        raise RuntimeError(f"{path.stem}: nothing to compare: {same.chosen.why}")
    kind = same.offers.catalogue.find(OF_THE_TRACE)
    top = (kind.spot_usd_per_hour or (0.0, 0.0))[1]
    price = ours.option.plan.usd_per_hour / ours.option.plan.nodes
    one = played(same, ours.option, trace)
    ways = {
        "catalogue": (price, False),
        "catalogue, every second paid": (price, True),
        "top of its range": (top, False),
        "the paper's, every second paid": (SPOT_USD_PER_HOUR, True),
    }
    plans = {"value": (ours.option, OURS), "restart": (bare[0], CHECKPOINT_RESTART)}
    values: dict[str, dict[str, float]] = {}
    for way, (usd, paid) in ways.items():
        values[way] = {"spot": usd}
        for name, (option, system) in plans.items():
            figures = played(same, option, trace, system=system, usd_per_hour=usd, paid=paid)
            values[way][name] = figures.samples_per_usd
    other = played(every, theirs.option, trace)
    return {
        "plan": f"{ours.option.plan.choice.name}, {ours.option.line.name}",
        "hours": one.seconds / 3600,
        "preemptions": one.preemptions,
        "restores": one.restores,
        "values": values,
        "like_it_p50": ours.value,
        "spot_from": kind.spot_from and f"{kind.spot_from.seen}: {kind.spot_from.source}",
        "on_demand": {"option": fixed.line.name, "value": fixed.value},
        "on_demand_of_any": {"option": best_fixed.line.name, "value": best_fixed.value},
        "checkpoint_restart": bare[0].line.name,
        "of_all_types": {
            "option": theirs.option.line.name,
            "spot": theirs.option.plan.usd_per_hour / theirs.option.plan.nodes,
            "value": other.samples_per_usd,
            "like_it_p50": theirs.value,
        },
    }


def text_of(name: str, body: dict[str, Any]) -> str:
    """The figures for the terminal."""
    same, best = body["on_demand"]["value"], body["on_demand_of_any"]["value"]
    other = body["of_all_types"]
    rows = [(f"{OF_THE_TRACE}, {which}", one) for which, one in body["values"].items()]
    rows.append((f"of all types: {other['option'].partition(',')[0]}", other))
    lines = [
        f"{name}: {body['plan']}",
        f"  {body['hours']:.2f} h of the trace, {body['preemptions']} preemptions, "
        f"{body['restores']} restores; {body['like_it_p50']:,.0f} samples per $ in the median of "
        "markets like it",
        f"  {'':46} spot $/h  samples per $  times (a)  times (b)  times (c)",
    ]
    for words, one in rows:
        line = f"  {words:46} {one['spot']:>8.4f}  {one['value']:>13,.0f}"
        line += f"  {one['value'] / same:>9.2f}  {one['value'] / best:>9.2f}"
        lines.append(
            line + (f"  {one['value'] / one['restart']:>9.2f}" if "restart" in one else "")
        )
    lines += [
        f"  (a) {same:,.0f}: {body['on_demand']['option']}",
        f"  (b) {best:,.0f}: {body['on_demand_of_any']['option']}, the best on demand of all types",
        f"  (c) checkpoint-restart at the same price: {body['checkpoint_restart']}",
        f"  catalogue's spot price: {body['spot_from']}",
    ]
    return "\n".join(lines)


def verdict(bodies: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Which basis reaches the target."""
    for words, key in (("the same type", "on_demand"), ("any type", "on_demand_of_any")):
        for planned in (OF_THE_TRACE, "all types"):
            reached = []
            for name, body in bodies.items():
                ours = body["values"]["catalogue"]
                ours = ours if planned == OF_THE_TRACE else body["of_all_types"]
                if ours["value"] >= WANTED * body[key]["value"]:
                    reached.append(name)
            yield (
                f"planned of {planned}, at least {WANTED:g} times the best on demand of {words}: "
                f"{len(reached)} of {len(bodies)} ({', '.join(reached) or 'none'})"
            )


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--trace", type=trace_file, required=True, help="Bamboo's p3 trace, event CSV"
    )
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--seeds", type=at_least(1), default=10)
    arguments = parsed(parser, given)
    names = chosen(parser, "job", arguments.jobs, JOBS)
    bodies = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = Path(folder) / f"{name}.toml"
            path.write_text(JOBS[name], encoding="utf-8")
            bodies[name] = of_job(path, arguments.trace, seeds=arguments.seeds)
            print(text_of(name, bodies[name]), flush=True)
    for line in verdict(bodies):
        print(line)
    command = command_of("value_on_trace", arguments)
    part = selected(parser, arguments, "jobs")
    print(write_result("value-on-trace", command, {"jobs": bodies}, *part))
    return 0


if __name__ == "__main__":
    sys.exit(main())
