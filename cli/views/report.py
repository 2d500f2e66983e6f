"""The report of a run as one page: HTML with its pictures inside, which loads nothing.

Rule: every text from outside is escaped. The page needs no script, font or link, and its own policy
forbids them. The job and its loss come first, then a few figures, then the rest. It has one column
on a narrow screen, and is dark where the reader's screen is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import escape
from string import Template
from typing import Any

from bamboo.planner.attribution import Use
from bamboo.quantities import clock, count, duration, micro_text, rate, usd
from bamboo.runs.reconfigured import reconfigured_line
from bamboo.study.report import Report
from cli.echo import printable
from cli.views.cost import BESIDE, how_known, label_of
from cli.views.metrics import evaluation_words
from cli.views.report_style import STYLE

NOT_KNOWN = "–"
SHOWN = 200
"""How many preemptions are listed; the rest is counted."""
ALWAYS = (Use.USEFUL, Use.REDUNDANCY, Use.RECOVERY, Use.LOST, Use.BUBBLE, Use.STANDBY)
"""Uses that have a line of their own even where nothing was spent on them."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_PICTURES: Mapping[str, tuple[str, str]] = {
    "throughput": (
        "Throughput",
        "samples/s over the last ten steps",
    ),
    "nodes": ("Nodes by zone", "instances, by the cloud's log"),
    "dollars": ("Cumulative dollars", "had the run been ended at each moment"),
}
"""Name -> headline, and what a reader has to know about the picture; see `_about`."""
METRIC = "metric-"
"""A picture's name begins with it, and the number of the metric follows."""
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
    """A figure with its name, and what a reader has to know about it."""

    label: str
    value: str
    note: str = ""


def shown(text: str) -> str:
    """Text from outside as a part of the page, with no markup and no change of direction."""
    return escape(printable(text))


def report_html(report: Report, pictures: Mapping[str, str]) -> str:
    """The whole page; `pictures` are SVG elements by name."""
    figures = figures_of(report)
    parts = [
        *_head(report),
        *_loss(report, pictures),
        *_tiles(tiles_of(figures)),
        *_missing(report.missing),
        *_cards(_picture(name, report, pictures) for name in pictures if name != "loss"),
        *_preemptions(report),
        *_sentences(report),
        *_uses(report),
        *_all_figures(figures),
        *_foot(report),
    ]
    return _PAGE.substitute(
        policy=POLICY,
        title=shown(f"{report.run}: {_headline(report)}"),
        style=STYLE,
        body="\n".join(parts),
    )


def figures_of(report: Report) -> list[Figure]:
    """All figures of the page, as in `bamboo cost RUN` and the receipt."""
    return [*_money_figures(report), *_run_figures(report)]


def tiles_of(figures: Sequence[Figure]) -> list[Figure]:
    """The few that have a tile of their own, with what belongs to them."""
    by = {figure.label: figure for figure in figures}
    dollars = by.get("dollars, modelled") or by["dollars"]
    saved, lost = by.get("saved against on-demand"), by["lost steps"]
    planned = by.get("samples per dollar, planned")
    nothing = {NOT_KNOWN, "0"} >= {by["preemptions"].value, lost.value}
    again = "" if nothing else f"{lost.value} {'step' if lost.value == '1' else 'steps'} done again"
    return [
        _noted(dollars, f"{saved.value} less than on demand" if saved and saved.note else ""),
        _noted(by["samples per dollar"], f"{planned.value} planned" if planned else ""),
        by["samples/s"],
        _noted(by["preemptions"], again),
    ]


def _noted(figure: Figure, *more: str) -> Figure:
    return replace(figure, note="; ".join(note for note in (figure.note, *more) if note))


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
        note=f"{rate(tokens)} tokens per dollar" if (tokens := cost["tokens_per_usd"]) else "",
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
            note = f"{report.loss_unit}, last step"
            yield Figure(label="loss", value=f"{loss:.4f}", note=note)
        for name, value in status.get("metrics", {}).items():
            yield Figure(label=f"metric: {name}", value=f"{value:.4g}", note="last step")
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
    if report.job:
        yield f"<p>{shown(report.job)}</p>"
    if report.started_s:
        lasted = duration(max(0.0, report.until_s - report.started_s))
        yield f"<p class=muted>launched {shown(_moment(report.started_s))}, seen for {lasted}</p>"
    yield "</header>"


