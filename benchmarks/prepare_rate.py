"""How fast `bamboo prepare` makes tokens of lines of JSON, beside the library tokenizers alone.

    python -m benchmarks.prepare_rate [--rounds 3] [--mb 200]

The text is the standard library of Python over and over, each time with other numbers in front, so
that no document is like another; the tokenizer is the one of `examples/jsonl.toml`. Alone, the
library is given the texts in batches of 1,000, as its own pages do, and its ids are counted. Ours
also reads the lines, hashes what it read and what it wrote, and writes the token file. Both are
processes of their own, in turn.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.measuring.claim import Claim
from benchmarks.measuring.options import at_least, parsed
from benchmarks.measuring.report import (
    command_of,
    in_turn,
    median_with_interval,
    paired_ratios,
    write_result,
)
from examples.make_corpus import main as make_corpus

LIMIT = 2.0
BATCH = 1000
STUCK_S = 3600.0
JOB = """
[model]
layers = 2
width = 64
heads = 2
context = 64
[data]
source = "jsonl"
path = "corpus.jsonl"
tokenizer = "tokenizer.json"
"""
ALONE, OURS = "tokenizers alone", "bamboo prepare"


def written(folder: Path, size_bytes: int) -> None:
    """The tokenizer, and lines of JSON of so many bytes."""
    make_corpus(folder, 1000)
    path = folder / "corpus.jsonl"
    texts = [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]
    size, number = 0, 0
    with path.open("w", encoding="utf-8") as file:
        while size < size_bytes:
            text = f"# {number * 7919 % 1_000_003}\n{texts[number % len(texts)]}"
            size += file.write(json.dumps({"text": text}) + "\n")
            number += 1
    (folder / "job.toml").write_text(JOB)


def alone(folder: Path) -> None:
    """What the first process does: count the ids of all documents."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = 0
    with (folder / "corpus.jsonl").open(encoding="utf-8") as file:
        for batch in _batches(json.loads(line)["text"] for line in file):
            found = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            tokens += sum(len(one.ids) for one in found)
    print(tokens)


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == BATCH:
            yield batch
            batch = []
    yield batch


def once(way: str, folder: Path) -> float:
    """Seconds of one process. Raises RuntimeError when it fails."""
    with tempfile.TemporaryDirectory(dir=folder) as home:
        words = (
            ["-m", "benchmarks.prepare_rate", "--alone", str(folder)]
            if way == ALONE
            else ["-m", "cli.main", "prepare", str(folder / "job.toml")]
        )
        begin_s = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, "BAMBOO_HOME": home},
            capture_output=True,
            text=True,
            check=False,
            timeout=STUCK_S,
        )
        if done.returncode:
            raise RuntimeError(f"{way} ended with {done.returncode}: {done.stderr.strip()}")
        return time.perf_counter() - begin_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument("--mb", type=at_least(1), default=200)
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    arguments = parsed(parser)
    if arguments.alone is not None:
        alone(arguments.alone)
        return 0
    taken: dict[str, list[float]] = {ALONE: [], OURS: []}
    with tempfile.TemporaryDirectory(prefix="bt-") as name:
        folder = Path(name)
        written(folder, arguments.mb * 1_000_000)
        for number in range(arguments.rounds):
            for way in in_turn(list(taken), number):
                taken[way].append(once(way, folder))
                print(f"round {number}: {way:18} {taken[way][-1]:7.1f} s", flush=True)
    found, low, high = median_with_interval(paired_ratios(taken[OURS], taken[ALONE]))
    claim = Claim(
        about="bamboo prepare over tokenizers alone, seconds",
        found=found,
        limit=LIMIT,
        interval=(low, high),
    )
    print(claim.line())
    body = {
        "mb": arguments.mb,
        "seconds": taken,
        "median_s": {way: statistics.median(values) for way, values in taken.items()},
        "claims": [asdict(claim)],
    }
    path = write_result("prepare-rate", command_of("prepare_rate", arguments), body)
    print(f"written: {path.name}")
    return 0 if claim.holds else 1


if __name__ == "__main__":
    sys.exit(main())
