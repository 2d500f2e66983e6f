"""The pictures of a run's report: SVG elements inside a page, in the page's own colours.

Rule: everything is drawn in the colours of `INKS`, and each becomes a variable of the page's style,
so one drawing works in the light and in the dark theme. Each picture is drawn twice, for a narrow
and for a wide place, and the page's style shows one of them, so that its text is never tiny nor
huge. No text is inside the axes, where a curve could cross it: what a line means is above them.
Each drawing's ids are made unique, since all share one page. Data with more points than a drawing
has dots is thinned to the least and the most of each dot, which looks the same.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from bamboo.billing.money import Rented
from bamboo.study.report import Report
from bamboo.telemetry.records import MetricRecord
from bamboo.value import samples_per_s
from cli.pictures.canvas import title_of, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FONT = 12.0
"""Of all text, in points of a drawing; on the page, one is about a pixel."""
LETTER, KEY = 0.64 * FONT, 3.2 * FONT
"""How wide a letter of a zone's name is, and a line of the key with its gaps, in points."""
TAKEN = "taken by the cloud"
LONGEST_NAME = 18
"""Letters of a zone's name that are drawn."""
DOTS = 600
MOST_METRICS = 8
LONGEST_PAUSE = 20.0
"""In medians of the time between steps. Across a longer pause no line is drawn."""
INKS: Mapping[str, str] = {
    "ink": "#1b2026",
    "rule": "#e3e6e8",
    "muted": "#6a747c",
    "good": "#2f7d4f",
    "bad": "#c0392b",
    "zone-0": "#2f7d50",
    "zone-1": "#2b6cb0",
    "zone-2": "#c27c03",
    "zone-3": "#8250a8",
    "zone-4": "#0f8a8a",
    "zone-5": "#8a8f94",
}
"""Name of the page's variable -> the colour to draw in. No two are alike, and none is black."""
ZONES = 6
"""This many groups of zones have a colour each; the last one is for all other zones."""
_SETTINGS: Mapping[str, Any] = {
    "savefig.transparent": True,
    "text.color": INKS["ink"],
    "axes.labelcolor": INKS["ink"],
    "axes.edgecolor": INKS["muted"],
    "xtick.color": INKS["muted"],
    "ytick.color": INKS["muted"],
    "xtick.labelcolor": INKS["ink"],
    "ytick.labelcolor": INKS["ink"],
    "grid.color": INKS["rule"],
    "font.size": FONT,
    "axes.labelsize": FONT,
    "xtick.labelsize": FONT,
    "ytick.labelsize": FONT,
    "legend.fontsize": FONT,
}
_NAMED = re.compile(r'(\bid="|href="#|url\(#)')
_NOT_FOR_A_PAGE = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a drawing is shown, and its size in points."""

    name: str
    width: int
    height: int


PLACES = (Place(name="narrow", width=348, height=224), Place(name="wide", width=640, height=250))
"""A phone or a column of the page, and the whole width of a page."""


def pictures_of(report: Report) -> dict[str, str]:
    """Name -> SVG elements, one for each of PLACES: loss, throughput, nodes, dollars, and
    `metric-<number>` for what the model measures, where there are data for it."""
    found: dict[str, str] = {}
    if any(math.isfinite(one.loss) for one in report.steps):
        found["loss"] = _elements("loss", lambda axes, _: _loss(axes, report))
    for number, metric in enumerate(report.metrics[:MOST_METRICS]):
        points = [(one.step + 1.0, one.metrics.get(metric, math.nan)) for one in report.steps]
        if any(math.isfinite(value) for _, value in points):
            name = f"metric-{number}"
            found[name] = _elements(name, partial(_metric, points))
    if _rates(report.steps, report.tokens_per_sample):
        found["throughput"] = _elements("throughput", lambda axes, _: _throughput(axes, report))
    if report.rented:
        found["nodes"] = _elements("nodes", lambda axes, place: _nodes(axes, report, place))
    if report.dollars:
        found["dollars"] = _elements("dollars", lambda axes, _: _dollars(axes, report))
    return found


def _elements(name: str, draw: Callable[["Axes", Place], None]) -> str:
    """What `draw` draws on one pair of axes, for each place, as SVG elements for a page."""
    return "".join(_element(name, draw, place) for place in PLACES)


def _element(name: str, draw: Callable[["Axes", Place], None], place: Place) -> str:
    def on(figure: "Figure") -> None:
        draw(figure.subplots(), place)

    text = to_svg(
        on, width_in=place.width / 72, height_in=place.height / 72, settings=_SETTINGS
    ).decode()
    text = _NOT_FOR_A_PAGE.sub("", text[text.index("<svg") :])
    text = _NAMED.sub(lambda match: f"{match[1]}{name}-{place.name}-", text)
    for ink, colour in INKS.items():
        text = text.replace(colour, f"var(--{ink})")
    return text.strip().replace("<svg", f'<svg class="{place.name}"', 1)


def _key(axes: "Axes", columns: int) -> None:
    """What the lines mean, above the axes, where nothing crosses it."""
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, handlelength=1.4,
                borderaxespad=0.2, columnspacing=1.2, handletextpad=0.5)  # fmt: skip


# ------------------------------------------------------------------------------ steps


def _loss(axes: "Axes", report: Report) -> None:
    points = [(float(one.step + 1), one.loss) for one in report.steps]
    _line(axes, points, "good", label="the run")
    finite = [loss for _, loss in points if math.isfinite(loss)]
    entropy = report.entropy_nats
    shown = entropy is not None and min(finite) - 1 < entropy < max(finite) + 1
    if evaluated := [(float(one.step), one.loss) for one in report.evaluations]:
        _line(axes, evaluated, "ink", label="evaluations")
    if entropy is not None and shown:
        axes.axhline(entropy, color=INKS["muted"], linewidth=1.2, linestyle=(0, (4, 3)),
                     label="unigram entropy of the data")  # fmt: skip
    if shown or evaluated:
        _key(axes, 1 + shown + bool(evaluated))
    axes.set_xlabel("steps")


def _metric(points: Sequence[tuple[float, float]], axes: "Axes", _: Place) -> None:
    _line(axes, points, "good")
    axes.set_xlabel("steps")


def _throughput(axes: "Axes", report: Report) -> None:
    rates = _rates(report.steps, report.tokens_per_sample)
    timed = all(one.at_s is not None for one in report.steps)
    if timed:
        unit_s, _ = _unit(report)
        points = [((at - report.started_s) / unit_s, rate) for at, _, rate in rates]
        _over_the_run(axes, report)
    else:
        points = [(float(step + 1), rate) for _, step, rate in rates]
        axes.set_xlabel("steps")
    _line(axes, _with_pauses(points), "good")
    if timed and _mark_losses(axes, report):
        _key(axes, 2)
    axes.set_ylim(0, max(rate for _, rate in points) * 1.15)


def _rates(steps: Sequence[MetricRecord], tokens_per_sample: int) -> list[tuple[float, int, float]]:
    """(Unix time or 0, step, samples/s over the steps before it), where there was a rate."""
    rates = (
        (one.tokens_per_s or 0.0) / tokens_per_sample if tokens_per_sample else one.samples_per_s
        for one in steps
    )
    return [
        (one.at_s or 0.0, one.step, samples_per_s(rate, 1.0))
        for one, rate in zip(steps, rates, strict=True)
        if rate > 0 and math.isfinite(rate)
    ]


def _with_pauses(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points, with a gap wherever no step came for long."""
    between = [b[0] - a[0] for a, b in pairwise(points)]
    if not between:
        return list(points)
    longest = LONGEST_PAUSE * median(between)
    out = [points[0]]
    for before, after in pairwise(points):
        if after[0] - before[0] > longest > 0:
            out.append(((before[0] + after[0]) / 2, math.nan))
        out.append(after)
    return out


