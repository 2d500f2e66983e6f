"""What a stage that is built alone makes of a model, beside the whole: each kind of difference is
refused before anything is paid, with the layer and the remedy, in one line."""

from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from bamboo.config.load import job_to_json
from bamboo.errors import InputError
from bamboo.runtime.check import alone as checking
from bamboo.runtime.check.alone import Alone
from bamboo.runtime.check.one_layer import remedy_of
from tests.runtime.check.odd_models import LIST, assert_refused, in_forward, in_init, job_of, odd

ALONE = "when it is built alone in another process, as a node that joins does it; draw"
SHARED = {
    "a layer of two functions": (
        "S = nn.Linear(16, 16)\ndef build(job): return [embed, lambda: S, lambda: S, head]",
        "layer 2 (Linear) shares its parameter 'weight' with layer 1 (Linear)",
    ),
    "a layer within two layers": (
        "S = nn.Linear(16, 16)\n"
        "class Odd(Good):\n"
        "    def __init__(self):\n        super().__init__(); self.linear = S\n"
        "def build(job): return [embed, Odd, Good, Odd, head]",
        "layer 3 (Odd) shares its parameter 'linear.weight' with layer 1 (Odd)",
    ),
    "a function that wraps one parameter": (
        "S = nn.Linear(16, 16)\n"
        "class Odd(Good):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.linear.weight = nn.Parameter(S.weight.data)\n"
        "def build(job): return [embed, Odd, Good, head]",
        "has the same parameter 'linear.weight' each time",
    ),
    "a parameter made of another one's memory": (
        "S = nn.Linear(16, 16)\n"
        "class Odd(Good):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.linear.weight = nn.Parameter(S.weight.data)\n"
        "def build(job): return [embed, Odd, Good, Odd, head]",
        "layer 3 (Odd) shares its parameter 'linear.weight' with layer 1 (Odd)",
    ),
    "a head tied by hand": (
        "E = nn.Embedding(256, 16)\n"
        "class Tied(Head):\n"
        "    def __init__(self):\n        super().__init__(); self.linear.weight = E.weight\n"
        "def build(job): return [lambda: E, Good, Tied]",
        "layer 2 (Tied) shares its parameter 'linear.weight' with layer 0 (Embedding)",
    ),
    "a head that reaches for the embedding": (
        "KEPT = {}\n"
        "class First(Embed):\n"
        "    def __init__(self):\n        super().__init__(); KEPT['e'] = self.table\n"
        "class Tied(nn.Module):\n"
        "    def forward(self, x): return x @ KEPT['e'].weight.t()\n"
        "def build(job): return [First, Good, Tied]",
        "layer 2 (Tied) trains with a tensor of shape (256, 16) that is none of its own",
    ),
    "a head that reads the embedding's values": (
        "KEPT = {}\n"
        "class First(Embed):\n"
        "    def __init__(self):\n        super().__init__(); KEPT['e'] = self.table\n"
        "class Tied(nn.Module):\n"
        "    def forward(self, x): return x @ KEPT['e'].weight.detach().t()\n"
        "def build(job): return [First, Good, Tied]",
        "layer 2 (Tied) alone in another process, as a node that joins does it, fails in its "
        "forward: KeyError: 'e'",
    ),
    "the same layer at each call": (
        "S = nn.Linear(16, 16)\ndef build(job): return [embed, lambda: S, head]",
        "layer 1 (Linear) alone in another process, as a node that joins does it, has the same "
        "parameter 'weight' each time",
    ),
    "a function that remembers": (
        "@functools.lru_cache\ndef made(): return Good()\n"
        "def build(job): return [embed, made, head]",
        "has the same parameter 'linear.weight' each time",
    ),
    "a layer that is trained by nobody": (
        in_init("self.hidden = [nn.Linear(16, 16)]").replace(
            LIST,
            "\n    def forward(self, x): return self.linear(self.hidden[0](x))\n" + LIST,
        ),
        "layer 2 (Odd) trains with a tensor of shape (16, 16) that is none of its own",
    ),
    "two parameters in one memory": (
        in_init("w = torch.rand(24, 16); self.linear.weight = nn.Parameter(w[:16]);"
              " self.more = nn.Parameter(w[8:])"),
        "layer 2 (Odd) has two parameters in the same memory, 'more' and 'linear.weight'",
    ),
    "a view of a parameter": (
        in_init("self.first = self.linear.weight.data[:4]"),
        "layer 2 (Odd) keeps 'first', which lies in the memory of its parameter 'linear.weight'",
    ),
    "a buffer that is a parameter's": (
        in_init("self.register_buffer('first', self.linear.weight.detach())"),
        "layer 2 (Odd) keeps 'first', which lies in the memory",
    ),
}  # fmt: skip
KEPT = {
    "a mask drawn on first use": (
        odd(
            "mask = None\n"
            "def forward(self, x):\n"
            "    if self.mask is None: self.mask = torch.rand(16)\n"
            "    return self.linear(x) * self.mask\n"
        ),
        f"layer 2 (Odd) gives another output {ALONE}",
    ),
    "a mask of the first microbatch": (
        odd(
            "mask = None\n"
            "def forward(self, x):\n"
            "    if self.mask is None: self.mask = (x > x.mean()).detach()\n"
            "    return self.linear(x) * self.mask\n"
        ),
        "layer 2 (Odd) gives another output",
    ),
    "a scale of the first parameters": (
        odd(
            "scale = None\n"
            "def forward(self, x):\n"
            "    if self.scale is None: self.scale = self.linear.weight.norm().item()\n"
            "    return self.linear(x) / self.scale\n"
        ),
        "layer 2 (Odd) gives another output",
    ),
    "the number of calls": (
        odd(
            "calls = 0\n"
            "def forward(self, x):\n    self.calls += 1\n    return self.linear(x) / self.calls\n"
        ),
        "layer 2 (Odd) gives another output",
    ),
    "a thirteenth call": (
        odd(
            "calls = 0\n"
            "def forward(self, x):\n"
            "    self.calls += 1\n    return self.linear(x) * (2.0 if self.calls > 7 else 1.0)\n"
        ),
        "layer 2 (Odd) gives another output or gradient when it runs the same microbatch",
    ),
    "the number of calls, in the gradient": (
        odd(
            "calls = 0\n"
            "def forward(self, x):\n"
            "    self.calls += 1\n    y = self.linear(x)\n"
            "    if self.calls % 2: y.register_hook(lambda g: 2 * g)\n    return y\n"
        ),
        "layer 2 (Odd) gives another gradient of 'linear.weight' when it is built alone",
    ),
    "an average of what came before": (
        odd(
            "mean = 0.0\n"
            "def forward(self, x):\n"
            "    self.mean = 0.9 * self.mean + x.detach().mean()\n"
            "    return self.linear(x) - self.mean\n"
        ),
        "layer 2 (Odd) gives another output",
    ),
    "the last microbatch": (
        odd(
            "last = 0.0\n"
            "def forward(self, x):\n"
            "    y = self.linear(x) + self.last\n    self.last = x.detach()\n    return y\n"
        ),
        "layer 2 (Odd) gives another output",
    ),
    "a module's global": (
        odd(
            "def forward(self, x):\n"
            "    global CALLS\n    CALLS += 1\n    return self.linear(x) / CALLS\n",
            "CALLS = 0\n",
        ),
        "(Odd) gives another output when it is built alone",
    ),
    "what another layer leaves": (
        "LEFT = {}\n"
        "class Leaves(Good):\n"
        "    def forward(self, x):\n        LEFT['x'] = x.detach(); return super().forward(x)\n"
        "class Odd(Good):\n"
        "    def forward(self, x): return self.linear(x + LEFT['x'])\n"
        "def build(job): return [Embed, Leaves, Odd, Good, Head]",
        "layer 2 (Odd) alone in another process, as a node that joins does it, fails in its",
    ),
    "what an earlier layer is": (
        "MADE = []\n"
        "class Odd(Good):\n"
        "    def __init__(self):\n"
        "        super().__init__(); MADE.append(self); self.linear.bias.data.fill_(len(MADE))\n"
        "def build(job): return [Embed, Odd, Odd, Good, Head]",
        "has other initial values of 'linear.bias' each time that it is built",
    ),
    "how many layers there are": (
        "MADE = []\n"
        "class Odd(Good):\n"
        "    def __init__(self):\n        super().__init__(); MADE.append(self)\n"
        "    def forward(self, x): return self.linear(x) / len(MADE)\n"
        "def build(job): return [Embed, Odd, Good, Odd, Head]",
        "(Odd) gives another output when it is built alone",
    ),
    "what a later layer sets": (
        "SET = {'scale': 1.0}\n"
        "class Sets(Head):\n"
        "    def __init__(self):\n        super().__init__(); SET['scale'] = 2.0\n"
        "class Odd(Good):\n"
        "    def forward(self, x): return self.linear(x) * SET['scale']\n"
        "def build(job): return [Embed, Good, Odd, Good, Sets]",
        "layer 2 (Odd) gives another output",
    ),
    "a loss that counts": (
        "CALLS = []\n"
        "def loss(o, t):\n    CALLS.append(0); return token_loss(o, t) * len(CALLS)\n"
        "def build(job): return Workload(layers=(Embed, Head), loss=loss)",
        "the loss draws, or depends on how often it was asked",
    ),
    "a loss that remembers the first targets": (
        "KEPT = []\n"
        "def loss(o, t):\n"
        "    KEPT.append(t) if not KEPT else None\n"
        "    return token_loss(o, t) * (1.0 + float(KEPT[0].float().mean()))\n"
        "def build(job): return Workload(layers=(Embed, Head), loss=loss)",
        "the loss gives another value when it is built alone in another process",
    ),
    "plain, with a table of its own": (
        odd("def __init__(self):\n    super().__init__()\n    self.table = torch.arange(16.0)\n"
             "def forward(self, x): return self.linear(x) + self.table\n").replace(LIST,
            "\ndef build(job):\n"
            "    return Workload(layers=(Embed, Odd, Head), loss=token_loss, plain=True)\n"),
        "layer 1 (Odd) alone in another process, as a node that joins does it, fails in its",
    ),
}  # fmt: skip
OUTSIDE = {
    "the order of its parameters": (
        in_init(
            "[setattr(self, n, nn.Parameter(torch.ones(16))) for n in ('ab' if WHOLE else 'ba')]"
        ).replace(
            LIST, "\n    def forward(self, x): return self.linear(x) * self.a * self.b\n" + LIST
        ).replace("class Odd", "WHOLE = sys.argv != ['another']\nclass Odd", 1),
        "layer 2 (Odd) has its parameters and buffers in another order",
    ),
    "python's random": (in_forward("x = x * random.random()"), "gives another output"),
    "numpy's random": (in_forward("x = x * float(np.random.rand())"), "gives another output"),
    "a generator without a seed": (
        in_forward("x = x * float(RNG.random())", "RNG = np.random.default_rng()"),
        "gives another output",
    ),
    "os.urandom": (
        odd(
            "def __init__(self):\n    super().__init__()\n    self.scale = os.urandom(1)[0] / 256\n"
            "def forward(self, x): return self.linear(x) * self.scale\n"
        ),
        "gives another output",
    ),
    "os.urandom into a buffer": (
        in_init("self.register_buffer('s', torch.tensor(os.urandom(4)[0]), persistent=False)"),
        "has other initial values of 's'",
    ),
    "the clock, at first use": (in_forward("x = x * (time.time() % 1)"), "gives another output"),
    "the clock, in build": (
        in_init("self.linear.bias.data.fill_(time.perf_counter())"),
        "has other initial values of 'linear.bias'",
    ),
    "the clock, at import": (
        in_init("self.linear.bias.data.fill_(BEGUN)").replace(
            "class Odd", "BEGUN = time.perf_counter()\nclass Odd", 1
        ),
        "has other initial values of 'linear.bias'",
    ),
    "the process": (
        in_init("self.linear.bias.data.fill_(os.getpid())"),
        "has other initial values of 'linear.bias'",
    ),
    "a uuid": (
        in_init("self.linear.bias.data.fill_(uuid.uuid4().int % 997)"),
        "has other initial values of 'linear.bias'",
    ),
    "how many modules are loaded": (
        in_init("self.linear.bias.data.fill_(len(sys.modules))"),
        "has other initial values of 'linear.bias'",
    ),
    "an address": (
        in_init("self.linear.bias.data.fill_(id(self) % 100003)"),
        "has other initial values of 'linear.bias'",
    ),
    "its process's end": (
        in_forward("WHOLE or os._exit(3)", "WHOLE = sys.argv != ['another']"),
        "ends its process, with status 3; let what fails raise an exception",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("source", "message"),
    [
        pytest.param(*case, id=name)
        for cases in (SHARED, KEPT, OUTSIDE)
        for name, case in cases.items()
    ],
)
def test_what_a_stage_alone_would_make_otherwise_is_refused(
    tmp_path: Path, alone: Alone, source: str, message: str
) -> None:
    assert_refused(job_of(tmp_path, source), alone, message)


def test_a_file_that_asks_for_a_gpu_leaves_forks_able_to_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_nvml: list[bool] = []

    def asks(_: object) -> None:
        by_nvml.append(torch.cuda._nvml_based_avail())
        raise InputError("it was read")

    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "0")
    monkeypatch.setattr(checking, "build_model", asks)
    monkeypatch.setattr(checking, "_read_look", lambda _: None)
    monkeypatch.setattr(checking, "_differ", lambda _: None)
    checking._look_at(job_to_json(job_of(tmp_path, LIST)), str(tmp_path), Pipe()[0])
    assert by_nvml == [True]
    used = RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with")
    assert remedy_of(used) == "use no GPU while the file is read; layers are put on it later"
