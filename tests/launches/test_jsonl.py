"""The example on lines of JSON, padded: prepared, trained with two losses, and verified."""

import json
import shutil
from pathlib import Path

import pytest

from tests.launches.test_launch import PACED, Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "jsonl.toml"
KILLS = '[{step=8, stage=1, phase="backward", microbatch=1}, {step=14, stage=2, notice_s=1}]'


def test_documents_of_unequal_length_have_the_bits_of_a_calm_run(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    from examples.make_corpus import main

    bench = Bench(tmp_path)
    shutil.copy(EXAMPLE, tmp_path)
    main(tmp_path / "corpus", 12)
    sets = (
        *("data.documents='padded'", "model.width=32", "model.context=64", "train.steps=24"),
        *("train.batch=8", f"chaos.kill={KILLS}", "cloud.boot_s=0.2", *PACED),
    )
    overrides = [part for one in sets for part in ("--set", one)]
    refused = bench.run("launch", "jsonl.toml", "--run", "lines", *overrides)
    assert (refused.returncode, "say `bamboo prepare JOB`" in refused.stderr) == (2, True)
    assert bench.run("prepare", "jsonl.toml").returncode == 0
    done = bench.run("launch", "jsonl.toml", "--run", "lines", *overrides)
    assert done.returncode == 0, done.stderr
    folder = bench.home / "lines"
    receipt = json.loads((folder / "receipt.json").read_text())
    assert [lost["planned"] for lost in receipt["preemptions"]] == [False, True]
    assert receipt["last_loss"] < receipt["first_loss"]
    counts = {json.loads(x)["count"] for x in (folder / "metrics.jsonl").read_text().splitlines()}
    assert len(counts) > 1
    assert max(counts) <= 8 * 64
    (bench.folder / "corpus" / "corpus.jsonl").unlink()  # a run has its tokens
    assert bench.json("verify", "lines")["equal"] is True
    assert bench.json("verify", "lines", "--samples")["equal"] is True
    (bench.folder / "corpus" / "tokenizer.json").unlink()  # and its tokenizer
    (bench.folder / "held.jsonl").write_text('{"text": "def held(out):\\n    return out"}\n' * 20)
    held = bench.json("eval", "lines", "--source", "held.jsonl")
    assert (held["samples"], held["unit"]) == (20, "token")
    assert 0 < held["loss"] < receipt["first_loss"]
    said = bench.json("sample", "lines", "--prompt", "def held", "--length", "8")
    assert said["text"].startswith("def held")
    assert len(said["tokens"]) > said["prompt_tokens"]
    refused = bench.run("sample", "lines", "--prompt", "def", "--tokenizer", "job.toml")
    assert (refused.returncode, "keeps its own tokenizer" in refused.stderr) == (2, True)