def _line(
    axes: "Axes", points: Sequence[tuple[float, float]], ink: str, *, label: str = ""
) -> None:
    shown = list(_thinned(points))
    marker = "o" if len(shown) < 3 else ""
    axes.plot([x for x, _ in shown], [y for _, y in shown], color=INKS[ink], linewidth=1.6,
              marker=marker, markersize=4, label=label)  # fmt: skip


def _thinned(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The first, least, most and last point of each dot's span, in their order."""
    if len(points) <= 2 * DOTS:
        yield from points
        return
    first, last = points[0][0], points[-1][0]
    span = max(last - first, 1e-9) / DOTS
    for _, group in groupby(points, key=lambda point: int((point[0] - first) / span)):
        some = list(group)
        finite = [point for point in some if math.isfinite(point[1])] or some
        low, high = min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])
        gap = [point for point in some if not math.isfinite(point[1])][:1]
        yield from sorted({some[0], low, high, some[-1], *gap}, key=lambda point: point[0])


# ------------------------------------------------------------------------------ instances


def _nodes(axes: "Axes", report: Report, place: Place) -> None:
    """Instances of each zone, stacked, as steps; instances that the cloud took are marked."""
    unit_s, _ = _unit(report)
    zones = _zones(report.rented)
    first_s = min(report.started_s, *(item.started_at_s for item in report.rented))
    times_s = sorted(
        {first_s, report.until_s}
        | {item.started_at_s for item in report.rented}
        | {item.ended_at_s for item in report.rented if item.ended_at_s is not None}
    )
    dots = place.width * 3 // 4
    if len(times_s) > 2 * dots:  # more than can be distinguished
        span_s = (times_s[-1] - first_s) / dots
        times_s = [first_s + span_s * dot for dot in range(dots + 1)]
    xs = [(at_s - report.started_s) / unit_s for at_s in times_s]
    base = [0] * len(times_s)
    labels = [_short(label) for label, _ in zones]
    for number, (_, names) in enumerate(zones):
        some = [item for item in report.rented if item.zone in names]
        top = [low + count for low, count in zip(base, _counts(some, times_s), strict=True)]
        colour = INKS[f"zone-{number}"]
        axes.fill_between(xs, base, top, step="post", color=colour, alpha=0.55, linewidth=0,
                          label=labels[number])  # fmt: skip
        axes.step(xs, top, where="post", color=colour, linewidth=1.0)
        base = top
    axes.set_ylim(0, max(1, *base) * 1.2)
    marked = _mark_losses(axes, report)
    _over_the_run(axes, report)
    axes.locator_params(axis="y", integer=True)
    _key(axes, _columns([*labels, *([TAKEN] if marked else [])], place.width))


