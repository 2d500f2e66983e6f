"""A run takes its code along: what happens to the user's files after the launch reaches no node, no
verify, and nobody who reads of the run or stops it."""

from pathlib import Path

import pytest

from testbed.waiting import wait_until
from tests.launches.test_launch import Bench, Launched

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

MODEL = """
import json
from pathlib import Path
from torch import nn
from parts import Part
CONF = json.loads((Path(__file__).parent / "conf.json").read_text())
def build(job):
    width = job.model.width
    layers = [lambda: Part(width, CONF["scale"])] * 4
    return [
        lambda: nn.Embedding(job.model.vocabulary, width),
        *layers,
        lambda: nn.Linear(width, job.model.vocabulary),
    ]
"""
PARTS = """
from torch import nn
class Part(nn.Module):
    def __init__(self, width, scale):
        super().__init__()
        self.linear, self.scale = nn.Linear(width, width), scale
    def forward(self, x):
        from activation import act
        return x + self.scale * act(self.linear(x))
"""
ACTIVATION = "from torch.nn.functional import relu as act\n"
KILLS = "[{step=25,stage=1,phase='forward'},{step=45,stage=1,phase='backward'}]"


@pytest.fixture
def own(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    files = {"m.py": MODEL, "parts.py": PARTS, "activation.py": ACTIVATION, "conf.json": ""}
    for name, text in files.items():
        (tmp_path / name).write_text(text or '{"scale": 0.5}', encoding="utf-8")
    return bench


def _steps(launched: Launched) -> int:
    return len((launched.folder / "metrics.jsonl").read_text().splitlines())


def test_edits_after_the_launch_reach_no_node_no_resume_and_no_verify(own: Bench) -> None:
    sets = (
        'model.model="m.py:build"',
        "cluster.stages=3",
        'cluster.redundancy="stash"',
        "cluster.standbys=1",
        "cluster.virtual_forward_ms=[3.0]",
        "cluster.virtual_backward_ms=[6.0]",
        f"chaos.kill={KILLS}",
    )
    with own.launched("edited", *sets) as launched:
        (own.folder / "m.py").rename(own.folder / "renamed.py")
        (own.folder / "parts.py").write_text(PARTS.replace("x + ", "x - "), encoding="utf-8")
        (own.folder / "activation.py").write_text(ACTIVATION.replace("relu", "gelu"))
        (own.folder / "conf.json").write_text('{"scale": 2.0}')
        assert _steps(launched) < 25, "the edits come before the kills"
        assert own.run("cost", "edited").returncode == 0
        wait_until(lambda: _steps(launched) > 55, what="steps after both kills", timeout_s=60.0)
        assert own.json("status", "edited")["step"] > 45
        assert own.run("stop", "edited").returncode == 0
        launched.wait()
    copy = own.home / "edited" / "code" / "0" / "m.py"
    copy.rename(copy.with_suffix(".away"))
    refused = own.run("resume", "edited")
    assert (refused.returncode, f"{copy} is missing" in refused.stderr) == (2, True), refused.stderr
    copy.with_suffix(".away").rename(copy)
    sets = ("--set", "budget.max_hours=0.0002", "--set", "budget.partial=true")
    resumed = own.run("resume", "edited", *sets)
    assert resumed.returncode == 4, resumed.stderr
    assert own.json("verify", "edited")["equal"] is True
    (own.folder / "text.txt").unlink()
    for verb in (["logs", "edited"], ["report", "edited"], ["verify", "edited", "--samples"]):
        done = own.run(*verb)
        assert done.returncode == 0, (verb, done.stderr)
    done = own.run("verify", "edited")
    assert (done.returncode, "text.txt" in done.stderr) == (2, True), "a calm run needs the data"
