"""The example that tells files of the standard library apart: its windows, and a run that loses two
nodes."""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy
import pytest
import torch

from examples.stdlib_files import PARTS, WINDOW, Windows, unigram_accuracy, write
from tests.launches.test_launch import PACED, Bench

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = 12
KILLS = '[{step=8, stage=1, phase="backward", microbatch=1}, {step=14, stage=0, notice_s=1}]'


def test_each_window_is_of_its_file_and_in_one_part(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    tokens = numpy.fromfile(tmp_path / "tokens.ids", dtype="<i4")
    said = json.loads((tmp_path / "files.json").read_text())
    assert sorted(set(tokens)) == list(range(said["vocabulary"]))
    wanted = [
        (file, begin)
        for file, (start, end) in enumerate(pairwise([0, *said["ends"]]))
        for begin in range(start, end - WINDOW + 1, WINDOW)
    ]
    for part, numbers in PARTS.items():
        found, expected = (
            Windows(tmp_path, part),
            [one for number, one in enumerate(wanted) if number % 10 in numbers],
        )
        (windows,), (labels,) = found.batch(list(range(found.samples)), [])
        assert labels.tolist() == [file for file, _ in expected]
        assert windows.tolist() == [tokens[at : at + WINDOW].tolist() for _, at in expected]
    assert sorted(number for numbers in PARTS.values() for number in numbers) == list(range(10))


def test_the_unigram_model_is_naive_bayes(tmp_path: Path) -> None:
    """Two files without a token in common are told apart; of windows that are alike the file with
    more of them is taken, which is right for the one of two held out that is of it."""
    alike, other = [0] * (9 * WINDOW), [1] * (5 * WINDOW)
    for tokens, right in ((alike + other, 1.0), (alike + [0] * len(other), 1 / 2)):
        numpy.array(tokens, dtype="<i4").tofile(tmp_path / "tokens.ids")
        said = {"files": ["a", "b"], "ends": [9 * WINDOW, len(tokens)], "vocabulary": 2}
        (tmp_path / "files.json").write_text(json.dumps(said))
        assert unigram_accuracy(tmp_path, "held out") == pytest.approx(right)


@pytest.mark.full
@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_two_nodes_are_lost_and_the_bits_are_those_of_a_calm_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for name in ("stdlib_files.py", "stdlib_files.toml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    write(tmp_path / "stdlib-files", FILES)
    held_out = Windows(tmp_path / "stdlib-files", "held out")
    sets = (
        *("model.width=32", "train.steps=24", "train.batch=32", "train.microbatch=4"),
        *("eval.every_steps=8", f"eval.samples={held_out.samples}", f"chaos.kill={KILLS}"),
        *("cloud.boot_s=0.2", "cluster.sync=sparse-hybrid", *PACED),
    )
    overrides = [part for one in sets for part in ("--set", one)]
    done = bench.run("launch", "stdlib_files.toml", "--run", "files", *overrides)
    assert done.returncode == 0, done.stderr
    receipt = json.loads((bench.home / "files" / "receipt.json").read_text())
    assert len(receipt["preemptions"]) == 2
    strategy = json.loads((bench.home / "files" / "strategy.json").read_text())
    rules = strategy["placement"]["sync"]["rules"]
    assert [(rule["exchange"], rule["ship"]) for rule in rules] == [("rows", "rows")]
    verified = bench.json("verify", "files")
    assert (verified["equal"], verified["evaluations"]) == (True, 3)
    accuracy = bench.json("status", "files")["evaluation"]["metrics"]["accuracy"]
    labels = torch.bincount(held_out.labels)
    assert accuracy > labels.max().item() / held_out.samples, "better than the largest file always"
