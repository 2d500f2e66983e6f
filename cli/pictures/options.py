"""The options of a job drawn: what each is worth, and what those that were simulated take.

Rule: one bar an option, in the order of the table; the other row shows dollars against hours, from
the median to the 90th percentile.
"""

from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING

from cli.costing import JobCost
from cli.pictures.canvas import AMBER, GREEN, GREY, RED, title_of, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {"spot": GREEN, "on-demand": GREY, "mixed": AMBER}


def options_svg(found: JobCost) -> bytes:
    """The picture of the table."""
    height = 2.6 + 0.28 * len(found.rows)

    def draw(figure: "Figure") -> None:
        above, below = figure.subplots(2, 1, height_ratios=(max(1, len(found.rows)), 7))
        above.set_title(title_of(f"{Path(found.job.file).name} (modelled)"), loc="left")
        _draw_values(above, found)
        _draw_outcomes(below, found)

    return to_svg(draw, width_in=9.0, height_in=height + 1.6)


def _draw_values(axes: "Axes", found: JobCost) -> None:
    names = [
        f"{place}  {one.line.instance_type} {one.line.market}, {one.line.resilience}"
        for place, one in enumerate(found.rows, start=1)
    ]
    colors = [COLORS[one.line.market] for one in found.rows]
    axes.barh(names, [one.value for one in found.rows], color=colors, height=0.7)
    axes.invert_yaxis()
    axes.set_xlabel("samples per dollar, by the planner")
    axes.grid(axis="y", visible=False)


def _draw_outcomes(axes: "Axes", found: JobCost) -> None:
    for place, option in enumerate(found.rows, start=1):
        outcome = next((one for one in found.outcomes if one.option == option), None)
        if outcome is None or isinf(outcome.usd_p90) or isinf(outcome.hours_p90):
            continue
        hours = [outcome.hours_p50, outcome.hours_p90]
        axes.plot(
            hours,
            [outcome.whole_usd_p50, outcome.whole_usd_p90],
            marker="o",
            markersize=4,
            linewidth=1.2,
            color=COLORS[option.line.market],
        )
        at = (outcome.hours_p90, outcome.whole_usd_p90)
        axes.annotate(f" {place}", at, fontsize=8, va="center")
    if not isinf(found.budget_usd):
        axes.axhline(found.budget_usd, color=RED, linewidth=0.8, label="budget")
    if not isinf(found.deadline_h):
        axes.axvline(found.deadline_h, color=RED, linewidth=0.8, label="deadline")
    axes.margins(0.06)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("hours, simulated: p50 to p90")
    axes.set_ylabel("dollars, modelled")
