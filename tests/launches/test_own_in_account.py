"""Code of one's own on instances: it is brought by its digest, with the wheels that it needs, and
the bits are those of a calm run."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo.ids import InstanceId
from testbed.waiting import wait_until
from tests.jobs import SMALL
from tests.launches.own_account import JOB, LONGEST_S, Account, an_account
from tests.models.hf.families import saved_folder
from tests.wheels import build_wheel, unpacked

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

MODEL = """
import json
from pathlib import Path
from torch import nn
from parts import Part
SCALE = json.loads((Path(__file__).parent / "conf.json").read_text())["scale"]
def build(job):
    width, words = job.model.width, job.model.vocabulary
    part = lambda: Part(width, SCALE)
    return [lambda: nn.Embedding(words, width), part, part, lambda: nn.Linear(width, words)]
"""
PARTS = """
from torch import nn
from bands import banded
class Part(nn.Module):
    def __init__(self, width, scale):
        super().__init__()
        self.linear, self.scale = nn.Linear(width, width), scale
    def forward(self, x):
        return x + self.scale * banded(self.linear(x))
"""
HF = """
[model]
model = "hf:model"
context = 16
[data]
source = "path"
path = "text.txt"
"""
BANDS = "def banded(x):\n    return x.tanh()\n"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SETS = (
    'model.requirements="needs.txt"',
    'model.wheelhouse="house"',
    f'cloud.python="{PYTHON}"',
    *("train.steps=120", "cluster.virtual_forward_ms=[10.0]"),
)


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    yield from an_account(tmp_path)


def with_own_model(account: Account) -> None:
    """A model in two files that reads a third and imports a package, which is installed here in a
    folder that no instance has."""
    folder = account.folder
    for name, text in {"m.py": MODEL, "parts.py": PARTS, "conf.json": '{"scale": 0.5}'}.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "needs.txt").write_text("bands==1.0\n")
    wheel = build_wheel(folder / "house", "bands", source=BANDS)
    base = folder / "base"
    installed = unpacked(wheel, base / "lib" / f"python{PYTHON}" / "site-packages")
    account.environment["PYTHONUSERBASE"] = str(base)
    account.environment["PYTHONPATH"] += f":{installed}"


def preempted_twice(account: Account, run: str, *sets: str) -> None:
    """Launch a job; one of its instances is taken without a notice, then one with a notice."""
    overrides = [part for one in sets for part in ("--set", one)]
    process = account.begin("launch", "job.toml", "--run", run, *overrides)
    wait_until(lambda: account.under_way(process, run), what="some steps", timeout_s=100.0)
    first = account.live()[0]
    account.cloud.control.preempt(InstanceId(first), notice_s=0.0, cause="test")
    decided = account.home / run / "events" / "launcher.jsonl"
    with_two = re.compile(r'"kind":"(LayoutBuilt|ReplicaJoined)"')

    def at_work() -> bool:
        assert process.poll() is None, f"{process.communicate()[0]}\n{decided.read_text()}"
        return with_two.search(decided.read_text()) is not None

    wait_until(at_work, what="two nodes at work again", timeout_s=60.0)
    account.cloud.control.preempt(InstanceId(account.live()[0]), notice_s=5.0, cause="test")
    said, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, said
    receipt = json.loads((account.home / run / "receipt.json").read_text())
    assert receipt["outcome"] == "done"
    assert [lost["planned"] for lost in receipt["preemptions"]] == [False, True]
    account.nothing_left(run)


def test_a_model_of_ones_own_with_what_it_needs(account: Account) -> None:
    with_own_model(account)
    preempted_twice(account, "own", 'model.model="m.py:build"', *SETS)
    strategy = json.loads((account.home / "own" / "strategy.json").read_text())
    assert strategy["semantics"]["model"]["code"]["requires"]["bands"] == "1.0"
    for name in ("m.py", "parts.py", "conf.json", "needs.txt", "house"):
        path = account.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert '"equal": true' in account.run("verify", "own", "--json")


@pytest.mark.full
@pytest.mark.timeout(500)
def test_a_hugging_face_model_with_its_weights(account: Account) -> None:
    saved_folder(account.folder / "model", "llama")
    own = JOB.replace(SMALL, HF)
    (account.folder / "job.toml").write_text(own)
    preempted_twice(account, "hf", "train.steps=120", "cluster.virtual_forward_ms=[10.0]")
    shutil.rmtree(account.folder / "model")
    assert '"equal": true' in account.run("verify", "hf", "--json")
    assert '"equal": true' in account.run("verify", "hf", "--rent", "--yes", "--json")


@pytest.mark.full
@pytest.mark.timeout(500)
def test_a_rented_machine_gets_the_code_and_what_a_run_begins_with(account: Account) -> None:
    with_own_model(account)
    sets = ('model.model="m.py:build"', *SETS, "train.steps=20")
    account.run("launch", "job.toml", "--run", "own", *(x for one in sets for x in ("--set", one)))
    assert '"equal": true' in account.run("verify", "own", "--rent", "--yes", "--json")
    sets = (*sets, "train.steps=8", "train.init=run:own", "train.seed=5")
    account.run("launch", "job.toml", "--run", "on", *(x for one in sets for x in ("--set", one)))
    account.run("rm", "own", "--yes")
    assert '"equal": true' in account.run("verify", "on", "--json")
    assert '"equal": true' in account.run("verify", "on", "--rent", "--yes", "--json")


TRACED = """
from torch import nn
from bands import banded
class Net(nn.Module):
    def __init__(self, job):
        super().__init__()
        width, words = job.model.width, job.model.vocabulary
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.parts = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
    def forward(self, tokens):
        x = self.embed(tokens)
        for part in self.parts:
            x = x + banded(part(x))
        return self.head(x)
def build(job):
    return lambda: Net(job)
"""


@pytest.mark.full
def test_a_traced_module(account: Account) -> None:
    with_own_model(account)
    (account.folder / "m.py").write_text(TRACED)
    preempted_twice(account, "traced", 'model.model="m.py:build"', 'model.split="trace"', *SETS)
    (account.folder / "m.py").unlink()
    assert '"equal": true' in account.run("verify", "traced", "--json")
