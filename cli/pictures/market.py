"""A spot market over time: how many nodes are alive, and below it how many each instant took.

Rule: `draw_alive` and `draw_instants` draw on axes whose x is hours, so that other pictures can
stack them. A trace with more changes than a picture has dots is thinned to the least and the most
in each dot's span, which looks the same.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from bamboo.sim.market.trace import Trace
from bamboo.sim.market.trace_stats import HOUR_S, Instant, Level, instants, series, stats
from cli.pictures.canvas import AMBER, GREEN, GREY, RED, title_of, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS = 1000


def market_svg(trace: Trace, *, title: str) -> bytes:
    """The picture of a trace."""
    found = stats(trace)

    def draw(figure: "Figure") -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        above.set_title(title_of(title), loc="left")
        draw_alive(above, series(trace), length_s=trace.length_s, mean_nodes=found.mean_nodes)
        draw_instants(below, instants(trace), length_s=trace.length_s)
        below.set_xlabel("hours")
        figure.align_ylabels()
        below.set_xlim(0, max(trace.length_s, 1.0) / HOUR_S)

    return to_svg(draw, width_in=9.0, height_in=4.5)


def draw_alive(
    axes: "Axes", levels: Sequence[Level], *, length_s: float, mean_nodes: float
) -> None:
    """Nodes alive, as steps, and their mean."""
    shown = [*_thinned(levels, length_s), Level(at_s=length_s, alive=levels[-1].alive)]
    hours = [level.at_s / HOUR_S for level in shown]
    alive = [level.alive for level in shown]
    axes.fill_between(hours, alive, step="post", color=GREEN, alpha=0.15, linewidth=0)
    axes.step(hours, alive, where="post", color=GREEN, linewidth=1.1)
    draw_mean(axes, mean_nodes, f"mean {mean_nodes:.1f}")
    axes.set_ylim(0, max(1, *alive) * 1.08)
    axes.locator_params(axis="y", integer=True)
    axes.set_ylabel("nodes alive")


def draw_mean(axes: "Axes", mean: float, label: str) -> None:
    """A dashed line over the whole time, with its label next to the axes."""
    axes.axhline(mean, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.annotate(
        label,
        (1.0, mean),
        xycoords=("axes fraction", "data"),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        color=GREY,
    )


def draw_instants(axes: "Axes", found: Sequence[Instant], *, length_s: float) -> None:
    """A mark for each instant, as high as the nodes it took; those that span zones stand out."""
    shown = list(_largest(found, length_s))
    for spans, color in ((False, RED), (True, AMBER)):
        some = [one for one in shown if (len(one.zones) > 1) is spans]
        if some:
            at = [one.at_s / HOUR_S for one in some]
            taken = [one.taken for one in some]
            label = "several zones" if spans else "one zone"
            axes.vlines(at, 0, taken, color=color, linewidth=1.4, label=label)
    axes.set_ylim(0, max((one.taken for one in shown), default=1) * 1.15)
    axes.locator_params(axis="y", integer=True)
    axes.set_ylabel("nodes taken")
    if any(len(one.zones) > 1 for one in shown):
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.1), fontsize=8, handlelength=1.0)


def _thinned(levels: Sequence[Level], length_s: float) -> Iterator[Level]:
    """The first, least, most and last level of each dot's span, in order of time."""
    if len(levels) <= 2 * DOTS:
        yield from levels
        return
    for _, group in groupby(levels, key=lambda level: int(level.at_s / length_s * DOTS)):
        some = list(group)
        kept = {some[0], min(some, key=_alive), max(some, key=_alive), some[-1]}
        yield from sorted(kept, key=lambda level: level.at_s)


def _largest(found: Sequence[Instant], length_s: float) -> Iterator[Instant]:
    if len(found) <= DOTS:
        yield from found
        return
    for _, group in groupby(found, key=lambda one: int(one.at_s / length_s * DOTS)):
        yield max(group, key=lambda one: one.taken)


def _alive(level: Level) -> int:
    return level.alive
