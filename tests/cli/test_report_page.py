"""The page of a report: what comes first, its table of preemptions, colours that can be read, and
pictures whose text is neither crossed, nor cut, nor tiny."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from bamboo.runs import run_folder
from bamboo.study.report import Report, report_of
from cli.pictures import report as pictures
from cli.pictures import report_png
from cli.pictures.canvas import to_svg
from cli.pictures.report import pictures_of
from cli.views.report import POLICY, report_html
from cli.views.report_style import STYLE
from tests.controller.world import START_S
from tests.runs.test_reading import folder_of, home
from tests.study.test_report import Page, page_of, spent, spent_page

pytestmark = pytest.mark.timeout(180)
__all__ = ["home", "spent", "spent_page"]
SMALLEST_PT = 11.0
"""A point of a drawing is about a pixel of the page."""
TEXT, SHAPE = 4.5, 3.0
"""The least contrasts of text and of shapes that WCAG 2.1 asks for."""


def test_the_job_and_its_loss_come_first(spent: run_folder.RunFolder) -> None:
    text, _ = page_of(spent)
    loss = json.loads(spent.receipt.read_text())["status"]["loss"]
    places = [
        text.index(part)
        for part in (
            "<h1>spent</h1>",
            "GPT of 4 blocks, width 64; batch 16 of python-stdlib; 1 x 3, eager redundancy",
            f"<p class=large>{loss:.4f}</p>",
            'class="wide"',
            '<dl class="tiles">',
            "<h2>Throughput</h2>",
            "<h2>Preemptions</h2>",
            "<h2>Every dollar by its use</h2>",
            "<h2>All figures</h2>",
        )
    ]
    assert places == sorted(places)
    assert f"<title>spent: loss {loss:.4f} after 60 of 60 steps</title>" in text
    assert text.count("<p class=large>") == 1
    assert text.count("<dt>") == 4
    assert "less than on demand" in text


def test_what_the_model_measures_has_a_figure_and_a_picture_each(
    spent: run_folder.RunFolder,
) -> None:
    report = report_of(spent, now_s=START_S)
    name = '<b>"accuracy"'
    report.steps = [replace(one, metrics={name: one.loss / 9}) for one in report.steps]
    report.status = {**report.status, "metrics": {name: 0.25}}
    report.loss_unit = "per image"
    text = report_html(report, pictures_of(report))
    assert "<h2>&lt;b&gt;&quot;accuracy&quot;</h2>" in text
    assert "metric: &lt;b&gt;" in text
    assert "<b>" not in text
    assert "per image after 60 of 60 steps" in text
    assert "nats" not in text


def test_a_run_without_a_step_has_no_loss_and_no_empty_place(home: Path) -> None:
    text, page = page_of(folder_of(home))
    assert "<p class=large>–</p>" in text
    assert "nats per token" not in page.words
    assert '<div class="cards">' not in text
    assert "<h2>Preemptions</h2>" not in text


def test_each_preemption_is_a_row(spent: run_folder.RunFolder) -> None:
    receipt = json.loads(spent.receipt.read_text())
    lost, kept = receipt["preemptions"]
    lost["short"] = "i-1 lost, <b>i-2</b> went on"
    gone = dict.fromkeys(("step", "recomputed", "pause_s")) | {"planned": False, "line": "gone"}
    receipt["preemptions"] = [lost, kept, gone]
    spent.receipt.write_text(json.dumps(receipt))
    text, page = page_of(spent)
    table = text[text.index('<table class="lost">') : text.index("</table>")]
    assert re.findall(r'<th scope="col">([^<]+)', table) == [
        "after", "step", "slot", "how", "pause", "redone", "what happened",
    ]  # fmt: skip
    rows = [re.findall("<td>([^<]*)</td>", row) for row in table.split("<tr")[2:]]
    assert rows == [
        ["0:11", "15", "0.1", "lost", "33 ms", "0", "i-1 lost, &lt;b&gt;i-2&lt;/b&gt; went on"],
        ["0:16", "38", "0.0", "notice kept", "8.7 ms", "0", ""],
        ["–", "–", "–", "lost", "–", "–", ""],
    ]
    for one in receipt["preemptions"]:
        assert one["line"] in page.words  # in full below the table


def test_the_bars_of_the_uses_join_and_end_at_the_bill(spent: run_folder.RunFolder) -> None:
    text, _ = page_of(spent)
    found = re.findall(r'<i class="(\w*)" style="left:([\d.]+)%;width:([\d.]+)%">', text)
    bars = [(kind, float(left), float(left) + float(width)) for kind, left, width in found]
    assert bars[0][:2] == ("useful", 0.0)
    for (_, left, right), (kind, next_left, next_right) in pairwise(bars[:-1]):
        begins = next_right if kind == "back" else next_left
        assert begins == pytest.approx(right if _ != "back" else left, abs=0.02)
    kind, left, right = bars[-1]
    assert (kind, left) == ("all", 0.0)
    last = bars[-2]
    assert right == pytest.approx(last[1] if last[0] == "back" else last[2], abs=0.02)
    assert all(0.0 <= left <= right <= 100.01 for _, left, right in bars)


def test_every_colour_can_be_told_from_what_is_behind_it() -> None:
    for theme in STYLE.split("@media (prefers-color-scheme: dark)"):
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", theme))
        assert len(colours) == 15
        for name in ("ink", "muted", "good", "bad", "warn"):
            for behind in ("card", "page"):
                assert contrast(colours[name], colours[behind]) >= TEXT, (name, behind)
        for number in range(pictures.ZONES):
            assert contrast(colours[f"zone-{number}"], colours["card"]) >= SHAPE, number


def contrast(one: str, other: str) -> float:
    """As WCAG 2.1 defines it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


