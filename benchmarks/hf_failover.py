"""A Hugging Face model beside the built-in GPT: the pause of a failover, and the step that is hit.

    python -m benchmarks.hf_failover [--rounds 2] [--kills 8]

The stages and losses of `benchmarks.hit_step`, in mode `stash`: the virtual device gives both
models the same times, so what differs is what a node does beside its layers. The Llama has as many
blocks, of the same width. The models take turns; in a round both lose the same stages at the same
shares of a step.

A pause counts from SIGKILL, and from the moment at which a survivor sees that a connection ended.
In between the kernel frees the process's memory before it closes its sockets, which takes longer
for one that has imported transformers: 31 to 43 ms with 427 MB, 14 to 20 ms with 249 MB, each the
median of 20 kills of an idle fork (2026-11-28). An instance that is taken away has no such end.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from bamboo.config.tree import HF, JobConfig, ModelConfig
from benchmarks.failover import failover_ours as ours
from benchmarks.failover.failover_oracle import Device, oracle
from benchmarks.hit_step import FORWARD_S, losses, played
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.options import at_least, parsed
from benchmarks.measuring.report import (
    command_of,
    in_turn,
    median_with_interval,
    ratio_of_means,
    write_result,
)
from testbed.forker import close_shared_forker

MODE = "stash"
PARTS = ("seen", "decided", "promoted", "first_operation")
LIMIT = 1.1
"""Of the Llama's over the GPT's, at most."""


def jobs(folder: Path) -> Mapping[str, JobConfig]:
    """Name -> job. The Llama's config.json is written into `folder`."""
    gpt = ours.job(MODE, FORWARD_S)
    config = {
        "model_type": "llama",
        "vocab_size": gpt.model.vocabulary,
        "hidden_size": gpt.model.width,
        "intermediate_size": 2 * gpt.model.width,
        "num_hidden_layers": gpt.model.layers,
        "num_attention_heads": gpt.model.heads,
        "max_position_embeddings": gpt.model.context,
    }
    (folder / "config.json").write_text(json.dumps(config))
    llama = ModelConfig(model=f"{HF}{folder}", context=gpt.model.context)
    return {"gpt": gpt, "llama": replace(gpt, model=llama)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=at_least(1), default=2)
    parser.add_argument("--kills", type=at_least(1), default=8, help="of each model in a round")
    arguments = parsed(parser)
    backward_s = tuple(2 * x for x in FORWARD_S)
    device = Device(forward_s=FORWARD_S, backward_s=backward_s, microbatches=ours.BATCH, mode=MODE)
    step_s = oracle(device).step_s
    rows: dict[str, dict[str, list[float]]] = {"pause": {}, "pause from seen": {}, "hit step": {}}
    failovers: dict[str, list[Mapping[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="bamboo-hf-") as folder:
        models = jobs(Path(folder))
        try:
            for number in range(arguments.rounds):
                todo = losses(arguments.kills, seed=number)
                for name in in_turn(tuple(models), number):
                    found = played(models[name], todo, step_s)
                    if found.difference:
                        raise RuntimeError(f"{name}: not the calm run's bits: {found.difference}")
                    rows["pause"].setdefault(name, []).extend(found.pause_s)
                    failovers.setdefault(name, []).extend(found.failovers)
                    since = [x["first_operation"] - x["seen"] for x in found.failovers]
                    rows["pause from seen"].setdefault(name, []).extend(x / 1e3 for x in since)
                    hit = [found.calm_s + extra for extra in found.extra_s]
                    rows["hit step"].setdefault(name, []).extend(hit)
                    print(f"round {number}, {name}: calm {1e3 * found.calm_s:.0f} ms", flush=True)
        finally:
            close_shared_forker()
    for name, found in failovers.items():
        parts = {part: median(one[part] for one in found) for part in PARTS}
        said = ", ".join(f"{part.replace('_', ' ')} {ms:.1f}" for part, ms in parts.items())
        print(f"{name:6} median ms after a kill: {said}")
    claims = []
    for what, of_models in rows.items():
        for name, values in of_models.items():
            middle, low, high = (1e3 * x for x in median_with_interval(values))
            print(f"{what:15} {name:6} median {middle:7.1f} ms, 95 % {low:.1f} - {high:.1f}")
        ratio, low, high = ratio_of_means(of_models["llama"], of_models["gpt"])
        about = f"{what} of the Llama over the GPT's, means over all losses"
        claims.append(Claim(about=about, found=ratio, limit=LIMIT, interval=(low, high)))
        print(claims[-1].line())
    body = {"claims": [asdict(claim) for claim in claims], "seconds": rows}
    command = command_of("hf_failover", arguments)
    print(f"written: {write_result('hf-failover', command, body).name}")


if __name__ == "__main__":
    main()
