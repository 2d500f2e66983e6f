"""What surrounds a process is another on each node: where its files lie, how it was called, its
clock, what stands around a layer. A model that hangs on it is refused."""

from pathlib import Path

import pytest

from bamboo.runtime.check.alone import Alone
from tests.runtime.check.odd_models import LIST, assert_refused, in_forward, in_init, job_of, odd

TIMES = {
    "second": "datetime.datetime.now().second",
    "hour": "datetime.datetime.now(datetime.UTC).hour",
    "day": "datetime.date.today().toordinal()",
    "time": "int(time.time())",
    "local time": "time.localtime().tm_sec",
    "text": "int(time.strftime('%S'))",
    "today": "datetime.datetime.today().minute",
}
HERE = "HERE = __import__('pathlib').Path(__file__).parent\n"
ANOTHER = "gives another output when it is built alone"


def _at_import(value: str) -> str:
    return in_forward("x = x * (1 + GAIN % 9973)", f"import datetime\n{HERE}GAIN = {value}")


SURROUNDED = {
    **{f"the {name} of its import": (_at_import(v), ANOTHER) for name, v in TIMES.items()},
    "how long ago it was imported": (
        in_forward(
            "x = x * (0.5 if time.monotonic() - BEGUN > 60 else 1.0)", "BEGUN = time.monotonic()"
        ),
        ANOTHER,
    ),
    "the folder that it lies in": (_at_import("__import__('zlib').crc32(bytes(HERE))"), ANOTHER),
    "when it was written": (_at_import("os.stat(__file__).st_mtime_ns"), ANOTHER),
    "what lies beside it": (_at_import("len(os.listdir(HERE))"), ANOTHER),
    "a file that only another process reads": (
        _at_import("int(__import__('subprocess').run(['cat', HERE / 'gain.txt'], "
                   "capture_output=True, check=True).stdout)"),
        "CalledProcessError",
    ),
    "how it was called": (_at_import("len(' '.join(__import__('sys').argv))"), ANOTHER),
    "what it made of an input before": (
        odd(
            "def __init__(self):\n    super().__init__()\n    self.kept = {}\n"
            "def forward(self, x):\n"
            "    y = self.linear(x)\n"
            "    return y + self.kept.setdefault(float(x.detach().sum()), y.detach().mean())\n"
        ),
        ANOTHER,
    ),
    "the twentieth call": (
        odd(
            "calls = 0\n"
            "def forward(self, x):\n"
            "    type(self).calls += 1\n"
            "    return self.linear(x) * (2.0 if self.calls > 20 else 1.0)\n"
        ),
        "layer 2 (Odd) gives another output or gradient when it runs the same microbatch",
    ),
    "the twentieth gradient": (
        in_init(
            "n = []; self.linear.weight.register_hook("
            "lambda g: [n.append(1), g * (0.5 if len(n) > 20 else 1)][1])"
        ),
        "layer 2 (Odd) gives another output or gradient when it runs the same microbatch",
    ),
    "a bound that no first value reaches": (
        in_init("self.gain = nn.Parameter(torch.ones(16))").replace(
            LIST,
            "\n    def forward(self, x):\n"
            "        with torch.no_grad(): self.gain.clamp_(0.999, 1.001)\n"
            "        return self.linear(x) * self.gain\n" + LIST,
        ),
        "changes its parameter 'gain' while it runs",
    ),
    "a generator that goes on": (
        in_init("nn.init.normal_(self.linear.weight, generator=OWN)").replace(
            "class Odd", "OWN = torch.Generator().manual_seed(3)\nclass Odd", 1
        ),
        "has other initial values of 'linear.weight' each time that it is built",
    ),
    "the twentieth loss": (
        "CALLS = []\n"
        "def loss(o, t):\n"
        "    CALLS.append(0); return token_loss(o, t) * (1.0 if len(CALLS) < 20 else 1.5)\n"
        "def build(job): return Workload(layers=(Embed, Head), loss=loss)",
        "the loss draws, or depends on how often it was asked",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("source", "message"), SURROUNDED.values(), ids=SURROUNDED)
def test_what_hangs_on_its_surroundings_is_refused(
    tmp_path: Path, alone: Alone, source: str, message: str
) -> None:
    (tmp_path / "gain.txt").write_text("2", encoding="utf-8")
    assert_refused(job_of(tmp_path, source), alone, message)
