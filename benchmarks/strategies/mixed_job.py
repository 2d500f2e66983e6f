"""The mixed job as a user runs it, under `tree` and under `auto`: bits, bytes and accuracy.

    python -m benchmarks.strategies.mixed_job [--steps 300]

`examples/stdlib_files.toml` is launched twice by the command line, with real processes and a node
lost without and one with notice: under `tree`, and with the strategy that `bamboo plan` makes for
links of `sent_bytes.GBPS` by `auto`. Then `bamboo verify` trains the second again calmly. Bytes are
those that `bamboo explain` says of each run, which `benchmarks.strategies.sent_bytes` counts.
Accuracy is that of the final state on windows that nothing was chosen by, beside that of a unigram
model on them.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy

from bamboo import api
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.options import at_least, parsed
from benchmarks.measuring.report import command_of, write_result
from benchmarks.strategies.sent_bytes import FORWARD_MS, GBPS
from examples import stdlib_files

EXAMPLE = Path(stdlib_files.__file__)
FEWER = 5.0
LEAST_STEPS = 20
LIMIT_S = 3600.0


def sets(*keys: str) -> list[str]:
    return [word for key in keys for word in ("--set", key)]


def bamboo(*words: str) -> str:
    """What a command prints. Raises CalledProcessError with what it said."""
    command = [sys.executable, "-m", "cli.main", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S)
    return done.stdout


def play(folder: Path, steps: int) -> dict[str, Any]:
    """Both runs, compared; `folder` gets the job and its tokens."""
    job = folder / "stdlib_files.toml"
    for file in (EXAMPLE, EXAMPLE.with_suffix(".toml")):
        shutil.copy(file, folder)
    tokens = folder / "stdlib-files"
    stdlib_files.write(tokens, 10_000)
    lost = (
        f'chaos.kill=[{{step={steps // 5}, stage=1, phase="backward", microbatch=1}}, '
        f"{{step={steps // 2}, stage=0, notice_s=5}}]"
    )
    played = sets(f"train.steps={steps}", f"eval.every_steps={steps // 3}", lost)
    links = sets(
        *("cluster.sync=auto", "cluster.device=virtual", f"cluster.virtual_link_gbps={GBPS}"),
        f"cluster.virtual_forward_ms=[{FORWARD_MS}]",
        f"cluster.virtual_backward_ms=[{2 * FORWARD_MS}]",
    )
    auto = folder / "auto.json"
    auto.write_text(bamboo("plan", str(job), *played, *links, "--json"))
    ways = {"tree": [], "auto": ["--strategy", str(auto)]}
    found = {}
    for name, more in ways.items():
        bamboo("launch", str(job), "--run", name, *played, *more)
        found[name] = seen(name)
        print(f"{name}: {found[name]}", flush=True)
    states = [api.open_run(name).final_state() for name in ways]
    differ = [n for n in states[0] if not numpy.array_equal(states[0][n], states[1][n])]
    verified = json.loads(bamboo("verify", "auto", "--json"))
    unigram = stdlib_files.unigram_accuracy(tokens, "unseen")
    print(f"differ: {differ}; verify: {verified['equal']}; unigram: {unigram:.4f}")
    return {
        "runs": found,
        "tensors": len(states[0]),
        "differ": differ,
        "verified": verified["equal"],
        "unigram": unigram,
    }


def seen(name: str) -> dict[str, Any]:
    """Of one run: MB a step of all nodes, losses and accuracy."""
    run = api.open_run(name)
    totals, receipt = run.explain().totals, run.receipt()
    assert receipt is not None, "the launch has ended"
    body = run.evaluate(f"{EXAMPLE}:unseen")
    return {
        "exchange_mb": totals.exchange_bytes / 1e6,
        "ship_mb": totals.ship_bytes / 1e6,
        "preemptions": len(receipt["preemptions"]),
        "held_out": run.evaluations()[-1]["metrics"]["accuracy"],
        "unseen": body["metrics"]["accuracy"],
        "loss": body["loss"],
    }


def claims(body: dict[str, Any]) -> list[Claim]:
    """On both runs."""
    tree, auto = (
        body["runs"][name]["exchange_mb"] + body["runs"][name]["ship_mb"]
        for name in ("tree", "auto")
    )
    fewer = "bytes of exchange and ship, tree over auto"
    apart = len(body["differ"]) + (not body["verified"])
    return [
        Claim(about=fewer, found=tree / auto, limit=FEWER, at_most=False),
        Claim(about="tensors whose bits differ, and calm runs", found=apart, limit=0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=at_least(LEAST_STEPS), default=300)
    arguments = parsed(parser)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BAMBOO_HOME"] = str(Path(folder) / "home")
        body = play(Path(folder), arguments.steps)
    made = claims(body)
    print("\n".join(["", *(claim.line() for claim in made)]))
    said = {"claims": [asdict(claim) for claim in made], **body}
    command = command_of("strategies.mixed_job", arguments)
    print(f"written: {write_result('mixed-job', command, said).name}")


if __name__ == "__main__":
    main()
