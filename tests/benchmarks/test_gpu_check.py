"""The check of a machine with a card: what it judges, and that it runs on a CPU too."""

import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bamboo.config.load import load_job
from benchmarks.gpu_check import card, children, figures, jobs, kills, profile, runs
from benchmarks.gpu_check.bits import differing
from benchmarks.gpu_check.board import Board
from benchmarks.gpu_check.children import ChildFailed, Deadline, environment, run
from benchmarks.gpu_check.figures import (
    LIMITS,
    Figure,
    cards_with,
    merged,
    records_of,
    table,
    with_record,
)
from testbed.waiting import wait_until

FACTS = {"date": "2026-11-27", "commit": "abc1234", "device": "cuda", "uuid": "GPU-1"}


def figure(value: figures.Value | None, limit: str = "", **more: Any) -> Figure:
    return Figure(part="bits", name="a line", value=value, limit=limit, **more)


def test_a_limit_is_kept_or_not() -> None:
    assert [figure(value, "differing").reached for value in (0, 1)] == [True, False]
    assert [figure(value, "equal").reached for value in (True, False)] == [True, False]
    assert [figure(value, "executor").reached for value in (0.98, 0.979)] == [True, False]
    assert figure(3.0).reached is None
    assert figure(None, "pause", why_not="no card").reached is None
    assert "NOT REACHED" in figure(151.0, "pause").line()
    assert "NOT RUN: no card" in figure(None, "pause", why_not="no card").line()


def test_a_figure_replaces_the_older_one_and_a_line_that_was_not_run_replaces_no_value() -> None:
    text = merged("", figure(1.0, "executor"), FACTS)
    text = merged(text, figure(0.5, "executor"), FACTS)
    kept = json.loads(merged(text, figure(None, why_not="no time"), FACTS))["figures"]
    assert kept["bits/a line"] == {
        "value": 0.5, "unit": "", "limit": ">= 0.98", "reached": False, **FACTS,
    }  # fmt: skip
    other = merged(text, figure(None, why_not="no time"), {**FACTS, "uuid": "GPU-2"})
    assert json.loads(other)["figures"]["bits/a line"]["not_run"] == "no time"
    with pytest.raises(ValueError, match="schema"):
        merged("{}", figure(1.0), FACTS)


def test_four_runs_kill_each_stage_in_each_phase(tmp_path: Path) -> None:
    met = set()
    for turn in range(4):
        killed = jobs.with_kills(jobs.gpt(small=True), turn=turn, spacing=6)
        listed = tomllib.loads(killed.job.text())["chaos"]["kill"]
        assert [b["step"] - a["step"] for a, b in itertools.pairwise(listed)] == [6] * 4
        assert len(listed) == killed.kills
        assert all(kill.get("microbatch", 0) < killed.job.microbatches for kill in listed)
        assert listed[-1]["step"] < killed.job.train["steps"]
        met |= {(kill["stage"], kill["phase"]) for kill in listed}
        (tmp_path / "job.toml").write_text(killed.job.text())
        load_job(tmp_path / "job.toml")
    assert len(met) == 4 * len(jobs.PHASES)


@pytest.mark.parametrize("name", ["12x1024", "24x2048", "gpt2-medium", "bert-large", "llama-1b"])
def test_each_shape_is_a_job(name: str, tmp_path: Path) -> None:
    place = runs.Place(folder=tmp_path, deadline=Deadline.after(1.0))
    for small in (True, False):
        load_job(place.write(jobs.shape(name, small=small), name))


@pytest.mark.parametrize("mode", ["eager", "stash", "peer"])
def test_each_mode_takes_its_kills(mode: str, tmp_path: Path) -> None:
    job = jobs.gpt(small=True).within(pipelines=2, stages=2, redundancy=mode)
    killed = jobs.with_kills(job, turn=2, spacing=6, phases=kills.phases_of(mode))
    (tmp_path / "job.toml").write_text(killed.job.text())
    assert len(load_job(tmp_path / "job.toml").chaos.kill) == killed.kills


def test_kills_lie_far_enough_apart_in_time_and_not_too_many_steps() -> None:
    assert [kills.spacing_of(step_s, 2.5) for step_s in (0.1, 10.0, 1e-4)] == [25, 4, 400]


def test_a_pause_is_counted_from_the_end_of_the_connection() -> None:
    loss = {"noticed": False, "pause_s": 0.5, "parts_s": {"disconnect": 0.4, "decision": 0.1}}
    unknown = {"noticed": False, "pause_s": 0.2, "parts_s": {}}
    others = [{**loss, "noticed": True}, {**loss, "pause_s": None}]
    found = runs.pauses_s({"preemptions": [loss, unknown, *others]})
    assert found == pytest.approx([0.1, 0.2])


def test_differing_losses_and_tensors_are_counted() -> None:
    one = {"losses": ["a", "b"], "tensors": {"x": "1", "y": "2"}}
    assert differing(one, one) == 0
    assert differing(one, {"losses": ["a"], "tensors": {"x": "1", "y": "3", "z": "4"}}) == 3


def test_a_file_of_results_is_shown_as_it_was_printed() -> None:
    text = merged("", figure(0.5, "executor"), FACTS)
    other = Figure(part="facts", name="another", why_not="no time")
    lines = table(merged(text, other, {**FACTS, "commit": ""}))
    assert lines[0] == "== bits"
    assert "0.5" in lines[1]
    assert lines[1].endswith(">= 0.98  NOT REACHED  (2026-11-27, abc1234)")
    assert lines[2] == "== facts"
    assert lines[3].endswith("NOT RUN: no time  (2026-11-27, commit unknown)")
    with pytest.raises(ValueError, match="schema"):
        table("{}")


