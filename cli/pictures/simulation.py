"""A simulated run drawn over time: nodes, throughput, dollars, and what happened.

Rule: x is hours of the world; each row has one unit.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from bamboo.quantities import number
from bamboo.sim.market.trace import Trace
from bamboo.sim.market.trace_stats import instants, series
from bamboo.sim.run import HOUR_S, Figures
from bamboo.sim.world import FAILOVER, RECONFIGURATION, RESTORE, Moment
from bamboo.study.simulating import Simulated
from cli.pictures.canvas import AMBER, GREEN, GREY, RED, title_of, to_svg
from cli.pictures.market import draw_instants, draw_mean

SPANS = 300
"""Spans that the throughput is averaged over."""
DOTS = 1000
"""Dots next to each other in a picture; of marks within one dot the first is drawn."""
MARKS = ((RESTORE, RED, 1.24), (RECONFIGURATION, AMBER, 1.16), (FAILOVER, GREY, 1.08))
"""What is marked above the throughput, in which colour and at which multiple of its maximum."""

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def simulation_svg(drawn: tuple[Trace, Figures], simulated: Simulated, *, title: str) -> bytes:
    """The picture of one run on its market."""
    trace, found = drawn

    def draw(figure: "Figure") -> None:
        nodes, rate, money, losses = figure.subplots(4, 1, sharex=True, height_ratios=(3, 3, 2, 1))
        nodes.set_title(title_of(title), loc="left")
        _draw_nodes(nodes, trace, found)
        _draw_rate(rate, found, batch=simulated.asked.workload.batch)
        _draw_money(money, found)
        draw_instants(losses, instants(trace), length_s=max(found.seconds, 1.0))
        losses.set_ylabel("nodes taken\n(by the market)")
        losses.set_xlabel("hours")
        losses.set_xlim(0, max(found.seconds, 1.0) / HOUR_S)
        figure.align_ylabels()

    return to_svg(draw, width_in=9.0, height_in=8.0)


def _draw_nodes(axes: "Axes", trace: Trace, found: Figures) -> None:
    levels = [level for level in series(trace) if level.at_s <= found.seconds]
    hours = [*(level.at_s / HOUR_S for level in levels), found.seconds / HOUR_S]
    alive = [*(level.alive for level in levels), levels[-1].alive if levels else 0]
    axes.fill_between(hours, alive, step="post", color=GREY, alpha=0.18, linewidth=0)
    times = [*(m.at_s / HOUR_S for m in found.moments), found.seconds / HOUR_S]
    rented = [*(m.rented for m in found.moments), found.moments[-1].rented if found.moments else 0]
    axes.step(times, rented, where="post", color=GREEN, linewidth=1.1, label="rented")
    axes.set_ylim(0, max(1, *alive, *rented) * 1.08)
    axes.locator_params(axis="y", integer=True)
    axes.set_ylabel("nodes: rented (green),\non offer (grey)")


def _draw_rate(axes: "Axes", found: Figures, *, batch: int) -> None:
    """Averages over short spans, since a stop of a second would draw a line down to the bottom."""
    hours = [found.seconds / HOUR_S * point / SPANS for point in range(SPANS + 1)]
    steps = _steps_at(found.moments, [hour * HOUR_S for hour in hours])
    span_s = max(found.seconds / SPANS, 1e-9)
    rates = [max(0.0, b - a) * batch / span_s for a, b in pairwise(steps)]
    rates.append(rates[-1])
    axes.fill_between(hours, rates, step="post", color=GREEN, alpha=0.15, linewidth=0)
    axes.step(hours, rates, where="post", color=GREEN, linewidth=1.0)
    draw_mean(axes, found.samples_per_s, f"mean {number(found.samples_per_s)}")
    top = max(1e-9, *rates)
    for name, color, height in MARKS:
        at = apart([m.at_s for m in found.moments if m.kind == name], found.seconds)
        if at:
            axes.plot(at, [top * height] * len(at), "v", color=color, markersize=3.5, label=name)
            axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, fontsize=8)
    axes.set_ylim(0, top * 1.33)
    axes.set_ylabel("samples/s")


def apart(times_s: Sequence[float], length_s: float) -> list[float]:
    """In hours, thinned so that each mark can be seen."""
    first = {int(at_s / max(length_s, 1e-9) * DOTS): at_s for at_s in reversed(times_s)}
    return [at_s / HOUR_S for at_s in sorted(first.values())]


def _steps_at(moments: Sequence[Moment], times_s: Sequence[float]) -> list[float]:
    """Steps done by each time, linear between two moments."""
    out, index = [], 0
    for time_s in times_s:
        while index + 1 < len(moments) and moments[index + 1].at_s <= time_s:
            index += 1
        here, after = moments[index], moments[min(index + 1, len(moments) - 1)]
        part = (time_s - here.at_s) / (after.at_s - here.at_s) if after.at_s > here.at_s else 0.0
        out.append(here.steps + min(max(part, 0.0), 1.0) * (after.steps - here.steps))
    return out


def _draw_money(axes: "Axes", found: Figures) -> None:
    times = [at_s / HOUR_S for at_s, _ in found.dollars]
    axes.plot(times, [usd for _, usd in found.dollars], color=AMBER, linewidth=1.2)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("dollars,\nmodelled")