def _columns(labels: Sequence[str], width: int) -> int:
    """How many columns of the key fit, by widths that a letter and a line with its gaps have at
    most in common names."""
    for columns in range(min(4, len(labels)), 1, -1):
        rows, longer = divmod(len(labels), columns)
        sizes = [rows + (column < longer) for column in range(columns)]
        parts = [labels[sum(sizes[:n]) : sum(sizes[: n + 1])] for n in range(columns)]
        if sum(max(map(len, part)) * LETTER + KEY for part in parts) < width - 30:
            return columns
    return 1


def _short(label: str) -> str:
    """A zone's name as it is drawn."""
    text = title_of(label)
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"


def _zones(rented: Sequence[Rented]) -> list[tuple[str, frozenset[str]]]:
    """(Label, zones): the zones with the most instances by name, all others as one."""
    names = sorted({item.zone for item in rented})
    if len(names) <= ZONES:
        return [(name, frozenset({name})) for name in names]
    often = sorted(names, key=lambda name: -sum(item.zone == name for item in rented))
    kept = sorted(often[: ZONES - 1])
    others = frozenset(often[ZONES - 1 :])
    return [*((name, frozenset({name})) for name in kept), (f"{len(others)} others", others)]


def _counts(rented: Sequence[Rented], times_s: Sequence[float]) -> list[int]:
    """How many instances ran from each of these times on."""
    began = sorted(item.started_at_s for item in rented)
    ended = sorted(item.ended_at_s for item in rented if item.ended_at_s is not None)
    out = []
    running = 0
    b = 0
    e = 0
    for at_s in times_s:
        while b < len(began) and began[b] <= at_s:
            running, b = running + 1, b + 1
        while e < len(ended) and ended[e] <= at_s:
            running, e = running - 1, e + 1
        out.append(running)
    return out


def _mark_losses(axes: "Axes", report: Report) -> bool:
    """A triangle at the top for each instance that the cloud took; those at one dot share one.
    Whether there is one."""
    unit_s, _ = _unit(report)
    span_s = max(report.until_s - report.started_s, 1e-9) / DOTS
    taken_s = [item.ended_at_s for item in report.rented if item.interrupted and item.ended_at_s]
    apart_s = {int(at_s / span_s): at_s for at_s in sorted(taken_s, reverse=True)}
    if not apart_s:
        return False
    xs = [(at_s - report.started_s) / unit_s for at_s in sorted(apart_s.values())]
    for x in xs if len(xs) <= 40 else ():
        axes.axvline(x, color=INKS["bad"], linewidth=0.8, linestyle=(0, (2, 2)))
    axes.plot(xs, [0.95] * len(xs), "v", color=INKS["bad"], markersize=5.5,
              transform=axes.get_xaxis_transform(), label=TAKEN)  # fmt: skip
    return True


# ------------------------------------------------------------------------------ dollars


def _dollars(axes: "Axes", report: Report) -> None:
    unit_s, _ = _unit(report)
    xs = [(one.at_s - report.started_s) / unit_s for one in report.dollars]
    full = [one.on_demand_usd for one in report.dollars]
    paid = [one.usd for one in report.dollars]
    axes.fill_between(xs, paid, full, color=INKS["good"], alpha=0.12, linewidth=0)
    axes.plot(xs, full, color=INKS["muted"], linewidth=1.2, linestyle=(0, (4, 3)),
              label="the same on demand")  # fmt: skip
    axes.plot(xs, paid, color=INKS["good"], linewidth=1.6, label="the bill")
    axes.set_ylim(0, max(*full, *paid, 1e-6) * 1.1)
    _over_the_run(axes, report)
    axes.yaxis.set_major_formatter(_in_dollars)
    _key(axes, 2)


def _in_dollars(amount: float, _: float = 0.0) -> str:
    """`$0.02`, `$120`: an axis has room for few digits."""
    return f"-${-amount:,.4g}" if amount < 0 else f"${amount:,.4g}"


def _over_the_run(axes: "Axes", report: Report) -> None:
    """The same span of time in all pictures, so that they can be compared."""
    unit_s, unit = _unit(report)
    first_s = min([report.started_s, *(item.started_at_s for item in report.rented)])
    length_s = max(report.until_s - report.started_s, 1.0)
    axes.set_xlim((first_s - report.started_s) / unit_s, length_s / unit_s)
    axes.set_xlabel(f"{unit} since the launch")


def _unit(report: Report) -> tuple[float, str]:
    """The unit of the time axis: (its seconds, its name)."""
    length_s = report.until_s - report.started_s
    if length_s < 300:
        return 1.0, "seconds"
    return (60.0, "minutes") if length_s < 3 * 3600 else (3600.0, "hours")
