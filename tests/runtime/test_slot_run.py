"""What a slot's run keeps of a step that was taken."""

import pytest
import torch

from tests.runtime.simulated import builder_of
from tests.runtime.test_executor import S0
from tests.runtime.test_interleavings import job


@pytest.mark.parametrize("keep", [False, True])
def test_a_tied_gradient_alone_does_not_keep_the_others_it_came_with(keep: bool) -> None:
    run = builder_of(job(stages=3, tied=True)).build(S0, owner=False)
    sizes = [parameter.numel() for parameter in run.stage.params]
    came = torch.randn(sum(sizes))
    shapes = [parameter.shape for parameter in run.stage.params]
    parts = zip(came.split(sizes), shapes, strict=True)
    run.exchange.gradient = [part.view(shape) for part, shape in parts]
    done = run.reduced(1.0, {}, keep=keep)
    assert len(done.gradient) == (len(sizes) if keep else 0)
    (tied,) = done.tied.values()
    assert torch.equal(tied, run.exchange.gradient[run.stage.names.index("0.tokens.weight")])
    assert (tied.untyped_storage().nbytes() == tied.nbytes) is not keep
