"""What a layer must be and keep to, wherever it runs, and what no code of the user's may set."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bamboo.runtime.check.alone import Alone
from bamboo.runtime.check.one_layer import remedy_of
from tests.runtime.check.odd_models import assert_refused, in_forward, in_init, job_of, odd

LAYER = {
    "a sparse gradient": (
        "def build(job): return [lambda: nn.Embedding(256, 16, sparse=True), Good, head]",
        "layer 0 (Embedding) gives a sparse gradient of 'weight', which cannot be added up and "
        "sent; take a dense one, as nn.Embedding(..., sparse=False)",
    ),
    "max_norm": (
        "def build(job): return [lambda: nn.Embedding(256, 16, max_norm=1.0), Good, head]",
        "layer 0 (Embedding) changes its parameter 'weight' while it runs (max_norm does)",
    ),
    "complex numbers": (
        in_init("self.c = nn.Parameter(torch.zeros(3, dtype=torch.complex64))"),
        "has a trained parameter 'c' that is not torch.float32 on the CPU (torch.complex64)",
    ),
    "half precision": (in_init("self.half()"), "(torch.float16)"),
    "bfloat16": (in_init("self.bfloat16()"), "(torch.bfloat16)"),
    "a parameter without memory": (in_init("self.to('meta')"), "(on meta)"),
    "momentum of all steps": (
        in_init("self.norm = nn.BatchNorm1d(16, momentum=None)"),
        "layer 2 (Odd) has a batch norm 'norm' with momentum=None, whose running statistics weigh "
        "all steps alike; give it a momentum, such as 0.1",
    ),
    "statistics of all nodes": (
        in_init("self.norm = nn.SyncBatchNorm(16)"),
        "layer 2 (Odd) has a SyncBatchNorm 'norm', whose statistics would depend on which nodes",
    ),
    "batch norm in bfloat16": (
        in_init("self.norm = nn.BatchNorm1d(16, affine=False).bfloat16()"),
        "layer 2 (Odd) has a batch norm 'norm' with running statistics in torch.bfloat16; keep",
    ),
    "a batch norm that is not run": (
        in_init("self.norm = nn.BatchNorm1d(16, affine=False)"),
        "the batch norm 2.norm ran 0 times in the forward of one microbatch",
    ),
    "a buffer that counts": (
        odd(
            "def __init__(self):\n"
            "    super().__init__()\n"
            "    self.register_buffer('seen', torch.zeros(()))\n"
            "def forward(self, x):\n"
            "    self.seen += 1\n"
            "    return self.linear(x)\n"
        ),
        "layer 2 (Odd) changes its buffer 'seen' while it runs; keep nothing from call to call",
    ),
    "all frozen": (
        "def build(job):\n"
        "    layers = [nn.Embedding(256, 16), Good(), head()]\n"
        "    return [layer.requires_grad_(False) for layer in layers]\n",
        "all parameters of the model are frozen, so nothing would be trained; leave requires_grad",
    ),
    "lazy": (in_init("self.lazy = nn.LazyLinear(3)"), "'lazy.weight' whose shape follows from"),
    "an output of short numbers": (
        odd("def forward(self, x): return self.linear(x), x.short()\n"),
        "layer 2 (Odd) returns torch.int16, which is not sent between nodes; return one of",
    ),
    "a complex output": (
        odd("def forward(self, x): return torch.complex(self.linear(x), x)\n"),
        "layer 2 (Odd) returns torch.complex64, which is not sent between nodes",
    ),
    "clamping its own weights": (
        in_forward("self.linear.weight.data.clamp_(-0.01, 0.01)"),
        "layer 2 (Odd) changes its parameter 'linear.weight' while it runs",
    ),
    "what it writes for another microbatch": (
        in_forward(
            "self.kept = getattr(self, 'kept', torch.zeros(x.shape)); "
            "self.kept.data.copy_(x.detach() > 0); x = x * self.kept"
        ),
        "layer 2 (Odd) gives another gradient of 'its input' when it is built alone",
    ),
    "a new parameter in forward": (
        in_forward("self.linear.bias = nn.Parameter(torch.zeros(16))"),
        "layer 2 (Odd) makes, replaces or freezes its parameter 'linear.bias' while it runs",
    ),
    "freezing in forward": (
        in_forward("self.linear.bias.requires_grad_(False)"),
        "layer 2 (Odd) makes, replaces or freezes its parameter 'linear.bias' while it runs",
    ),
    "a buffer made in forward": (
        in_forward("self.register_buffer('late', x.detach())"),
        "layer 2 (Odd) changes its buffer 'late' while it runs",
    ),
    "eval in forward": (in_forward("self.eval()"), "layer 2 (Odd) changes to eval mode"),
    "eval of a part": (
        in_forward("self.linear.eval()"),
        "eval mode while it runs (its part 'linear')",
    ),
    "a hook that changes its gradient's layer": (
        in_forward("x.register_hook(lambda g: [g, self.linear.bias.data.add_(1)][0])"),
        "layer 2 (Odd) changes its parameter 'linear.bias' while it runs",
    ),
    "in place as a layer of its own": (
        "def build(job): return [embed, Good, lambda: nn.ReLU(inplace=True), head]",
        "layer 2 (ReLU) writes into its input; compute out of place, as with inplace=False",
    ),
    "more than a GPU has": (
        in_forward("raise torch.OutOfMemoryError('Tried to allocate 2.00 GiB')"),
        "layer 2 (Odd) fails in its forward: OutOfMemoryError: Tried to allocate 2.00 GiB, at",
    ),
    "no room on the GPU for its parameters": (
        in_init(
            "self.to = lambda place: (_ for _ in ()).throw("
            "torch.OutOfMemoryError('Tried to allocate 3.00 GiB'))"
        ),
        "layer 2 (Odd) does not fit beside the layers before it: OutOfMemoryError: Tried to "
        "allocate 3.00 GiB; take a smaller train.microbatch or layer, or a machine with more",
    ),
    "a copy that cannot be made": (
        "class Odd(Good):\n"
        "    def __init__(self):\n        super().__init__(); self.twice = self.linear.weight * 2\n"
        "    def forward(self, x): return super().forward(x) * self.twice.sum()\n"
        "def build(job): return [embed, Odd(), head]",
        "list a function that makes the layer in the place of the layer",
    ),
    "another layer at each call": (
        "SIZES = [16, 8]\n"
        "class Odd(Good):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.more = nn.Parameter(torch.ones(SIZES[0]))\n"
        "        SIZES.reverse()\n"
        "    def forward(self, x): return super().forward(x) * self.more.sum()\n"
        "def build(job): return [embed, Odd, head]",
        "has other initial values of 'more' each time that it is built",
    ),
    "a token too few": (
        "class Few(nn.Module):\n"
        "    def __init__(self):\n        super().__init__(); self.e = nn.Embedding(256, 16)\n"
        "    def forward(self, x):\n"
        "        if int(x.min()) > 119: raise IndexError(int(x.min()))\n"
        "        return self.e(x)\n"
        "def build(job): return [Few, Good, head]",
        "layer 0 (Few) cannot take 122, the largest token of the data: IndexError: 122; make it "
        "for every token",
    ),
}  # fmt: skip
GLOBAL = {
    "the default dtype, at import": (
        "torch.set_default_dtype(torch.float64)\ndef build(job): return [embed, head]",
        "mine.py:build changes torch's default dtype for the whole process, from torch.float32 to "
        "torch.float64; give each tensor its dtype",
    ),
    "threads, at import": (
        "torch.set_num_threads(3)\ndef build(job): return [embed, head]",
        "torch's number of threads for the whole process, from 1 to 3; set cluster.threads",
    ),
    "the deterministic mode": (
        "torch.use_deterministic_algorithms(False)\ndef build(job): return [embed, head]",
        "torch's deterministic mode",
    ),
    "gradients, by a layer": (
        in_forward("torch.set_grad_enabled(False)"),
        "layer 2 (Odd) changes whether torch records gradients for the whole process",
    ),
    "the default dtype, by a layer": (
        in_init("torch.set_default_dtype(torch.float64)"),
        "layer 2 (Odd) changes torch's default dtype for the whole process",
    ),
    "denormal numbers, by a layer": (
        in_forward("torch.set_flush_denormal(True)"),
        "layer 2 (Odd) changes how torch treats denormal numbers",
    ),
    "kernels that are chosen by their times": (
        "torch.backends.cudnn.benchmark = True\ndef build(job): return [embed, head]",
        "mine.py:build changes how cuDNN's kernels are chosen for the whole process",
    ),
    "matrix kernels, by a layer": (
        in_forward("torch.set_float32_matmul_precision('medium')"),
        "layer 2 (Odd) changes torch's matrix kernels",
    ),
    "matrix kernels, one by one": (
        in_forward("torch.backends.mkldnn.matmul.fp32_precision = 'bf16'"),
        "layer 2 (Odd) changes torch's matrix kernels",
    ),
    "threads, by the loss": (
        "def loss(o, t):\n    torch.set_num_threads(3); return token_loss(o, t)\n"
        "def build(job): return Workload(layers=(Embed, Head), loss=loss)",
        "the loss changes torch's number of threads",
    ),
}


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    """Some of these set what holds for the process."""
    threads = torch.get_num_threads()
    yield
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_flush_denormal(False)
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = False


@pytest.mark.parametrize(
    ("source", "message"),
    [pytest.param(*case, id=name) for cases in (LAYER, GLOBAL) for name, case in cases.items()],
)
def test_a_layer_that_breaks_its_contract_is_refused(
    tmp_path: Path, alone: Alone, source: str, message: str
) -> None:
    assert_refused(job_of(tmp_path, source), alone, message)


def test_a_number_that_bfloat16_does_not_hold_has_its_remedy() -> None:
    """As a trace has it of a mask by `torch.finfo(x.dtype).min`."""
    scores, mask = torch.zeros(2, dtype=torch.bfloat16), torch.tensor([True, False])
    with pytest.raises(RuntimeError) as found:
        scores.masked_fill(mask, torch.finfo(torch.float32).min)
    assert "as -1e4 for a mask" in remedy_of(found.value)
