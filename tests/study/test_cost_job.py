"""`bamboo cost JOB`: the table, what was played of it, limits, refusals, CSV and picture."""

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bamboo.config.load import load_job
from bamboo.planner.risks.zones import REPLACE_S, RESTART_S
from bamboo.study.costing import CostAsked, _question
from bamboo.study.outcomes import market_terms
from bamboo.study.pricing import TimesAsked
from cli import main
from tests.data.own_data import own_job
from tests.jobs import tiny_job

pytestmark = pytest.mark.usefixtures("warm_torch")

FAST = ("--seeds", "2", "--rows", "4", "--type", "g4dn.xlarge", "--type", "g5.xlarge")
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    tiny_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    return "job.toml"


def asked(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main.run(["cost", *arguments]) == code
    return capsys.readouterr().out


def body_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    body = json.loads(asked(capsys, *arguments, "--json", code=code))
    assert isinstance(body, dict)
    return body


def test_samples_of_data_of_their_own_have_no_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    arguments = ("job.toml", *FAST, "--samples-per-s", "100", "--budget", "5")
    body = body_of(capsys, *arguments)
    assert body["unit"] == "word"
    assert {row["usd_per_million_tokens"] for row in body["options"]} == {None}
    assert body["bought"]["samples_asked"] == 6 * 8
    assert "token" not in json.dumps(body).replace("usd_per_million_tokens", "")
    text = asked(capsys, *arguments)
    assert "$ per M samples" in text
    assert "token" not in text


def test_the_same_seeds_give_the_same_table(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    every = ("--set", "checkpoint.every_steps=7")
    one, other = (body_of(capsys, job, *FAST, "--hazard", "2", *every) for _ in range(2))
    assert one == other
    assert one["modelled"]
    assert one["chosen"] in {row["option"] for row in one["options"]}
    assert "modelled by published figures of each GPU" in one["times"]
    markets = {row["market"] for row in one["options"] if row["simulated"]}
    assert markets >= {"spot", "on-demand"}
    for row in one["options"]:
        assert row["samples_per_usd"] == pytest.approx(
            row["samples_per_s"] * 3600 / row["usd_per_hour"]
        )
        assert row["usd_per_million_tokens"] == pytest.approx(1e6 / row["samples_per_usd"] / 8)
        assert row["bytes_of_fullest_node"] == max(row["bytes_by_stage"])
        assert "from the model's shape" in row["source"]
    for row in one["options"]:
        played = row["simulated"]
        if played:
            assert played["hours_p50"] <= played["hours_p90"]
            assert played["usd_p50"] <= played["usd_p90"]
            assert played["whole_usd_p90"] > played["usd_p90"]
    restarts = one["checkpoint_and_restart"]
    assert restarts["usd_p90"] > 0
    assert "a checkpoint every 7 steps, as ours" in restarts["terms"]
    assert one["lines"] == len(one["options"]) + len(one["behind"]) + one["do_not_fit"]["lines"]
    taken = next(row for row in one["options"] if row["option"] == one["chosen"])["simulated"]
    for name in ("p50", "p90"):
        assert taken[f"whole_usd_{name}"] - taken[f"usd_{name}"] == pytest.approx(
            one["beside"]["usd_per_hour"] * taken[f"hours_{name}"]
        )
    # Bytes between zones are in the price of a spread already.
    assert {part["name"] for part in one["beside"]["parts"]} == {
        *("disks", "addresses", "object store", "coordinator")
    }


def test_a_given_figure_is_that_of_the_job_as_it_is_written(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (job, "--samples-per-s", "100", "--seeds", "1", "--rows", "30", "--max-nodes", "2")
    body = body_of(capsys, *arguments)
    assert body["times"] == "given with --samples-per-s"
    assert {row["instance_type"] for row in body["options"]} == {"g4dn.xlarge"}
    fixed = next(row for row in body["options"] if row["market"] == "on-demand")
    assert fixed["nodes"] == 2
    # The job has redundancy `stash`, which costs nothing where sizes do not matter.
    assert fixed["samples_per_s"] == pytest.approx(100)
    assert fixed["samples_per_usd"] == pytest.approx(100 * 3600 / (2 * 0.526))


def test_the_text(
    job: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def noted(what: str) -> Iterator[Callable[[int, int], None]]:
        yield lambda done, of_all: told.setdefault(what, []).append((done, of_all))

    monkeypatch.setattr("cli.commands.cost.bar", noted)
    text = " ".join(asked(capsys, job, *FAST).split())
    ((what, runs),) = [(what, runs) for what, runs in told.items() if "simulating" in what]
    # Two seeds a row, but on demand nothing is taken and one run is all.
    of_all = 2 * int(what.split()[1]) - 1
    assert runs == [(done, of_all) for done in range(of_all + 1)]
    assert text.startswith(f"{Path(job).name}: ")
    assert " off, " not in text
    for words in (
        "6 steps of 8 samples",
        "no GPU has confirmed them",
        "all dollars are modelled",
        "checkpoint and restart*",
        "rows that were played come first, by what came out; then by the planner's figures",
        "2 runs a row (seeds 0 to 1)",
        "take g",
        "times the samples per dollar of the best on demand",
        "which is 0 in a new account: ask for them first",
        "besides the instances, modelled: $",
        "$ with all costs, samples per $ of instances alone",
        "Redundancy ",
        "does not pay",
        "on-demand as of 2026-07-20 (",
        "; spot is modelled from",
    ):
        assert words in text, words


def test_csv_parses_and_the_picture_is_svg(
    job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = body_of(capsys, job, *FAST, "--csv", "o.csv", "--plot", "o.svg")
    rows = list(csv.DictReader(StringIO((tmp_path / "o.csv").read_text())))
    assert len(rows) == len(body["options"])
    for row, option in zip(rows, body["options"], strict=True):
        assert float(row["samples_per_usd"]) == option["samples_per_usd"]
        assert bool(row["simulated_usd_p90"]) is (option["simulated"] is not None)
    assert ElementTree.parse(tmp_path / "o.svg").getroot().tag.endswith("svg")
    assert body["job"] == Path(job).name
    assert " off, " not in " ".join(option["option"] for option in body["options"])
    assert main.run(["cost", job, *FAST, "--csv", "o.csv"]) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (("--budget", "0.000001"), "enough would be $"),
        (("--deadline", "0.0000001"), "no plan that fits is done within 1e-07 h"),
    ],
)
def test_what_is_not_enough_is_said_with_what_would_be(
    job: str, limit: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["cost", job, *FAST, *limit, "--json"]) == 2
    output = capsys.readouterr()
    assert output.err.startswith("error: Not enough: ")
    assert words in output.err
    body = json.loads(output.out)
    assert body["chosen"] is None
    assert body["why"] in output.err
    for row in body["options"]:
        assert not row["simulated"] or "budget" in row["simulated"]["misses"]


def test_without_an_option_there_is_no_empty_table(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = asked(capsys, job, *FAST, "--deadline", "0.0000001", code=2)
    assert "Not enough" in text
    assert "samples per $" not in text
    assert "as of ;" not in text


def test_a_budget_that_is_enough(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    body = body_of(capsys, job, *FAST, "--budget", "50", "--deadline", "9")
    assert "The cheapest of the" in body["why"]
    assert body["bought"]["tokens_p50"] >= body["bought"]["tokens_p90"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--deadline", "0"), "--deadline 0 is no limit"),
        (("--budget", "-1"), "--budget -1 is no limit"),
        (("--max-nodes", "0"), "--max-nodes 0 is no size"),
        (("--hazard", "-1"), "--hazard -1 is no rate"),
        (("--hazard", "1", "--trace", "t.csv"), "are two markets"),
        (("--trace", "t.csv"), "t.csv"),
        (("--seeds", "0"), "--seeds 0 is no number"),
        (("--rows", "0"), "--rows 0 is no number"),
        (
            ("--samples-per-s", "-1"),
            "--samples-per-s -1 is no rate; give 1e-06",
        ),
        (("--type", "m5.large"), "'m5.large' is not in the catalogue"),
        (("--plot", "o.png"), "give a name that ends in .svg"),
        (("--set", "model.width=200_000"), "no option fits: "),
    ],
)
def test_wrong_words_are_one_line(
    job: str, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["cost", job, *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_run_takes_no_option_of_a_job(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["cost", "r", "--budget", "3"]) == 2
    assert "--budget goes with a job file" in capsys.readouterr().err


def test_a_market_like_a_trace(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(EXAMPLES / "spot-market.csv")
    body = body_of(capsys, job, *FAST, "--trace", trace)
    assert body["market"].startswith("made up like spot-market.csv: ")


def test_a_node_is_replaced_by_the_planner_as_late_as_by_the_market_that_is_played(
    job: str,
) -> None:
    loaded = load_job(Path(job))
    for trace in (None, EXAMPLES / "spot-market.csv"):
        terms, _ = market_terms(None, trace)
        question = _question(loaded, CostAsked(times=TimesAsked(), trace=trace), terms)
        assert question.replace_s == max(RESTART_S, terms.back_s + terms.boot_s)
        assert trace or question.replace_s == REPLACE_S, "as a plan has it"


def test_gpt2_xl_needs_no_model_in_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    example = str(EXAMPLES / "gpt2-xl-300usd.toml")
    # Fewer and larger microbatches than it has: the schedule is played through.
    small = ("--set", "train.batch=16", "--set", "train.steps=100", "--max-nodes", "6")
    small += ("--set", "cluster.recompute=off")  # with it all options fit
    types = ("--type", "g5.xlarge", "--type", "g4dn.xlarge")
    body = body_of(capsys, example, *small, *types, "--seeds", "1", "--rows", "2")
    assert body["budget_usd"] == 300
    assert body["bought"]["tokens_asked"] == 100 * 16 * 1024
    assert body["do_not_fit"]["lines"] > 0
    assert "layer " in body["do_not_fit"]["nearest"]
    assert all(row["bytes_of_fullest_node"] > 10 * 2**30 for row in body["options"])
    said = " ".join(body["notes"])
    assert "Times of A10G are those of fp32 without tensor cores, 31.5 TFLOPS at most; bf16" in said
    assert "fits one GPU" not in said, "a T4 and an A10G have no room for it"
    best = next(row for row in body["options"] if row["option"] == body["chosen"])
    assert f"{best['option']} costs " in said


def test_gpus_that_are_idle_and_a_model_that_fits_one_are_said(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = asked(capsys, job, "--type", "g4dn.12xlarge", "--seeds", "1", "--rows", "1")
    said = " ".join(text.split())
    assert (
        "A g4dn.12xlarge has 4 GPUs and a node uses one of them: the others are paid and idle."
    ) in said
    assert "The whole model fits one GPU: a single g4dn.12xlarge on demand (T4) would come" in said
    assert "Times of T4 are those of fp32 without tensor cores, 8.1 TFLOPS at most; it has" in said


def test_what_is_beyond_any_quota_is_no_advice(
    job: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bamboo.planner.renting.credible.MOST_VCPUS", 1)
    assert main.run(["cost", job, *FAST]) == 2
    said = capsys.readouterr()
    assert "No sensible way found, because the best, " in said.err
    assert "take g4dn" not in said.out
    body = body_of(capsys, job, *FAST, code=2)
    assert body["chosen"] is None
    assert "vCPUs of one quota, and more than 1 are not to be counted on" in body["why"]


def test_without_a_table_the_prices_that_were_compared_have_their_age(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["cost", job, *FAST, "--deadline", "1e-9"]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "Not enough: no plan that fits is done within 1e-09 h" in said
    assert "on-demand as of" in said
    assert "no price was used" not in said
