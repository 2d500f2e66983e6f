"""Which layouts could reach a ratio to checkpoint-restart on a recorded market (simulated).

    python -m benchmarks.trace_layouts --trace bamboo-p3.csv [--only 2x4+0,4x2+0] [--scales 60,10]

The job, the market and the terms of `benchmarks.trace_replay`, played by the simulator for many
layouts (pipelines x stages + standbys), step times and microbatches. For each, the steps of

    ours       redundancy "stash"
    theirs     redundancy "off", as it is played there: the core's own restarts, each charged
               `CONSTANTS_S[MAIN]` seconds of the trace, a checkpoint every 2, 6 or 18 steps
    one each   a checkpoint-restart that admits nodes that come during a restart, so that a loss
               costs it one restart, where the core makes two of a layout without standbys
    no pauses  always the best grid for the present nodes: no system of ours can do more

Steps are whole and checkpoints come at multiples, so chance decides a step or two. Each row is
therefore played with operations some percent shorter and longer, and the median ratio counts.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bamboo.planner.step.step_time import StepTimes
from bamboo.sim.asked import Asked
from bamboo.sim.market.trace import Trace
from bamboo.sim.members import Pauses
from bamboo.sim.other_ways.rivals import CheckpointRestart, RestartTerms
from bamboo.sim.run import TimesBook, simulate
from bamboo.sim.ways import ORACLE
from bamboo.sim.world import Terms, World
from bamboo.study.markets import MarketAsked, MarketOptions
from bamboo.study.simulating import prepare
from bamboo.topology.model_layout import equal_shares
from benchmarks.measuring.options import more_than_zero, parsed, trace_file
from benchmarks.measuring.report import command_of, write_result
from benchmarks.trace_replay import CONSTANTS_S, INTERVALS, JOB, MAIN

BASE_MS = 40.0
"""Time of a forward; all others are scaled from it."""
STRETCH = (0.97, 1.0, 1.03)
SETTLE_S = 60.0
NO_OPTIONS = MarketOptions(preset=None, hazard=None, bulk=None, back_s=None, nodes=None, zones=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A layout and its steps."""

    pipelines: int
    stages: int
    standbys: int
    forward_ms: float = BASE_MS
    batch: int = 16
    """Sequences; two make a microbatch."""

    @property
    def name(self) -> str:
        return f"{self.pipelines}x{self.stages}+{self.standbys}"


LAYOUTS = (
    (2, 3, 2),
    (2, 4, 0),
    (1, 8, 0),
    (1, 7, 1),
    (1, 6, 2),
    (1, 5, 3),
    (1, 4, 4),
    (2, 2, 4),
    (3, 2, 2),
    (4, 2, 0),
)
FORWARDS_MS = (10.0, 40.0, 160.0)
QUICK = 30.0
"""Below this scale a pause is so short that the step time hardly matters."""


def rows(forwards_ms: Sequence[float]) -> Iterator[Row]:
    """Each layout with these step times."""
    for pipelines, stages, standbys in LAYOUTS:
        for forward_ms in forwards_ms:
            yield Row(pipelines=pipelines, stages=stages, standbys=standbys, forward_ms=forward_ms)


def further() -> Iterator[Row]:
    """Rows that promised more: longer steps, and fewer or more microbatches."""
    all_eight = Row(pipelines=2, stages=4, standbys=0)
    wide, deep = (
        replace(all_eight, pipelines=4, stages=2),
        replace(all_eight, pipelines=1, stages=8),
    )
    yield from (replace(one, forward_ms=80.0) for one in (all_eight, wide))
    yield from (replace(wide, forward_ms=ms) for ms in (240.0, 320.0))
    for few in (replace(all_eight, batch=8), replace(wide, batch=8)):
        yield from (replace(few, forward_ms=ms) for ms in (80.0, 160.0, 320.0))
    yield from (replace(one, batch=32) for one in (all_eight, wide, deep))
    yield replace(deep, batch=8)


