"""What a loss must be: one finite number, the sum over the tokens, of its arguments alone."""

from pathlib import Path

import pytest

from bamboo.runtime.check.alone import Alone
from tests.runtime.check.odd_models import assert_refused, job_of

LOSS = {
    "a mean": (
        "F.cross_entropy(o.flatten(0, -2), t.flatten())",
        "it is no sum over what is counted; sum it, as with reduction='sum' for 'mean'",
    ),
    "a mean over the sequences": (
        "token_loss(o, t) / t.shape[0]",
        "it is no sum over what is counted",
    ),
    "the largest": (
        "F.cross_entropy(o.flatten(0, -2), t.flatten(), reduction='none').max()",
        "it is no sum over what is counted",
    ),
    "one that draws": ("token_loss(o * torch.rand(()), t)", "the loss draws, or depends on"),
    "one that draws by itself": (
        "token_loss(o * random.random(), t)",
        "the loss draws, or depends on how often",
    ),
    "a number": ("token_loss(o, t).item()", "which is no tensor; return a torch.float32 tensor"),
    "nothing": ("None", "the loss at the start is None, which is no tensor; return"),
    "double precision": ("token_loss(o, t).double()", "of shape () and type torch.float64; return"),
    "one number a token": (
        "F.cross_entropy(o.flatten(0, -2), t.flatten(), reduction='none')",
        "the loss at the start is a tensor of shape (16,) and type torch.float32; return",
    ),
    "not finite": ("token_loss(o, t) / 0", "the loss at the start is inf"),
    "a gradient that is not": (
        "token_loss(o, t) + (o * 0).sqrt().sum() * 0",
        "with a gradient that is not finite",
    ),
    "without the output": ("t.float().sum()", "the loss does not depend on the output"),
    "with a weight of its own": (
        "token_loss(o, t) * W.sum()",
        "the loss trains with a tensor of shape (1,) that is no layer's parameter",
    ),
    "what fails": ("token_loss(o[..., :9], t)", "that the loss cannot take: IndexError"),
    "a token too few": (
        "token_loss(o, t) * [1.0][int(t.min() > 119)]",
        "with which the loss cannot take 122, the largest token of the data",
    ),
}


@pytest.mark.parametrize(("loss", "message"), LOSS.values(), ids=LOSS)
def test_what_is_no_sum_of_losses_is_refused(
    tmp_path: Path, alone: Alone, loss: str, message: str
) -> None:
    source = (
        f"W = torch.ones(1, requires_grad=True)\ndef loss(o, t): return {loss}\n"
        "def build(job): return Workload(layers=(Embed, Good, Head), loss=loss)\n"
    )
    assert_refused(job_of(tmp_path, source), alone, message)
