"""Where redundancy pays compared with checkpoint-restart: nodes x losses x restart time.

    python -m benchmarks.restart_map [--seeds 3] [--hours 24] [--plot MAP.svg] [--of RESULT.json]

BERT-large in up to eight pipelines of four stages, on made-up markets with as many victims at an
instant as the published p3 trace has. Ours is in the mode that `redundancy = "auto"` takes for the
hazard, with a checkpoint every EVERY steps. It is also played in the other modes, which shows
whether `auto` was right. The rival is checkpoint-restart with its best interval, and the same step
times and markets. Messages take time on the link, in addition to the published step times. Value is
samples per dollar, with bytes between zones and the store of checkpoints. All of it is simulated
and modelled; cells in which ours gains nothing are in the map as well.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bamboo.config.catalogue import load_catalogue
from bamboo.core.state import GridTime, Policy
from bamboo.planner.plans.candidates import Room
from bamboo.planner.plans.losses import Hazard
from bamboo.planner.plans.modes import choose_mode
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.risks.hazards import said
from bamboo.planner.risks.zones import REPLACE_S, Stakes
from bamboo.planner.step.step_time import StepTimes
from bamboo.sim.asked import Asked
from bamboo.sim.market.presets import P3_BULK
from bamboo.sim.market.prices import constant
from bamboo.sim.market.synth import Market, ZoneNodes, synthesise
from bamboo.sim.market.trace import Trace
from bamboo.sim.members import Pauses
from bamboo.sim.run import Figures, TimesBook, simulate
from bamboo.sim.ways import CHECKPOINT_RESTART
from bamboo.sim.world import Terms
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from benchmarks.measuring.options import at_least, more_than_zero, parsed
from benchmarks.measuring.report import command_of, write_result
from benchmarks.published.nsdi23 import ON_DEMAND_USD_PER_HOUR, SPOT_USD_PER_HOUR
from cli.pictures.canvas import AMBER, GREEN, check_name, to_svg
from testbed.published_profile import bert_large

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NODES = (4, 8, 16, 32)
HAZARDS = (0.01, 0.1, 0.3, 1.0)
RESTARTS_S = (30.0, 300.0, 900.0)
STAGES, EVERY = 4, 20
PAYS = 1.2
ZONE = "us-east-1a"
GPU_BYTES = 16 * 2**30


def asked(work: WorkloadFigures, grid: Grid, mode: str, *, hours: float, every: int) -> Asked:
    """A job of that grid, which gets another cut while there are fewer nodes."""
    times, leaves = StepTimes(work, mode), work.shape.virtual_nodes
    lengths = range(2, STAGES + 1)
    return Asked(
        workload=work,
        policy=Policy(
            cuts=tuple(work.cut(p) for p in lengths),
            virtual_nodes=leaves,
            pipelines=grid.pipelines,
            stages=STAGES,
            checkpoint_every=every,
            grids=tuple(
                GridTime(
                    pipelines=d,
                    stages=p,
                    step_s=times.calm_s(Grid(pipelines=d, stages=p), equal_shares(leaves, d)),
                )
                for d in range(1, grid.pipelines + 1)
                for p in lengths
            ),
        ),
        grid=grid,
        redundancy=mode,
        standbys=0,
        patience_s=30.0,
        park_s=math.inf,
        terms=Terms(),
        pauses=Pauses(),
        prices=constant(SPOT_USD_PER_HOUR),
        on_demand_usd_per_hour=ON_DEMAND_USD_PER_HOUR,
        horizon_s=hours * 3600,
        store=load_catalogue("us-east-1").auxiliary,
    )


def auto(work: WorkloadFigures, grid: Grid, hazard: float) -> tuple[str, str]:
    """The mode that the planner takes, and its sentence."""
    stakes = Stakes(
        zone_usd_per_hour={ZONE: SPOT_USD_PER_HOUR},
        preemptible=True,
        steps=1_000_000,
        checkpoint_every=EVERY,
    )
    room = Room(
        memory_bytes=GPU_BYTES,
        nodes=range(2, grid.size + 1),
        grids=(grid,),
        microbatches=(work.microbatch,),
    )
    odds = Hazard(stakes=stakes, rate=said(hazard), replace_s=REPLACE_S)
    chosen = choose_mode(work, grid, room, odds, spread="one", standbys=0)
    return chosen.taken.choice.mode, chosen.why


def value(found: Sequence[Figures]) -> float:
    """Samples per dollar over all seeds."""
    samples = sum(one.samples_per_s * one.seconds for one in found)
    return samples / sum(one.usd + one.store_usd for one in found)


def markets(nodes: int, hazard: float, *, seeds: int, hours: float) -> list[Trace]:
    """As many nodes as the job takes; a lost node is back after a minute and its boot."""
    market = Market(
        zones=(ZoneNodes(name=ZONE, nodes=nodes),),
        preemptions_per_node_hour=hazard,
        bulk=P3_BULK,
        back_s=REPLACE_S - Terms().boot_s,
    )
    return [synthesise(market, seed=seed, hours=hours) for seed in range(seeds)]


def row(
    work: WorkloadFigures, nodes: int, hazard: float, *, seeds: int, hours: float
) -> dict[str, Any]:
    """Ours once, and checkpoint-restart for each restart time."""
    grid = Grid(pipelines=nodes // STAGES, stages=STAGES)
    played, times = markets(nodes, hazard, seeds=seeds, hours=hours), TimesBook(work)
    mode, why = auto(work, grid, hazard)
    values = {}
    others = ("off", "stash", "peer") if grid.pipelines > 1 else ("off", "stash")
    for name in dict.fromkeys((mode, *others)):
        one = asked(work, grid, name, hours=hours, every=EVERY)
        found = [simulate(one, t, times=times, keep_moments=False) for t in played]
        values[name] = value(found)
    theirs = {}
    bare = asked(work, grid, "off", hours=hours, every=0)
    for restart_s in RESTARTS_S:
        one = replace(bare, restart_s={CHECKPOINT_RESTART: restart_s})
        found = [
            simulate(one, t, times=times, system=CHECKPOINT_RESTART, keep_moments=False)
            for t in played
        ]
        theirs[f"{restart_s:g}"] = value(found)
    return {
        "nodes": nodes,
        "losses_per_node_hour": hazard,
        "auto": mode,
        "why": why,
        "samples_per_usd": values,
        "checkpoint_restart": theirs,
        "ratio": {name: round(values[mode] / other, 3) for name, other in theirs.items()},
        "auto_over_off": round(values[mode] / values["off"], 3),
        "auto_of_best": round(values[mode] / max(values.values()), 3),
    }


def text_of(rows: Sequence[dict[str, Any]]) -> str:
    """The map as text: a line for each number of nodes and hazard."""
    lines = [
        f"{'nodes':>5} {'losses/h':>9} {'auto':>7}  " + "".join(f"{r:>8g} s" for r in RESTARTS_S)
    ]
    lines[0] += "   over our off  of our best"
    for one in rows:
        ratios = "".join(f"{ratio:>10.2f}" for ratio in one["ratio"].values())
        lines.append(
            f"{one['nodes']:>5} {one['losses_per_node_hour']:>9g} {one['auto']:>7}  {ratios}   "
            f"{one['auto_over_off']:>12.2f} {one['auto_of_best']:>12.3f}"
        )
    cells = [ratio for one in rows for ratio in one["ratio"].values()]
    lines.append(
        f"{sum(ratio >= PAYS for ratio in cells)} of {len(cells)} cells reach {PAYS:g} x; least "
        f"{min(cells):.2f}, median {statistics.median(cells):.2f}, most {max(cells):.2f}"
    )
    return "\n".join(lines)


def map_svg(rows: Sequence[dict[str, Any]]) -> bytes:
    """The map as a picture: a panel for each restart time, a cell for each number of nodes and
    hazard, with the ratio and the mode that `auto` takes; a ratio of PAYS or more is in bold."""

    def draw(figure: "Figure") -> None:
        panels = figure.subplots(1, len(RESTARTS_S), sharey=True)
        for axes, restart_s in zip(panels, RESTARTS_S, strict=True):
            cells = {
                (one["losses_per_node_hour"], one["nodes"]): (
                    one["ratio"][f"{restart_s:g}"],
                    one["auto"],
                )
                for one in rows
            }
            for (hazard, nodes), (ratio, mode) in cells.items():
                at = HAZARDS.index(hazard), NODES.index(nodes)
                depth = min(1.0, abs(math.log(ratio)) / math.log(2))
                axes.add_patch(
                    Rectangle(
                        (at[0] - 0.5, at[1] - 0.5),
                        1,
                        1,
                        facecolor=(*to_rgb(GREEN if ratio > 1 else AMBER), 0.75 * depth),
                        edgecolor="white",
                    )
                )
                weight = "bold" if ratio >= PAYS else "normal"
                axes.text(*at, f"{ratio:.2f}", ha="center", va="bottom", weight=weight)
                axes.text(*at, mode, ha="center", va="top", size=7)
            axes.set_title(f"a restart takes {restart_s:g} s", loc="left")
            axes.set_xticks(range(len(HAZARDS)), [f"{one:g}" for one in HAZARDS])
            axes.set_yticks(range(len(NODES)), [str(one) for one in NODES])
            axes.set_xlim(-0.5, len(HAZARDS) - 0.5)
            axes.set_ylim(-0.5, len(NODES) - 0.5)
            axes.set_xlabel("losses per node-hour")
            axes.grid(visible=False)
            axes.tick_params(length=0)
        panels[0].set_ylabel("nodes")
        figure.suptitle(
            "Samples per dollar with redundancy, over checkpoint-restart at its best interval "
            f"(modelled; bold: at least {PAYS:g} times)",
            x=0.01,
            ha="left",
        )

    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    return to_svg(draw, width_in=10.0, height_in=3.4)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=at_least(1), default=3)
    parser.add_argument("--hours", type=more_than_zero, default=24.0)
    parser.add_argument("--plot", type=Path, help="draw the map as this SVG file")
    parser.add_argument("--of", type=Path, help="play nothing, and show this result")
    arguments = parsed(parser, given)
    if arguments.plot is not None:
        check_name(arguments.plot)
    if arguments.of is not None:
        rows = json.loads(arguments.of.read_text())["rows"]
        print(text_of(rows))
    else:
        rows = play(seeds=arguments.seeds, hours=arguments.hours)
        body = {"modelled": True, "pays": PAYS, "checkpoint_every_of_ours": EVERY, "rows": rows}
        print(write_result("restart-map", command_of("restart_map", arguments), body))
    if arguments.plot is not None:
        arguments.plot.write_bytes(map_svg(rows))
    return 0


def play(*, seeds: int, hours: float) -> list[dict[str, Any]]:
    """All rows of the map; each is printed as it is known."""
    base = bert_large()
    base = replace(base, bytes_per_s=base.state_bytes_per_s)  # sending for redundancy takes time
    rows = []
    for nodes in NODES:
        leaves = max(base.shape.virtual_nodes, nodes // STAGES)
        many = base.shape.total // leaves
        shape = replace(base.shape, virtual_nodes=leaves, microbatches=many)
        work = replace(base, shape=shape)
        for hazard in HAZARDS:
            rows.append(row(work, nodes, hazard, seeds=seeds, hours=hours))
            print(text_of(rows[-1:]).splitlines()[1], flush=True)
    print(text_of(rows))
    return rows


if __name__ == "__main__":
    sys.exit(main())