def test_records_are_of_the_same_card_and_commit() -> None:
    text = merged("", figure(1.0), FACTS)
    for name, facts in (("a", {}), ("b", {"commit": "fff0000"}), ("c", {"uuid": "GPU-2"})):
        text = with_record(text, "pauses", name, {**FACTS, **facts, "pauses_s": [0.1]})
    assert list(records_of(text, "pauses", FACTS)) == ["a"]
    assert records_of("", "pauses", FACTS) == {}


def test_cards_that_gave_a_digest_are_counted_once_each() -> None:
    def text(uuid: str, digest: str) -> str:
        kept = merged("", figure(1.0), FACTS)
        return with_record(kept, "digests", uuid, {"uuid": uuid, "digest": digest})

    texts = [text("GPU-1", "d"), text("GPU-1", "d"), text("GPU-2", "d"), text("GPU-3", "e")]
    assert cards_with("d", [*texts, text("", "d"), merged("", figure(1.0), FACTS)]) == {
        "GPU-1",
        "GPU-2",
    }


def test_children_find_this_checkout_wherever_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f".{os.pathsep}elsewhere")
    first, *others = environment()["PYTHONPATH"].split(os.pathsep)
    assert Path(first) == Path(__file__).parents[2]
    assert all(Path(path).is_absolute() for path in others)
    assert environment()["CUBLAS_WORKSPACE_CONFIG"]


def test_a_card_is_known_by_what_nvidia_smi_says() -> None:
    found = card.read_smi("GPU-1, 580.95.05, 96.00.A5.00.01\n")
    assert found == {"uuid": "GPU-1", "driver": "580.95.05", "vbios": "96.00.A5.00.01"}
    assert card.read_smi("") == card.read_smi("no devices were found") == {}
    name = card.file_name({"date": "2026-11-27", "card": "NVIDIA H100 80GB HBM3"})
    assert name == "2026-11-27-nvidia-h100-80gb-hbm3.json"
    assert profile.peak_tflops("NVIDIA H100 80GB HBM3", "bf16") > 900
    assert profile.peak_tflops("NVIDIA A10G", "fp32") == 31.5
    assert profile.peak_tflops("cpu", "fp32") == 0.0


def test_a_line_that_fails_is_named_and_ends_nothing(tmp_path: Path) -> None:
    board = Board("bits", tmp_path / "out.json", {**FACTS, "card": "x"}, Deadline.after(5.0))

    def fails() -> None:
        raise ChildFailed("the run ended lost")

    board.attempt("a", fails, limit="equal")
    board.attempt("b", lambda: board.add("b", True, limit="equal"), needs_s=1.0)
    board.attempt("c", fails, needs_s=60.0)
    kept = json.loads((tmp_path / "out.json").read_text())["figures"]
    assert kept["bits/a"]["not_run"] == "the run ended lost"
    assert kept["bits/b"]["reached"] is True
    assert "60 s are needed" in kept["bits/c"]["not_run"]


def test_a_process_that_takes_too_long_is_ended_with_its_reason() -> None:
    code = "import sys, time; print('at work', file=sys.stderr, flush=True); time.sleep(60)"
    with pytest.raises(ChildFailed, match="not done within 1 s; it said last"):
        run([sys.executable, "-c", code], timeout_s=1.0)


def test_it_runs_with_the_cpu_in_the_place_of_the_card(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ["--part", "facts", "--only", "context", "--device", "cpu", "--small", "--out", out]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", *words],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())["figures"]
    assert found["small facts/first attention"]["value"] > 0
    assert {one["device"] for one in found.values()} == {"cpu"}
    assert all(name.split("/", 1)[1] in done.stdout for name in found)


@pytest.mark.full
@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_all_of_a_part_is_reached_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ["--part", "bits", "--device", "cpu", "--small", "--limit-s", "350", "--out", out]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", *words],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = json.loads(out.read_text())["figures"]
    left_out = {name: one["not_run"] for name, one in found.items() if one["value"] is None}
    assert set(left_out.values()) == {"there is no card"}, left_out
    verified = [one["reached"] for name, one in found.items() if name.endswith("verify")]
    assert verified == [True, True]


def test_each_limit_that_is_named_is_in_the_table() -> None:
    folder = Path(figures.__file__).parent
    named = set(re.findall(r'limit="(\w+)"', "".join(f.read_text() for f in folder.glob("*.py"))))
    assert named
    assert named <= LIMITS.keys()


def test_processes_that_opened_a_card_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = tmp_path / "nvidia0"
    opened.touch()
    monkeypatch.setattr(children, "CARD", str(opened))
    code = "import sys; file = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code]
    started = []
    try:
        with children.on_the_card("UNDER_A_SANITIZER") as seen:
            for path, variable in ((opened, "UNDER_A_SANITIZER"), (opened, "X"), (os.devnull, "X")):
                process = subprocess.Popen(
                    [*command, path],
                    env={**os.environ, variable: "1"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
                started.append(process)
                assert process.stdout is not None
                assert process.stdout.readline() == b"open\n"
            wait_until(lambda: seen, what="the process is seen")
        assert seen == {started[0].pid}
    finally:
        for process in started:
            process.communicate(timeout=10)
