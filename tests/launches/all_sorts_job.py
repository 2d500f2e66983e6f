"""The example with tensors of all sorts, trained by an optimizer and a schedule of one's own, with
more that is frozen."""

import json
import shutil
from pathlib import Path

from tests.launches.test_launch import Bench

EXAMPLE = Path(__file__).parents[2] / "examples" / "all_sorts.py"
JOB = """[model]
model = "all_sorts.py:build"
[train]
steps = 40
batch = 8
microbatch = 2
optimizer = "own_steps.py:make"
schedule = "own_steps.py:schedule"
[[train.group]]
match = "[23].keys.*"
frozen = true
[cluster]
stages = 4
redundancy = "eager"
"""
OWN_STEPS = '''
class Signs:
    """Steps of one length, by the sign of a mean of gradients."""

    def state(self, shape):
        return {"mean": shape}

    def step(self, params, grads, states, *, lr, weight_decay, step):
        for param, grad, state in zip(params, grads, states):
            state["mean"].lerp_(grad, 0.1)
            param.add_(state["mean"].sign(), alpha=-lr)


def make(train):
    return Signs()


def schedule(step, steps, train):
    return train.learning_rate / (1 + step) ** 0.5
'''
CONSTANT = {0: {"places.weight"}, 2: {"keys.weight", "keys.bias"}, 3: {"keys.weight", "keys.bias"}}
"""What is frozen, by layer."""


def write_job(bench: Bench) -> None:
    """Put this job in place of the one of the bench."""
    shutil.copy(EXAMPLE, bench.folder)
    (bench.folder / "own_steps.py").write_text(OWN_STEPS, encoding="utf-8")
    (bench.folder / "job.toml").write_text(JOB, encoding="utf-8")


def constant_objects(checkpoints: Path) -> dict[str, int]:
    """What is stored of all that is constant: name -> the inode, another one if it was written
    again. Each complete checkpoint names all of it, and its other shards have nothing of it."""
    expected = {f"param/{layer}.{name}" for layer, own in CONSTANT.items() for name in own}
    manifests = list(checkpoints.glob("step-*/manifest.json"))
    assert manifests
    for manifest in manifests:
        shards = json.loads(manifest.read_text())["shards"]
        found = {shard["name"]: set(shard["tensors"]) for shard in shards}
        of_steps = set().union(*(t for n, t in found.items() if n.startswith("step-")))
        constant = [t for n, t in found.items() if n.startswith("constant/")]
        assert len(constant) == len(CONSTANT)
        assert set().union(*constant) == expected
        assert not expected & of_steps
    objects = {path.name: path.stat().st_ino for path in (checkpoints / "constant").iterdir()}
    assert len(objects) == len(CONSTANT)
    return objects
