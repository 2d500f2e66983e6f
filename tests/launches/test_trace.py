"""`bamboo launch --trace` for real: nodes that come and go by a trace, SIGKILL, the calm bits."""

import json
import shutil
from pathlib import Path

import pytest

from tests.jobs import TEXT
from tests.launches.test_launch import Bench

EXAMPLES = Path(__file__).parents[2] / "examples"
TRACE = "".join(f"{ms},{what},{node}\n" for ms, what, node in [
    *((0, "add", f"n{n}") for n in range(1, 6)),
    (120_000, "remove", "n2"),
    (300_000, "remove", "n1"), (300_000, "remove", "n3"),
    (310_000, "add", "n6"), (320_000, "add", "n7"),
    (480_000, "remove", "n4"),
    (500_000, "add", "n8"),
])  # fmt: skip
"""Three seats: one is lost at 2 min, two of three at 5 min, one at 8 min; each is filled again."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_a_trace_from_its_begin_to_the_proof(bench: Bench) -> None:
    (bench.folder / "market.csv").write_text(TRACE)
    keys = (
        "train.steps=100000", "cluster.stages=2", "cluster.redundancy=stash",
        "cluster.device=virtual", "cluster.virtual_forward_ms=[10.0]",
        "cluster.virtual_backward_ms=[20.0]", "cluster.patience_s=2.0",
        "checkpoint.every_steps=5",
    )  # fmt: skip
    sets = [part for key in keys for part in ("--set", key)]
    scale = ("--time-scale", "30", "--restart-seconds", "0", "--max-nodes", "3", "--hours", "0.17")
    done = bench.run("launch", "job.toml", "--run", "t", "--trace", "market.csv", *scale, *sets)
    assert done.returncode == 130, done.stdout + done.stderr
    assert "as in market.csv, modelled: 3 nodes at first" in done.stdout
    assert "the 0.17 h of the trace that were asked for are over" in done.stdout
    receipt = json.loads((bench.home / "t" / "receipt.json").read_text())
    assert receipt["trace"]["preemptions"] == 4
    steps = [
        json.loads(line)["step"]
        for line in (bench.home / "t" / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == list(range(len(steps))), "a step is missing, or has two losses"
    assert bench.json("verify", "t")["equal"] is True
    assert bench.json("verify", "t", "--samples")["equal"] is True
    assert bench.json("verify", "t", "--decisions")["equal"] is True


@pytest.mark.timeout(120)
def test_a_dry_run_shows_how_the_example_is_played(bench: Bench) -> None:
    shutil.copy(EXAMPLES / "spot-market.csv", bench.folder)
    (bench.folder / "text.txt").write_text(TEXT, encoding="utf-8")
    sets = ("--set", "data.source=path", "--set", "data.path=text.txt")
    job = (EXAMPLES / "trace-local.toml").read_text()
    (bench.folder / "trace-local.toml").write_text(job)
    arguments = ("launch", "trace-local.toml", "--dry-run", "--trace", "spot-market.csv", *sets)
    body = bench.json(*arguments, "--max-nodes", "8")["trace"]
    assert (body["nodes_at_begin"], body["preemptions"], body["time_scale"]) == (8, 7, 60.0)
    assert body["end_s"] == 1200.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-nodes", "8"), "--max-nodes 8 goes with a trace; give --trace FILE too"),
        (("--trace", "nowhere.csv"), "there is no file nowhere.csv; correct the path"),
        (("--trace", "market.csv", "--max-nodes", "3"), "--max-nodes 3 is too few"),
    ],
)
def test_what_cannot_be_played_is_refused(
    bench: Bench, arguments: tuple[str, ...], words: str
) -> None:
    (bench.folder / "market.csv").write_text(TRACE)
    done = bench.run("launch", "job.toml", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr.splitlines()[-1]
    assert not bench.home.exists()
