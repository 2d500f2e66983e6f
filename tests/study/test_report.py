"""`bamboo report`: the figures are those of `bamboo cost`, the page stands alone, and whatever a
run's records lack is named in it."""

import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bamboo.billing.run_cost import cost_of_run
from bamboo.ids import run_id
from bamboo.quantities import micro_text, rate, usd
from bamboo.runs import run_folder
from bamboo.study.report import report_of
from bamboo.telemetry.records import MetricRecord
from cli import main
from cli.pictures.report import INKS, PLACES, pictures_of
from cli.views.report import figures_of, report_html
from cli.views.report_style import STYLE
from tests.billing.test_spent import KEPT, cloud_log
from tests.controller.world import START_S, World, caught_up, job, joined, lost, step
from tests.full_disk import files_up_to
from tests.runs.test_reading import folder_of, home, live, write_steps

pytestmark = pytest.mark.timeout(180)
__all__ = ["home"]
PICTURES = ["loss", "throughput", "nodes", "dollars"]
DRAWN = len(PLACES)
"""Each picture is drawn for a narrow and for a wide place."""
VOID = {"meta", "br"}
FETCHING = ("src", "href", "data")


class Page(HTMLParser):
    """What a reader would see, and whether every element is closed where it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words += data


@pytest.fixture
def spent(home: Path) -> run_folder.RunFolder:
    """A run on a virtual device with a kill and a notice, as it left its folder."""
    shutil.copytree(KEPT / "spent", home / "spent")
    return run_folder.find(home, "spent")


def page_of(folder: run_folder.RunFolder, *, now_s: float = START_S + 60) -> tuple[str, Page]:
    report = report_of(folder, now_s=now_s)
    text = report_html(report, pictures_of(report))
    return text, Page(text)


@pytest.fixture(scope="module")
def spent_page(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Page]:
    """The page of that run, for those who only read it."""
    folder = run_folder.RunFolder(id=run_id("spent"), path=tmp_path_factory.mktemp("r") / "spent")
    shutil.copytree(KEPT / "spent", folder.path)
    return page_of(folder)


def missing(folder: run_folder.RunFolder) -> str:
    return "\n".join(report_of(folder, now_s=START_S + 60).missing)


def test_the_figures_are_those_of_cost_and_receipt(
    spent: run_folder.RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["cost", "spent", "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)
    assert main.run(["report", "spent", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["cost"] == cost
    assert body["missing"] == []
    assert body["html"] == str(spent.path / "report.html")
    receipt = json.loads(spent.receipt.read_text())
    assert cost["samples_per_usd"] == receipt["samples_per_usd"]
    assert body["figures"]["samples/s"] == rate(receipt["samples_per_s"])
    assert body["figures"]["samples per dollar"] == rate(receipt["samples_per_usd"])
    assert body["figures"]["dollars, modelled"] == usd(receipt["bill"]["usd"])
    page = Page(Path(body["html"]).read_text())
    limit = next(one for one in page.words.split("of $")[1:] if "beside" in one[:40])
    assert limit.startswith("0.5000, with what is beside the bill")
    assert body["figures"]["preemptions"] == str(len(receipt["preemptions"]))
    for one in cost["spent"]["uses"]:
        assert micro_text(one["micro_usd"]) in page.words
    for use in ("useful", "redundancy", "recovery", "lost work", "bubble", "standby", "waiting"):
        assert use in page.words
    for beside in ("coordinator", "disks", "transfer"):
        assert f"beside the bill: {beside}" in page.words


def test_the_curve_of_the_dollars_ends_at_the_bill(spent: run_folder.RunFolder) -> None:
    report = report_of(spent, now_s=0.0)
    last = report.dollars[-1]
    assert last.usd == pytest.approx(report.cost["usd"], abs=1e-9)
    assert last.on_demand_usd == pytest.approx(report.cost["on_demand_usd"], abs=1e-9)
    full = [one.on_demand_usd for one in report.dollars]
    assert full == sorted(full)


def test_the_page_stands_alone(spent_page: tuple[str, Page]) -> None:
    text, page = spent_page
    assert page.tags.count("svg") == DRAWN * len(PICTURES)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    loads = [value for name, value in page.attributes if name.split(":")[-1] in FETCHING]
    fetched = [value for value in loads if not value.startswith("#")]
    assert fetched == []
    assert "@import" not in text
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    assert set(re.findall(r"https?://[^/\"]+", text)) <= {"http://www.w3.org"}
    assert "width=device-width" in text
    assert "prefers-color-scheme: dark" in text
    identities = [value for name, value in page.attributes if name == "id"]
    named = {value[1:] for name, value in page.attributes if name.endswith("href")}
    assert named <= set(identities)
    assert len({tuple(value.split("-")[:2]) for value in identities}) == DRAWN * len(PICTURES)
    assert len(set(identities)) == len(identities)


def test_every_colour_is_there_for_light_and_dark(spent_page: tuple[str, Page]) -> None:
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    text, _ = spent_page
    used = set(re.findall(r"var\(--([\w-]+)\)", text))
    assert used - {"page", "card", "line", "warn"} <= INKS.keys()
    for ink in {*INKS, *used}:
        assert f"--{ink}:" in light
        assert f"--{ink}:" in dark
    assert len(set(INKS.values())) == len(INKS)
    body = text[text.index("<main>") :]
    assert set(re.findall(r"#[0-9a-f]{6}\b", body)) <= set()


def test_what_others_wrote_is_shown_as_text(home: Path) -> None:
    folder = folder_of(home, "r")
    cloud_log(folder, {0: (40.0, "interrupted")})
    zone = "</svg><script>alert(1)</script>--><b>&\"'"
    text = folder.cloud.read_text().replace('"zone": "a"', f'"zone": {json.dumps(zone)}')
    folder.cloud.write_text(text)
    evil = {
        "phase": "finished", "outcome": "fault", "sentence": "<script>alert(2)</script> & more",
        "step": 1, "steps": 3, "loss": None,
    }  # fmt: skip
    nothing: dict[str, object] = {"preemptions": [], "reconfigurations": []}
    run_folder.write_json(folder.receipt, {"status": evil, **nothing, "unigram_entropy_nats": None})
    page, read = page_of(folder)
    assert "script" not in read.tags
    assert "b" not in read.tags
    assert "<script>alert(2)</script> & more" in read.words
    assert "nodes" in pictures_of(report_of(folder, now_s=START_S + 60))
    assert "alert(1)</script>" not in page


def test_a_run_that_goes_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, world = folder_of(home), World(job())
    live(folder, world, monkeypatch)
    monkeypatch.setattr("bamboo.controller.launcher.TURN_S", 0.0)
    cloud_log(folder, {2: (2.5, "interrupted")})
    world._script = [joined(), step(0), [lost(2, 1), caught_up(1, 2)], step(1)]
    with pytest.raises(AssertionError, match="the script is over"):
        world.launcher.run()
    write_steps(folder, 2)
    report = report_of(folder, now_s=world.clock_s)
    cost = cost_of_run(folder, now_s=world.clock_s)
    figures = {one.label: one.value for one in figures_of(report)}
    assert report.cost["ended"] is False
    assert figures["preemptions"] == "1"
    assert figures["failovers"] == "1"
    assert figures["lost steps"] == "0"
    assert figures["steps"] == "2"
    assert report.cost["samples_per_usd"] == cost["samples_per_usd"]
    assert "running" in report.status["phase"] or report.status["phase"] == "degraded"


def test_old_records_have_no_times(spent: run_folder.RunFolder) -> None:
    lines = [json.loads(line) for line in spent.metrics.read_text().splitlines()]
    for line in lines:
        line.pop("t")
    spent.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert f"{len(lines)} of {len(lines)} steps were recorded without their time" in missing(spent)
    _, page = page_of(spent)
    assert page.tags.count("svg") == DRAWN * len(PICTURES)


def test_an_empty_run_and_one_that_was_killed_at_once(home: Path) -> None:
    folder = folder_of(home)
    _, page = page_of(folder)
    assert "svg" not in page.tags
    for words in ("no step was finished", "the cloud's log has no instance", "what it cost"):
        assert words in page.words
    assert "preemptions" in page.words
    cloud_log(folder, {})
    _, page = page_of(folder)
    assert page.tags.count("svg") >= 2
    assert "no step was finished" in page.words


def test_a_run_that_was_killed_without_a_receipt(home: Path) -> None:
    folder = folder_of(home)
    write_steps(folder, 3)
    cloud_log(folder, {1: (4.0, "interrupted"), 2: (5.0, "interrupted")})
    figures = {one.label: one for one in figures_of(report_of(folder, now_s=START_S + 60))}
    assert figures["preemptions"].value == "–"
    assert figures["preemptions"].note == "2 instances taken by the cloud"
    assert "preemptions, failovers and steps done again" in missing(folder)


def test_numbers_that_are_none_leave_a_gap(home: Path) -> None:
    folder = folder_of(home)
    losses = [3.0, math.nan, 2.0, math.inf, 1.0]
    records = [
        MetricRecord(step=n, loss=loss, tokens_per_s=1.0, usd=0.0, tokens_per_usd=0.0, at_s=START_S)
        for n, loss in enumerate(losses)
    ]
    folder.metrics.write_text("".join(record.to_json() + "\n" for record in records))
    assert "the loss of 2 steps is no number, first in step 1" in missing(folder)
    _, page = page_of(folder)
    assert any(name == "aria-label" and "Loss: " in value for name, value in page.attributes)
    folder.metrics.write_text(records[1].to_json() + "\n")
    assert "loss" not in pictures_of(report_of(folder, now_s=START_S + 60))


def test_damage_is_named_and_the_rest_is_shown(spent: run_folder.RunFolder) -> None:
    spent.metrics.write_text("{]\n")
    _, page = page_of(spent)
    assert "loss and throughput" in page.words
    assert page.tags.count("svg") == DRAWN * 2
    spent.receipt.write_text("{}")
    _, page = page_of(spent)
    assert "where it stands" in page.words
    assert "what it cost" in page.words
    assert page.tags.count("svg") == DRAWN * 2


def test_a_long_run_makes_no_long_file(spent: run_folder.RunFolder) -> None:
    records = [
        MetricRecord(step=n, loss=5.0 + math.sin(n), tokens_per_s=100.0 + n % 7, usd=0.0,
                     tokens_per_usd=0.0, at_s=START_S + n)
        for n in range(20_000)
    ]  # fmt: skip
    spent.metrics.write_text("".join(record.to_json() + "\n" for record in records))
    text, _ = page_of(spent)
    assert len(text) < 600_000


def test_many_instances_in_many_zones(home: Path) -> None:
    folder = folder_of(home)
    lines = []
    for n in range(1000):
        instance = {"instance": f"i-{n}", "t": START_S + n}
        lines.append(
            {"kind": "start", "zone": f"z{n % 9}", "instance_type": "g4dn.xlarge",
             "market": "spot", "usd_per_hour": 0.2, **instance}
        )  # fmt: skip
        cause = "interrupted" if n % 3 else "terminated"
        lines.append({"kind": "end", "cause": cause, **instance, "t": START_S + n + 90})
    folder.cloud.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = report_of(folder, now_s=START_S + 1200)
    assert 60 <= len(report.dollars) <= 300
    text, page = page_of(folder, now_s=START_S + 1200)
    assert len(text) < 600_000
    assert "4 others" in text
    assert page.tags.count("svg") >= 2


def test_files_are_whole_or_not_there(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_of(home, "spent")  # without a picture its page is quickly written
    out = tmp_path / "a report.html"
    assert main.run(["report", "spent", "--out", str(out)]) == 0
    before = out.read_bytes()
    assert main.run(["report", "spent", "--out", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err
    with files_up_to(1000):
        assert main.run(["report", "spent", "--out", str(out), "--force"]) == 2
        assert "make room there" in capsys.readouterr().err
        assert main.run(["report", "spent"]) == 2
        assert "make room there" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a report.html", "spent"]
    assert main.run(["report", "spent", "--out", str(tmp_path / "no" / "such.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    capsys.readouterr()
    assert main.run(["report", "spent", "--out", "-"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("<!doctype html>")
    assert printed.err.endswith("\nspent: -\n")
    assert main.run(["report", "spent"]) == 0
    assert main.run(["report", "spent"]) == 0  # its own it may replace
    assert main.run(["report", "nobody"]) == 2
