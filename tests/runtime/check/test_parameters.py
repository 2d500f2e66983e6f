"""What the preflight finds of each parameter: plain linear weights, what forbids factors of others,
and how many rows of a gradient have a bit set."""

from pathlib import Path

import pytest

from bamboo.data.dataset import load_data
from bamboo.models import build_model
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.runtime.check.whole import Whole
from tests.jobs import tiny_job

MODEL = """
import torch
import torch.nn.functional as F
from torch import nn
from bamboo.models import Workload, TiedParameter
from bamboo.models.gpt import token_loss

class Sub(nn.Linear):
    pass

class Uses(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("plain", "twice", "by_function", "both", "given", "changed"):
            setattr(self, name, nn.Linear(16, 16))
        self.sub = Sub(16, 16)
        self.still = nn.Linear(16, 16).requires_grad_(False)
    def forward(self, x):
        x = self.twice(self.twice(self.plain(x)))
        x = F.linear(x, self.by_function.weight, self.by_function.bias)
        x = self.both(x) + F.linear(x, self.both.weight)
        y = self.given(x)
        y.grad_fn.next_functions[0][0].register_prehook(lambda g: (g[0] * 1.25,))
        y = self.changed(y)
        gradient = torch.autograd.graph.get_gradient_edge(self.changed.weight).node
        gradient.register_prehook(lambda g: (g[0] * 1.25,))
        return self.still(self.sub(y))

def build(job):
    tied = TiedParameter(owner_layer=0, owner_name="weight", user_layer=3, user_name="weight")
    first, last = (lambda: nn.Embedding(256, 16)), (lambda: nn.Linear(16, 256))
    return Workload(
        layers=(first, Uses, lambda: nn.Linear(16, 16), last), loss=token_loss, tied=(tied,) * TIED
    )
"""
WHY_NOT = {
    "plain.weight": "",
    "plain.bias": "is no matrix: its shape is (16,)",
    "twice.weight": "is used twice in a microbatch",
    "by_function.weight": "is used by a function other than its torch.nn.Linear",
    "both.weight": "is used by a function other than its torch.nn.Linear",
    "given.weight": "",
    "changed.weight": "has a gradient of other bits than the product of its factors",
    "sub.weight": "is used by Sub, a subclass of torch.nn.Linear",
    "still.weight": "is not trained",
}


def found_in(folder: Path, *, tied: int, precision: str) -> dict[str, ParameterFacts]:
    (folder / "mine.py").write_text(MODEL.replace("TIED", str(tied)), encoding="utf-8")
    job = tiny_job(folder, ["model.model=mine.py:build", f"train.precision={precision}"])
    workload = build_model(job)
    whole = Whole(job, workload, load_data(job))
    for microbatch in range(2):
        whole.run(0, microbatch)
    return {one.name: one for layer in whole.parameters() for one in layer}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_forbids_factors_is_named_and_plain_weights_have_their_rows(
    tmp_path: Path, precision: str
) -> None:
    found = found_in(tmp_path, tied=0, precision=precision)
    assert {name: found[f"1.{name}"].why_not for name in WHY_NOT} == WHY_NOT
    plain = {name: one.rows_k for name, one in found.items() if not one.why_not}
    assert plain == dict.fromkeys(
        ("1.plain.weight", "1.given.weight", "2.weight", "3.weight"), 2 * 8
    )
    assert not found["1.still.weight"].trained
    table = found["0.weight"]
    assert table.why_not == "is used by Embedding"
    assert 0 < table.density <= 16 / 256 < table.step_density < 8 * 16 / 256
    assert found["2.weight"].density == found["2.weight"].step_density == 1.0


def test_tied_parameters_name_each_other_and_have_the_rows_of_both(tmp_path: Path) -> None:
    found = found_in(tmp_path, tied=1, precision="fp32")
    assert found["0.weight"].why_not == "is tied to 3.weight"
    assert found["3.weight"].why_not == "is tied to 0.weight"
    assert found["0.weight"].density == found["0.weight"].step_density == 1.0