def _headline(report: Report) -> str:
    """`loss 2.5185 after 100 of 100 steps`."""
    status = report.status
    if not status:
        return "a run"
    loss = NOT_KNOWN if status["loss"] is None else f"{status['loss']:.4f}"
    return f"loss {loss} after {status['step']:,} of {count(status['steps'], 'step')}"


def _loss(report: Report, pictures: Mapping[str, str]) -> Iterator[str]:
    """The large tile: the loss, how the run stands, and the curve."""
    status = report.status
    yield '<section class="card first"><div>'
    loss = status["loss"] if status else None
    value = NOT_KNOWN if loss is None else f"{loss:.4f}"
    yield f"<h2>Loss</h2><p class=large>{value}</p>"
    if status:
        after = f"{status['step']:,} of {count(status['steps'], 'step')}"
        words = f"{after} finished" if loss is None else f"{report.loss_unit} after {after}"
        yield f"<p>{shown(words)}</p>"
    for note in _about_the_loss(report):
        yield f"<p class=muted>{shown(note)}</p>"
    if status:
        word = status["outcome"] or status["phase"]
        yield f'<p><span class="tag {_tone(word)}">{shown(word)}</span></p>'
        yield f"<p class=muted>{shown(status['sentence'])}</p>"
    yield "</div>"
    if "loss" in pictures:
        yield f"<figure>{_labelled('loss', report, pictures)}</figure>"
    yield "</section>"


def _about_the_loss(report: Report) -> Iterator[str]:
    if report.steps:
        first = report.steps[0]
        yield f"{first.loss:.4f} in step {first.step + 1}"
    if evaluated := evaluation_words(report.status.get("evaluation")):
        yield evaluated
    if report.entropy_nats is not None:
        yield f"{report.entropy_nats:.4f} is the unigram entropy of the data"


def _tone(word: str) -> str:
    if word in ("done", "running"):
        return "good"
    return "bad" if word in ("fault", "unrecoverable", "lost") else "warn"


def _tiles(figures: Sequence[Figure]) -> Iterator[str]:
    yield '<dl class="tiles">'
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


def _cards(cards: Iterable[Iterator[str]]) -> Iterator[str]:
    """Cards side by side where there is room; those of the last row fill it."""
    if markup := [part for card in cards for part in card]:
        yield '<div class="cards">'
        yield from markup
        yield "</div>"


def _picture(name: str, report: Report, pictures: Mapping[str, str]) -> Iterator[str]:
    if name not in pictures:
        return
    headline, note = _about(name, report)
    yield f'<figure class="card"><figcaption><h2>{shown(headline)}</h2>'
    yield f"<p class=muted>{shown(note)}</p></figcaption>"
    yield f"{_labelled(name, report, pictures)}</figure>"


def _about(name: str, report: Report) -> tuple[str, str]:
    """Headline and note of a picture."""
    if name == "loss":
        return "Loss", f"{report.loss_unit}, of each step that counts"
    if name.startswith(METRIC):
        return report.metrics[int(name.removeprefix(METRIC))], "of each step that counts"
    return _PICTURES[name]


def _labelled(name: str, report: Report, pictures: Mapping[str, str]) -> str:
    """The picture's elements, of which the page shows one, with what it shows in words."""
    headline, note = _about(name, report)
    words = shown("; ".join([f"{headline}: {note}", *_in_words(name, report)]))
    drawn = pictures[name].replace("<svg", f'<svg role="img" aria-label="{words}"')
    return f'<div class="picture">{drawn}</div>'


def _in_words(name: str, report: Report) -> Iterator[str]:
    if (name in ("loss", "throughput") or name.startswith(METRIC)) and report.steps:
        yield f"steps {report.steps[0].step + 1:,} to {report.steps[-1].step + 1:,}"
    if name == "loss":
        yield _headline(report)
    if name == "nodes":
        taken = sum(item.interrupted for item in report.rented)
        yield f"{count(len(report.rented), 'instance')} in all, {taken} taken by the cloud"
    if name == "dollars" and report.dollars:
        last = report.dollars[-1]
        yield f"{usd(last.usd)} at the end, {usd(last.on_demand_usd)} on demand"