# ------------------------------------------------------------------------------ drawings


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """All figures that are drawn from now on."""
    drawn: list[Figure] = []

    def watched(draw: Any, **settings: Any) -> bytes:
        def on(figure: Figure) -> None:
            drawn.append(figure)
            draw(figure)

        return to_svg(on, **settings)

    monkeypatch.setattr(pictures, "to_svg", watched)
    return drawn


def crowded(report: Report, zones: list[str]) -> None:
    """Give the run many instances in these zones; the cloud takes half of them."""
    one, begins_s = report.rented[0], report.started_s
    lasts_s = (report.until_s - begins_s) / 3
    report.rented = [
        replace(one, zone=zones[n % len(zones)], interrupted=bool(n % 2),
                started_at_s=at_s, ended_at_s=at_s + lasts_s)
        for n, at_s in ((n, begins_s + n * lasts_s / 30) for n in range(60))
    ]  # fmt: skip


@pytest.mark.parametrize(
    "zones",
    [
        pytest.param([], id="as it was"),
        pytest.param(["us-east-1a", "us-east-1b"], id="two"),
        pytest.param([f"ap-southeast-2{letter}" for letter in "abcdefghi"], id="nine"),
        pytest.param(["W" * 80, "us-west-2-lax-1a"], id="long"),
    ],
)
def test_no_text_of_a_picture_is_crossed_cut_or_tiny(
    spent: run_folder.RunFolder, figures: list[Figure], zones: list[str]
) -> None:
    report = report_of(spent, now_s=START_S + 60)
    if zones:
        crowded(report, zones)
    names = list(pictures.pictures_of(report))
    assert names == ["loss", "throughput", "nodes", "dollars"]
    assert len(figures) == len(names) * len(pictures.PLACES)
    for number, figure in enumerate(figures):
        problems = list(problems_of(figure))
        assert not problems, (names[number // len(pictures.PLACES)], problems)


def test_the_check_of_text_sees_each_fault(figures: list[Figure]) -> None:
    def wrong(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1])
        axes.text(0.5, 0.5, "crossed", transform=axes.transAxes, ha="center", va="center")
        axes.text(0.1, 0.8, "one", transform=axes.transAxes)
        axes.text(0.1, 0.8, "two", transform=axes.transAxes)
        axes.text(0.8, 0.2, "tiny", transform=axes.transAxes, fontsize=6)
        axes.text(1.0, 0.7, "beyond the edge of it", transform=axes.transAxes, in_layout=False)

    pictures.to_svg(wrong, width_in=4.0, height_in=3.0)
    found = " ".join(problems_of(figures[0]))
    for words in ("'crossed' is crossed", "'one' overlaps 'two'", "'tiny' is tiny", "is cut"):
        assert words in found


def problems_of(figure: Figure) -> Iterator[str]:
    """What is wrong with the text of a figure that was drawn."""
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    whole = Bbox.from_extents(-1, -1, figure.bbox.width + 1, figure.bbox.height + 1)
    hidden = hidden_in(figure)
    shown = [
        (text, text.get_window_extent())
        for text in figure.findobj(Text)
        if isinstance(text, Text) and text not in hidden and text.get_visible() and text.get_text()
    ]
    lines = [line for axes in figure.axes for line in axes.lines]
    for text, box in shown:
        if text.get_fontsize() < SMALLEST_PT:
            yield f"{text.get_text()!r} is tiny"
        if not all(whole.contains(x, y) for x, y in (box.min, box.max)):
            yield f"{text.get_text()!r} is cut"
        for line in lines:
            if line.get_path().transformed(line.get_transform()).intersects_bbox(box, False):
                yield f"{text.get_text()!r} is crossed"
    for (one, first), (other, second) in combinations(shown, 2):
        if first.overlaps(second):
            yield f"{one.get_text()!r} overlaps {other.get_text()!r}"


def hidden_in(figure: Figure) -> set[Text]:
    """The labels of ticks beyond the axes, which are not drawn."""
    found: set[Text] = set()
    for axes in figure.axes:
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            for tick in axis.get_major_ticks():
                if not limits[0] <= tick.get_loc() <= limits[1]:
                    found |= {tick.label1, tick.label2}
    return found


# ------------------------------------------------------------------------------ in a browser

_MEASURE = """<script>
const all = [...document.querySelectorAll("main *")].filter(e => !e.closest("svg"))
const edge = document.querySelector("main").getBoundingClientRect().right
const drawn = [...document.querySelectorAll("svg")].map(e => e.getBoundingClientRect().width)
document.title = "beyond:" + all.filter(e => e.getBoundingClientRect().right > edge + 1).length
  + " clipped:" + all.filter(e => e.matches(".scroll") && e.scrollWidth > e.clientWidth + 1).length
  + " tiny:" + all.filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length
  + " shown:" + drawn.filter(width => width > 300).length
</script>"""


@pytest.mark.parametrize("width_px", [390, pytest.param(800, marks=pytest.mark.full), 1280])
def test_a_browser_shows_all_of_it(
    spent_page: tuple[str, Page], tmp_path: Path, width_px: int
) -> None:
    if not any(map(shutil.which, report_png.BROWSERS)):
        pytest.skip("no Chromium on the PATH")
    page = spent_page[0].replace(POLICY, f"{POLICY}; script-src 'unsafe-inline'", 1)
    # A window is never narrower than 500 pixels; what is in it may be.
    narrow = f"<style>main {{ width: {width_px}px; }}</style>" if width_px < 500 else ""
    file = tmp_path / "page.html"
    file.write_text(page.replace("</body>", f"{narrow}{_MEASURE}</body>", 1))
    said = subprocess.run(
        [
            report_png.find_browser(), "--headless", "--disable-gpu", "--no-first-run",
            "--hide-scrollbars", *(["--no-sandbox"] if os.geteuid() == 0 else []),
            f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={max(width_px, 500)},900",
            "--dump-dom", file.as_uri(),
        ],
        capture_output=True, text=True, timeout=100, check=True,
    ).stdout  # fmt: skip
    assert "<title>beyond:0 clipped:0 tiny:0 shown:4</title>" in said