class Study:
    """One scale: jobs are planned once and their times stretched."""

    def __init__(self, trace: Path, *, scale: float, hours: float) -> None:
        self._trace, self._scale, self._hours = trace, scale, hours
        self._planned: dict[tuple[Row, str], tuple[Asked, Trace]] = {}
        self._charge_s = CONSTANTS_S[MAIN] / scale

    def study(self, row: Row) -> dict[str, Any]:
        """Mean steps, and the ratios to the rival's best interval."""
        found = [self._once(row, stretch) for stretch in STRETCH]
        ours, bound = ([one[name] for one in found] for name in ("ours", "no pauses"))
        theirs = {n: [one[f"theirs {n}"] for one in found] for n in INTERVALS}
        once = {n: [one[f"one each {n}"] for one in found] for n in INTERVALS}
        ratios = _ratios(ours, theirs)
        return {
            "layout": row.name,
            **asdict(row),
            "time_scale": self._scale,
            "hours": self._hours,
            "step_s": round(self._step_s(row), 3),
            "ours": statistics.mean(ours),
            "theirs": {n: statistics.mean(steps) for n, steps in theirs.items()},
            "restarts": found[len(found) // 2]["restarts"],
            "one_restart_a_loss": {n: statistics.mean(steps) for n, steps in once.items()},
            "no_pauses": statistics.mean(bound),
            "ratio": round(statistics.median(ratios), 3),
            "ratio_least": round(min(ratios), 3),
            "ratio_most": round(max(ratios), 3),
            "ratio_no_pauses": round(statistics.median(_ratios(bound, theirs)), 3),
            "ratio_one_restart_a_loss": round(statistics.median(_ratios(ours, once)), 3),
        }

    def _once(self, row: Row, stretch: float) -> dict[str, int]:
        protected, trace = self._asked(row, "stash", stretch)
        bare, _ = self._asked(row, "off", stretch)
        times = TimesBook(protected.workload)
        ours = simulate(protected, trace, times=times, keep_moments=False)
        best = simulate(protected, trace, times=times, system=ORACLE, keep_moments=False)
        out = {"ours": ours.steps, "no pauses": best.steps}
        stands = Pauses(reconfiguration_s=self._charge_s, restore_s=self._charge_s)
        for every in INTERVALS:
            kept = replace(bare.policy, checkpoint_every=every)
            asked = replace(bare, policy=kept, pauses=stands)
            theirs = simulate(asked, trace, times=times, keep_moments=False)
            out[f"theirs {every}"] = theirs.steps
            out.setdefault("restarts", theirs.reconfigurations)
            out[f"one each {every}"] = self._one_each(asked, trace, times.of("off"), every)
        return out

    def _one_each(self, asked: Asked, trace: Trace, times: StepTimes, every: int) -> int:
        world = World(trace=trace, terms=asked.terms, horizon_s=asked.horizon_s, keep_moments=False)
        terms = RestartTerms(
            restart_s=self._charge_s, checkpoint_every=every, settle_s=SETTLE_S / self._scale
        )
        standbys, policy = asked.standbys, asked.policy
        world.play(CheckpointRestart(world, times, policy, standbys=standbys, terms=terms))
        return world.progress.whole

    def _step_s(self, row: Row) -> float:
        """Seconds of a calm step."""
        asked, _ = self._asked(row, "stash", 1.0)
        shares = equal_shares(asked.workload.shape.virtual_nodes, row.pipelines)
        return StepTimes(asked.workload, "stash").calm_s(asked.grid, shares)

    def _asked(self, row: Row, redundancy: str, stretch: float) -> tuple[Asked, Trace]:
        known = (replace(row, forward_ms=BASE_MS), redundancy)
        if known not in self._planned:
            self._planned[known] = self._plan(*known)
        asked, trace = self._planned[known]
        factor = row.forward_ms * stretch / BASE_MS
        work, policy = asked.workload, asked.policy
        work = replace(
            work,
            forward_s=tuple(x * factor for x in work.forward_s),
            backward_s=tuple(x * factor for x in work.backward_s),
        )
        grids = tuple(replace(grid, step_s=grid.step_s * factor) for grid in policy.grids)
        return replace(asked, workload=work, policy=replace(policy, grids=grids)), trace

    def _plan(self, row: Row, redundancy: str) -> tuple[Asked, Trace]:
        market = MarketAsked(
            trace=self._trace,
            options=NO_OPTIONS,
            hours=self._hours,
            times=1,
            time_scale=self._scale,
            prices=None,
            terms=Terms(),
            far_ms=None,
            far_gbps=None,
            far_pairs=(),
        )
        keys = (
            f"cluster.pipelines={row.pipelines}",
            f"cluster.max_pipelines={row.pipelines}",
            f"cluster.stages={row.stages}",
            f"cluster.standbys={row.standbys}",
            f"cluster.redundancy={redundancy}",
            f"cluster.virtual_forward_ms=[{BASE_MS}]",
            f"cluster.virtual_backward_ms=[{2 * BASE_MS}]",
            "checkpoint.every_steps=6",
            f"train.batch={row.batch}",
            # Enough that eight stages can be cut into seven.
            "model.layers=14",
        )
        planned = prepare(JOB, overrides=keys, market=market, endless=True)
        return planned.asked, planned.market(0)


def _ratios(ours: list[int], theirs: dict[int, list[int]]) -> list[float]:
    """Ratios to the interval that was best each time."""
    served = zip(*theirs.values(), strict=True)
    return [mine / max(best) for mine, best in zip(ours, served, strict=True)]


def told(found: dict[str, Any]) -> str:
    """A row of the table."""
    theirs, once = found["theirs"], found["one_restart_a_loss"]
    return (
        f"{found['layout']:6} batch {found['batch']:2} x{found['time_scale']:<3g} "
        f"{found['hours']:g} h, a step {found['step_s']:5.2f} s: ours {found['ours']:7.1f}, theirs "
        + ", ".join(f"{theirs[n]:.1f}" for n in INTERVALS)
        + f" ({found['restarts']} restarts), {found['ratio']:.2f} x ({found['ratio_least']:.2f} to "
        f"{found['ratio_most']:.2f}); no pauses {found['ratio_no_pauses']:.2f} x; against one "
        f"restart a loss ({max(once.values()):.1f}) {found['ratio_one_restart_a_loss']:.2f} x"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trace", type=trace_file, required=True, help="a recorded market")
    parser.add_argument("--only", default="", help="layouts, such as 2x4+0,4x2+0")
    parser.add_argument("--scales", default="60,10")
    parser.add_argument("--hours", type=more_than_zero, default=3.0)
    arguments = parsed(parser)
    only = set(filter(None, arguments.only.split(",")))
    found = []
    try:
        scales = list(map(more_than_zero, arguments.scales.split(",")))
    except argparse.ArgumentTypeError as error:
        parser.error(f"--scales {error}")
    for scale in scales:
        study = Study(arguments.trace, scale=scale, hours=arguments.hours)
        forwards_ms = FORWARDS_MS if scale >= QUICK else (BASE_MS,)
        for row in (*rows(forwards_ms), *further()):
            if not only or row.name in only:
                found.append(study.study(row))
                print(told(found[-1]), flush=True)
                written = _written(command_of("trace_layouts", arguments), found, arguments)
    if not found:
        parser.error(f"--only {arguments.only}: no such layout; take some of {_names()}")
    print(written)


def _names() -> str:
    return ", ".join(dict.fromkeys(row.name for row in rows((BASE_MS,))))


def _written(command: str, found: list[dict[str, Any]], arguments: argparse.Namespace) -> Path:
    """The result so far."""
    body = {
        "trace": arguments.trace.name,
        "charge_s": CONSTANTS_S[MAIN],
        "stretched": STRETCH,
        "rows": found,
    }
    return write_result("trace-layouts", command, body, arguments.only)


if __name__ == "__main__":
    main()