def _uses(report: Report) -> Iterator[str]:
    """The uses of the money in full, which add up to the bill as printed. The bar of each begins
    where the one before it ends."""
    spent = report.cost.get("spent")
    if not spent or not spent["uses"]:
        return
    found = {one["use"]: one for one in spent["uses"]}
    nothing = {"seconds": 0.0, "micro_usd": 0}
    order = [use.value for use in Use if use in ALWAYS or use.value in found]
    whole = sum(max(0, one["micro_usd"]) for one in spent["uses"]) or 1
    yield '<section class="card"><h2>Every dollar by its use</h2>'
    yield '<p class="muted bars">'
    yield "each bar begins where the one before ends; green: useful, blue: given back</p>"
    yield '<div class="scroll"><table class="uses">'
    yield _heads("use", "time", "dollars", "share", "of all that was spent")
    upto = 0
    for use in order:
        one = found.get(use, nothing)
        micro = one["micro_usd"]
        time = clock(one["seconds"]) if one["seconds"] else ""
        kind = "useful" if use == Use.USEFUL.value else "back" if micro < 0 else ""
        drawn = _bar(kind, upto / whole, micro / whole)
        yield _row("", label_of(use), time, micro_text(micro), f"{micro / whole:.1%}", drawn=drawn)
        upto += micro
    bill = spent["bill_micro_usd"]
    yield _row("sum", "the bill", clock(spent["instance_seconds"]), micro_text(bill), "",
               drawn=_bar("all", 0.0, bill / whole))  # fmt: skip
    beside = spent["beside"]
    for name in BESIDE:
        amount = beside[f"{name}_micro_usd"]
        yield _row("beside", f"beside the bill: {name}", "", micro_text(amount), "", drawn="")
    yield "</table></div>"
    yield f"<p class=muted>{shown(how_known(spent))}; what is beside the bill is modelled.</p>"
    yield "</section>"


def _bar(kind: str, begins: float, share: float) -> str:
    """A bar from `begins` on, in shares of the column; a negative one goes back."""
    if not share:
        return ""
    left, width = min(begins, begins + share), abs(share)
    at = max(0.0, min(1.0, left))
    return f'<i class="{kind}" style="left:{at:.2%};width:{min(width, 1 - at):.2%}"></i>'


def _heads(*names: str) -> str:
    return "<tr>" + "".join(f'<th scope="col">{shown(name)}</th>' for name in names) + "</tr>"


def _row(kind: str, *cells: str, drawn: str | None = None) -> str:
    """A row of a table; `drawn` is markup for its last cell. A narrow screen omits it."""
    inner = "".join(f"<td>{shown(cell)}</td>" for cell in cells)
    last = "" if drawn is None else f'<td><div class="bar">{drawn}</div></td>'
    return f'<tr class="{kind}">{inner}{last}</tr>'


def _preemptions(report: Report) -> Iterator[str]:
    """A row for each preemption, and below the run's own sentences."""
    all_of_them = [one for receipt in report.receipts for one in receipt["preemptions"]]
    if not all_of_them:
        return
    some = all_of_them[:SHOWN]
    yield '<section class="card"><h2>Preemptions</h2>'
    yield '<div class="scroll"><table class="lost">'
    yield _heads("after", "step", "slot", "how", "pause", "redone", "what happened")
    for one in some:
        yield _row("", *_cells(one, report))
    yield "</table></div>"
    more = len(all_of_them) - len(some)
    yield f"<p class=muted>{f'and {more:,} more; ' if more else ''}a slot is pipeline.stage; "
    yield "redone: microbatches computed again by the node that took over</p>"
    yield "<details><summary>In the run's own words</summary><ol>"
    yield from (f"<li>{shown(one['line'])}</li>" for one in some)
    yield "</ol></details></section>"


def _cells(one: Mapping[str, Any], report: Report) -> Iterator[str]:
    """One preemption; receipts of earlier releases lack some of it."""
    at_s, pause_s = one.get("at_s"), one.get("pause_s")
    if at_s is None or not report.started_s:
        yield NOT_KNOWN
    else:
        yield clock(at_s - report.started_s)
    yield _or_unknown(one.get("step"))
    yield ", ".join(one.get("slots", ())) or NOT_KNOWN
    yield "notice kept" if one["planned"] else "noticed" if one.get("noticed") else "lost"
    yield NOT_KNOWN if pause_s is None else duration(pause_s)
    yield _or_unknown(one["recomputed"])
    yield one.get("short", "")


def _or_unknown(value: int | None) -> str:
    return NOT_KNOWN if value is None else f"{value:,}"


def _all_figures(figures: Sequence[Figure]) -> Iterator[str]:
    yield '<section class="card"><h2>All figures</h2><table class="all">'
    yield from (_row("", one.label, one.value, one.note) for one in figures)
    yield "</table></section>"


def _sentences(report: Report) -> Iterator[str]:
    """What else happened, in the run's own words."""
    for headline, sentences in (
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
