"""The options of a job as a picture: the value of each, and the time and dollars of those that were
simulated.

Rule: one bar for each option, in the order of the table. Below them are the simulated options:
dollars up to the median and on to the 90th percentile, next to the hours. Red marks a missed limit.
"""

from collections.abc import Mapping
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING

from bamboo.planner.renting.chosen import Outcome
from bamboo.planner.renting.option import HOUR_S, Option
from bamboo.quantities import duration, usd
from bamboo.study.costing import JobCost
from cli.pictures.canvas import AMBER, GREEN, GREY, RED, title_of, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {"spot": GREEN, "on-demand": GREY, "mixed": AMBER}


def options_svg(found: JobCost) -> bytes:
    """The picture of the table."""
    played = _played(found)

    def draw(figure: "Figure") -> None:
        if not played:
            above = figure.subplots()
        else:
            rows = (len(found.rows) + 2, len(played) + 2)
            above, below = figure.subplots(2, 1, height_ratios=rows)
            _draw_outcomes(below, found, played)
        above.set_title(title_of(f"{Path(found.job.file).name} (modelled)"), loc="left")
        _draw_values(above, found)

    height = 1.4 + 0.28 * len(found.rows) + (0.9 + 0.28 * len(played) if played else 0.0)
    return to_svg(draw, width_in=9.0, height_in=height)


def _played(found: JobCost) -> dict[int, Outcome]:
    """Outcomes by row of the table, of the options that finish in nine runs of ten."""
    return {
        place: outcome
        for place, option in enumerate(found.rows, start=1)
        for outcome in found.outcomes
        if outcome.option == option and not (isinf(outcome.usd_p90) or isinf(outcome.hours_p90))
    }


def _name(place: int, option: Option) -> str:
    line = option.line
    return f"{place}  {line.instance_type} {line.market}, {line.resilience}"


def _draw_values(axes: "Axes", found: JobCost) -> None:
    names = [_name(place, one) for place, one in enumerate(found.rows, start=1)]
    colors = [COLORS[one.line.market] for one in found.rows]
    axes.barh(names, [one.value for one in found.rows], color=colors, height=0.7)
    axes.invert_yaxis()
    axes.set_xlabel("samples per dollar, by the planner")
    axes.grid(axis="y", visible=False)


def _draw_outcomes(axes: "Axes", found: JobCost, played: Mapping[int, Outcome]) -> None:
    names = [_name(place, one.option) for place, one in played.items()]
    likely = [one.whole_usd_p50 for one in played.values()]
    further = [one.whole_usd_p90 - one.whole_usd_p50 for one in played.values()]
    colors = [COLORS[one.option.line.market] for one in played.values()]
    axes.barh(names, likely, color=colors, height=0.7)
    axes.barh(names, further, left=likely, color=colors, height=0.7, alpha=0.45)
    for name, one in zip(names, played.values(), strict=True):
        keeps = one.keeps(deadline_h=found.deadline_h, budget_usd=found.budget_usd)
        hours = f"  {usd(one.whole_usd_p50)}, {duration(one.hours_p50 * HOUR_S)}"
        at = (one.whole_usd_p90, name)
        axes.annotate(hours, at, fontsize=8, va="center", color="black" if keeps else RED)
    if not isinf(found.budget_usd):
        axes.axvline(found.budget_usd, color=RED, linewidth=0.8)
        axes.annotate(
            f" budget {usd(found.budget_usd)}",
            (found.budget_usd, 1.0),
            xycoords=("data", "axes fraction"),
            fontsize=8,
            va="bottom",
            ha="center",
            color=RED,
        )
    # Leave room for the words next to the longest bar.
    most = max(one.whole_usd_p90 for one in played.values())
    axes.set_xlim(0, 1.3 * max(most, 0.0 if isinf(found.budget_usd) else found.budget_usd))
    axes.invert_yaxis()
    axes.set_xlabel("dollars of the whole job, simulated: median, and paler to the 90th percentile")
    axes.grid(axis="y", visible=False)
