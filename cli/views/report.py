"""The report of a run as one page: HTML with its pictures inside, which loads nothing.

Rule: every text from outside is escaped. The page needs no script, font or link, and its own policy
forbids them. It has one column on a narrow screen, and is dark where the reader's screen is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from string import Template
from typing import Any

from bamboo.planner.attribution import Use
from bamboo.quantities import clock, count, duration, micro_text, rate, usd
from bamboo.runs.reconfigured import reconfigured_line
from bamboo.study.report import Report
from cli.printable import printable
from cli.views.report_style import STYLE
from cli.views.spent import BESIDE, how_known, label_of

NOT_KNOWN = "–"
SHOWN = 200
"""How many sentences of preemptions are listed; the rest is counted."""
ALWAYS = (Use.USEFUL, Use.REDUNDANCY, Use.RECOVERY, Use.LOST, Use.BUBBLE, Use.STANDBY)
"""Uses that have a line of their own even where nothing was spent on them."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_PICTURES: Mapping[str, tuple[str, str]] = {
    "loss": ("Loss", "of each step that counts"),
    "throughput": ("Throughput", "over the last ten steps; triangles: taken by the cloud"),
    "nodes": ("Nodes by zone", "by the cloud's log; triangles: taken by the cloud"),
    "spent": (
        "Where the money went",
        "each use begins where the one before ends; green: useful, blue: given back",
    ),
    "dollars": ("Cumulative dollars", "had the run been ended at each moment"),
}
"""Name -> headline, and what a reader has to know about the picture."""
_PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
$style</style>
</head>
<body>
<main>
$body
</main>
</body>
</html>
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One of the figures at the head of the page."""

    label: str
    value: str
    note: str = ""


def shown(text: str) -> str:
    """Text from outside as a part of the page, with no markup and no change of direction."""
    return escape(printable(text))


def report_html(report: Report, pictures: Mapping[str, str]) -> str:
    """The whole page; `pictures` are SVG elements by name."""
    parts = [
        *_head(report),
        *_figures(figures_of(report)),
        *_missing(report.missing),
        *_columns(
            *(_picture(name, pictures) for name in ("loss", "throughput", "nodes", "dollars"))
        ),
        *_columns(_picture("spent", pictures), _table(report)),
        *_sentences(report),
        *_foot(report),
    ]
    return _PAGE.substitute(
        policy=POLICY,
        title=shown(f"{report.run}: report"),
        style=STYLE,
        body="\n".join(parts),
    )


def figures_of(report: Report) -> list[Figure]:
    """The figures at the head of the page, as in `bamboo cost RUN` and the receipt."""
    return [*_money_figures(report), *_run_figures(report)]


def _money_figures(report: Report) -> Iterator[Figure]:
    cost = report.cost
    if not cost:
        for label in ("samples/s", "samples per dollar", "dollars", "saved against on-demand"):
            yield Figure(label=label, value=NOT_KNOWN)
        return
    yield Figure(
        label="samples/s",
        value=rate(cost["samples_per_s"]),
        note="over all of the run" if cost["ended"] else "now",
    )
    yield Figure(
        label="samples per dollar",
        value=rate(cost["samples_per_usd"]),
        note=f"{rate(cost['tokens_per_usd'])} tokens per dollar",
    )
    planned = cost.get("planned")
    if planned and planned["samples_per_usd"] is not None:
        yield Figure(
            label="samples per dollar, planned",
            value=rate(planned["samples_per_usd"]),
            note=f"calm steps: {rate(planned['samples_per_s'])} samples/s at "
            f"{usd(planned['usd_per_hour'])}/h",
        )
    paid, full = cost["usd"], cost["on_demand_usd"]
    yield Figure(
        label="dollars, modelled" if cost["modelled"] else "dollars",
        value=usd(paid),
        note="in all" if cost["ended"] else "so far",
    )
    if full:  # otherwise the price on demand is unknown
        share = f"{(full - paid) / full:.0%} of {usd(full)}"
        yield Figure(label="saved against on-demand", value=usd(full - paid), note=share)
    budget = (cost.get("spent") or {}).get("budget")
    if budget and budget["left_usd"] is not None:
        left = f"of {usd(budget['max_usd'])}, with what is beside the bill"
        yield Figure(label="budget left", value=usd(max(0.0, budget["left_usd"])), note=left)


def _run_figures(report: Report) -> Iterator[Figure]:
    status = report.status
    if status:
        yield Figure(label="steps", value=f"{status['step']:,}", note=f"of {status['steps']:,}")
        loss = status["loss"]
        if loss is not None:
            yield Figure(label="loss", value=f"{loss:.4f}", note="nats per token, last step")
    if not report.receipts:
        taken = sum(item.interrupted for item in report.rented)
        note = f"{count(taken, 'instance')} taken by the cloud" if report.rented else ""
        yield Figure(label="preemptions", value=NOT_KNOWN, note=note)
        yield Figure(label="failovers", value=NOT_KNOWN)
        yield Figure(label="lost steps", value=NOT_KNOWN)
        return
    lost = [one for receipt in report.receipts for one in receipt["preemptions"]]
    planned = sum(one["planned"] for one in lost)
    yield Figure(
        label="preemptions",
        value=str(len(lost)),
        note=f"{planned} of them with a notice kept" if planned else "",
    )
    taken_over = [one for one in lost if not one["planned"] and one["recomputed"] is not None]
    again = sum(one["recomputed"] for one in taken_over)
    yield Figure(
        label="failovers",
        value=str(len(taken_over)),
        note=f"{count(again, 'microbatch', 'microbatches')} computed again" if taken_over else "",
    )
    reconfigured = [one for receipt in report.receipts for one in receipt["reconfigurations"]]
    yield Figure(
        label="lost steps",
        value=str(sum(one["steps_again"] for one in reconfigured)),
        note=f"in {count(len(reconfigured), 'reconfiguration')}"
        if reconfigured
        else "nothing done again",
    )


# ------------------------------------------------------------------------------ parts of the page


def _head(report: Report) -> Iterator[str]:
    yield f"<header><h1>{shown(report.run)}</h1>"
    status = report.status
    if status:
        word = status["outcome"] or status["phase"]
        yield (
            f'<p><span class="tag {_tone(word)}">{shown(word)}</span> '
            f"{shown(status['sentence'])}</p>"
        )
    if report.started_s:
        lasted = duration(max(0.0, report.until_s - report.started_s))
        yield f"<p class=muted>launched {shown(_moment(report.started_s))}, seen for {lasted}</p>"
    yield "</header>"


def _tone(word: str) -> str:
    if word in ("done", "running"):
        return "good"
    return "bad" if word in ("fault", "unrecoverable", "lost") else "warn"


def _figures(figures: Sequence[Figure]) -> Iterator[str]:
    yield '<dl class="figures">'
    for figure in figures:
        yield (
            f"<div><dt>{shown(figure.label)}</dt><dd>{shown(figure.value)}"
            f"<small>{shown(figure.note)}</small></dd></div>"
        )
    yield "</dl>"


def _missing(sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        yield '<section class="card missing"><h2>What is missing</h2><ul>'
        yield from (f"<li>{shown(sentence)}</li>" for sentence in sentences)
        yield "</ul></section>"


def _columns(*cards: Iterator[str]) -> Iterator[str]:
    """Cards side by side where there is room."""
    yield '<div class="cards">'
    for card in cards:
        yield from card
    yield "</div>"


def _picture(name: str, pictures: Mapping[str, str]) -> Iterator[str]:
    if name not in pictures:
        return
    headline, note = _PICTURES[name]
    labelled = pictures[name].replace("<svg", f'<svg role="img" aria-label="{headline}"', 1)
    yield f'<figure class="card"><figcaption><h2>{headline}</h2>'
    yield f"<p class=muted>{note}</p></figcaption>{labelled}</figure>"


def _table(report: Report) -> Iterator[str]:
    """The uses of the money in full, which add up to the bill as printed."""
    spent = report.cost.get("spent")
    if not spent or not spent["uses"]:
        return
    found = {one["use"]: one for one in spent["uses"]}
    nothing = {"seconds": 0.0, "micro_usd": 0}
    order = [use.value for use in Use if use in ALWAYS or use.value in found]
    whole = sum(max(0, one["micro_usd"]) for one in spent["uses"]) or 1
    yield '<section class="card"><h2>Every dollar by its use</h2><div class="scroll"><table>'
    yield "<tr><th>use</th><th>time</th><th>dollars</th><th>share</th></tr>"
    for use in order:
        one = found.get(use, nothing)
        time = clock(one["seconds"]) if one["seconds"] else ""
        share = f"{one['micro_usd'] / whole:.1%}"
        yield _row("", label_of(use), time, micro_text(one["micro_usd"]), share)
    yield _row("sum", "the bill", clock(spent["instance_seconds"]),
               micro_text(spent["bill_micro_usd"]), "")  # fmt: skip
    beside = spent["beside"]
    for name in BESIDE:
        amount = beside[f"{name}_micro_usd"]
        yield _row("beside", f"beside the bill: {name}", "", micro_text(amount), "")
    yield "</table></div>"
    yield f"<p class=muted>{shown(how_known(spent))}; what is beside the bill is modelled.</p>"
    yield "</section>"


def _row(kind: str, *cells: str) -> str:
    inner = "".join(f"<td>{shown(cell)}</td>" for cell in cells)
    return f'<tr class="{kind}">{inner}</tr>' if kind else f"<tr>{inner}</tr>"


def _sentences(report: Report) -> Iterator[str]:
    """What became of each loss, in the run's own words."""
    for headline, sentences in (
        ("Preemptions", [p["line"] for r in report.receipts for p in r["preemptions"]]),
        (
            "Reconfigurations",
            [reconfigured_line(one) for r in report.receipts for one in r["reconfigurations"]],
        ),
        ("Resizes", [one["reason"] for one in report.cost.get("resizes", ())]),
        ("Trouble", [one for r in report.receipts for one in r.get("troubles", ())]),
    ):
        if sentences:
            yield f'<section class="card"><h2>{headline}</h2><ol>'
            yield from (f"<li>{shown(sentence)}</li>" for sentence in sentences[:SHOWN])
            yield "</ol>"
            if len(sentences) > SHOWN:
                yield f"<p class=muted>and {len(sentences) - SHOWN:,} more</p>"
            yield "</section>"


def _foot(report: Report) -> Iterator[str]:
    modelled = report.cost.get("modelled", False)
    word = "Dollars are modelled: no dollar was paid. " if modelled else ""
    yield f"<footer><p class=muted>{word}As seen at {shown(_moment(report.now_s))}.</p></footer>"


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def report_body(report: Report, files: Mapping[str, str | None]) -> dict[str, Any]:
    """The value of `bamboo report --json`."""
    return {
        "run": report.run,
        **files,
        "figures": {one.label: one.value for one in figures_of(report)},
        "cost": dict(report.cost) or None,
        "missing": report.missing,
    }
