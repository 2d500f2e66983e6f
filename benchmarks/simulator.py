"""How fast the simulator is: one long trace, a thousand seeds, and time per event by cluster size.

    python -m benchmarks.simulator --trace bamboo-p3.csv [--seeds 1000] [--rounds 5]

trace     the trace tiled to 24 h and doubled, BERT-large up to 4 x 12: CPU seconds of one process,
          the first run of a fresh process each time, dry runs of the schedule included
seeds     24 h of a made-up market of 48 nodes at a hazard of .10 per node-hour each, on all cores:
          wall seconds, start of the processes included
events    the same market with 64 and with 4,096 nodes (5 x 12 and 341 x 12), as many node-hours of
          both: CPU seconds per event of the queue and per event that the core decides (what many
          nodes say at one instant is one event of the queue), dry runs left out
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bamboo.core.state import Policy
from bamboo.planner.profiles.workload import Workload
from bamboo.sim.asked import Asked
from bamboo.sim.market.synth import Market, hazard_market, synthesise
from bamboo.sim.market.trace import Trace, read_trace
from bamboo.sim.market.trace_shape import multiplied, tiled
from bamboo.sim.run import TimesBook, simulate, simulate_seeds
from bamboo.sim.ways import OURS
from bamboo.topology.grid import Grid
from bamboo.topology.virtual_nodes import BatchShape
from benchmarks.measuring.options import at_least, parsed, trace_file
from benchmarks.measuring.report import command_of, write_result
from benchmarks.waterfall import asked
from testbed.published_profile import STAGES, bert_large

HOURS, HAZARD, SLOTS = 24.0, 0.10, 48
SIZES = {64: 5, 4096: 341}
"""Nodes -> pipelines of 12 stages."""
EVENT_HOURS = 2.0
"""Length of each market whose events are timed."""
TRACE_LIMIT_S = 600.0
"""If one trace takes longer, it is stuck."""


def made(market: Market, seed: int) -> Trace:
    return synthesise(market, seed=seed, hours=HOURS)


def one_trace(path: Path) -> dict[str, float]:
    """Play the trace in this process."""
    trace = multiplied(tiled(read_trace(path), hours=HOURS), times=2)
    begin_s = time.process_time()
    one = asked(bert_large(), trace, least=6)
    found = simulate(one, trace)
    return {
        "cpu_s": time.process_time() - begin_s,
        "events": found.events,
        "transitions": found.transitions,
        "steps": found.steps,
    }


def in_fresh_process(path: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.simulator", "--trace", str(path), "--one-trace"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=TRACE_LIMIT_S
    )
    out: dict[str, float] = json.loads(done.stdout)
    return out


def thousand(seeds: int) -> dict[str, float]:
    market = hazard_market(nodes=SLOTS, preemptions_per_node_hour=HAZARD)
    one = asked(bert_large(), made(market, 0), least=6)
    begin_s = time.perf_counter()
    found = [done[OURS] for done in simulate_seeds(one, partial(made, market), range(seeds))]
    return {
        "seeds": seeds,
        "wall_s": time.perf_counter() - begin_s,
        "events": sum(f.events for f in found),
        "transitions": sum(f.transitions for f in found),
        "mean_preemptions": statistics.fmean(f.preemptions for f in found),
        "mean_samples_per_s": statistics.fmean(f.samples_per_s for f in found),
    }


def per_event(nodes: int, pipelines: int) -> dict[str, float]:
    """Play everything twice with the same step times, so that the second run makes no dry run."""
    work: Workload = replace(bert_large(), shape=BatchShape(virtual_nodes=512, microbatches=2))
    market = hazard_market(nodes=nodes, preemptions_per_node_hour=HAZARD)
    seeds = range(1, 1 + max(SIZES) // nodes)
    traces = [synthesise(market, seed=seed, hours=EVENT_HOURS) for seed in seeds]
    small = asked(bert_large(), traces[0], least=STAGES)
    one: Asked = replace(
        small,
        workload=work,
        policy=Policy(
            cuts=(work.cut(STAGES),),
            virtual_nodes=512,
            pipelines=pipelines,
            stages=STAGES,
            checkpoint_every=100,
        ),
        grid=Grid(pipelines=pipelines, stages=STAGES),
        standbys=nodes - pipelines * STAGES,
    )
    times = TimesBook(work)
    for trace in traces:
        simulate(one, trace, times=times, keep_moments=False)
    begin_s = time.process_time()
    found = [simulate(one, trace, times=times, keep_moments=False) for trace in traces]
    cpu_s = time.process_time() - begin_s
    events, decided = sum(f.events for f in found), sum(f.transitions for f in found)
    return {
        "nodes": nodes,
        "markets": len(traces),
        "cpu_s": cpu_s,
        "events": events,
        "transitions": decided,
        "us_per_event": cpu_s / events * 1e6,
        "us_per_transition": cpu_s / decided * 1e6,
    }


def events_of(sizes: dict[int, int], rounds: int) -> dict[str, Any]:
    """Both sizes in turn, `rounds` times, with the ratios of neighbouring rounds."""
    played = [[per_event(*size) for size in sizes.items()] for _ in range(rounds)]
    small, large = zip(*played, strict=True)
    of: dict[str, Any] = {"rounds": played}
    for name in ("us_per_event", "us_per_transition"):
        ratios = sorted(b[name] / a[name] for a, b in played)
        of[name] = {
            "small": statistics.median(one[name] for one in small),
            "large": statistics.median(one[name] for one in large),
            "ratio": statistics.median(ratios),
            "least": ratios[0],
            "most": ratios[-1],
        }
    return of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--trace", type=trace_file, required=True, help="Bamboo's p3 trace, event CSV"
    )
    parser.add_argument("--seeds", type=at_least(1), default=1000)
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--one-trace", action="store_true", help=argparse.SUPPRESS)
    arguments = parsed(parser)
    if arguments.one_trace:
        print(json.dumps(one_trace(arguments.trace)))
        return
    body: dict[str, Any] = {"trace_name": arguments.trace.name}
    body["trace"] = [in_fresh_process(arguments.trace) for _ in range(arguments.rounds)]
    cpu = [one["cpu_s"] for one in body["trace"]]
    print(
        f"{HOURS:g} h, 64 nodes: {statistics.median(cpu):.2f} CPU s "
        f"({min(cpu):.2f} to {max(cpu):.2f}), {body['trace'][0]['transitions']} decisions"
    )
    body["events"] = events_of(SIZES, arguments.rounds)
    for name, said in (("us_per_event", "of the queue"), ("us_per_transition", "decided")):
        one = body["events"][name]
        print(
            f"per event {said}: {one['small']:.0f} us with 64 nodes, {one['large']:.0f} us with "
            f"4,096: {one['ratio']:.2f} x ({one['least']:.2f} to {one['most']:.2f})"
        )
    body["seeds"] = thousand(arguments.seeds)
    print(
        f"{arguments.seeds} seeds of {HOURS:g} h: {body['seeds']['wall_s']:.1f} s, "
        f"{body['seeds']['events'] / body['seeds']['wall_s']:,.0f} events/s"
    )
    print(write_result("simulator", command_of("simulator", arguments), body))


if __name__ == "__main__":
    main()
