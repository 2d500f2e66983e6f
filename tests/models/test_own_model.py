"""A user's own list of layers: read, built alike everywhere, and refused in one line."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.models import build_layer, build_model, run_layers
from bamboo.models.build import remedy_of_file
from tests.jobs import tiny_job

HEAD = """
from torch import nn
def embed(job): return nn.Embedding(job.model.vocabulary, job.model.width)
"""
WORKLOAD = "from bamboo.models import Workload\n"
READY = HEAD + (
    "def build(job):\n"
    "    width = job.model.width\n"
    "    return [embed(job), nn.Linear(width, width), nn.Linear(width, job.model.vocabulary)]\n"
)


def _job(folder: Path, source: str, name: str = "mine.py:build") -> JobConfig:
    (folder / "mine.py").write_text(source, encoding="utf-8")
    return tiny_job(folder, [f"model.model={name}"])


def test_ready_made_layers_have_the_same_values_wherever_they_are_built(tmp_path: Path) -> None:
    job = _job(tmp_path, READY)
    torch.manual_seed(1)
    one = build_model(job)
    torch.manual_seed(2)
    other = build_model(job)
    assert len(one.layers) == 3
    for i in range(3):
        a, b, again = (build_layer(s, i, 1).state_dict() for s in (one, other, one))
        assert all(torch.equal(a[k], b[k]) and torch.equal(a[k], again[k]) for k in a)
    assert build_layer(one, 1, 1) is not build_layer(one, 1, 1)


def test_factories_are_keyed_by_their_layer(tmp_path: Path) -> None:
    source = HEAD + "def build(job): return [lambda: embed(job), *[lambda: nn.Linear(16, 16)] * 2]"
    workload = build_model(_job(tmp_path, source))
    one, other = (build_layer(workload, i, 1).state_dict()["weight"] for i in (1, 2))
    assert not torch.equal(one, other)


def test_a_spec_of_ones_own_is_taken_as_it_is(tmp_path: Path) -> None:
    source = HEAD + (
        "from bamboo.models import Workload\n"
        "def loss(output, targets): return (output ** 2).sum()\n"
        "def build(job): return Workload(layers=(lambda: embed(job),), loss=loss)\n"
    )
    workload = build_model(_job(tmp_path, source))
    assert workload.loss(torch.tensor([2.0]), torch.tensor([0])).item() == 4.0


def test_the_example_trains_on_tokens(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "mlp_layers.py"
    job = _job(tmp_path, example.read_text(encoding="utf-8"))
    workload = build_model(job)
    layers = [(i, build_layer(workload, i, 1).eval()) for i in range(len(workload.layers))]
    tokens_BT = torch.arange(16).view(2, 8)
    changed_BT = tokens_BT.clone()
    changed_BT[:, 4] = 9
    one, other = (
        run_layers(layers, (x,), seed=1, step=0, microbatch=0)[0] for x in (tokens_BT, changed_BT)
    )
    assert one.shape == (2, 8, 256)
    assert torch.equal(one[:, :4], other[:, :4])
    assert not torch.equal(one[:, 4], other[:, 4])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def build(job:\n", "SyntaxError"),
        ("import no_such_module_here\n", "ModuleNotFoundError"),
        ("x = 1\n", "mine.py has no 'build'; write `def build(job):` in it"),
        ("def make(job): return []\n", "in it, or name what it has: make"),
        ("def build(job): return job.nothing\n", "AttributeError"),
        ("def build(): return []\n", "TypeError"),
        ("def build(job): raise ValueError('two\\nlines')\n", "ValueError: two lines"),
        ("class Own(Exception): pass\ndef build(job): raise Own('words')\n", "Own: words"),
        ("import sys\nsys.exit(0)\n", "SystemExit: 0"),
        ("def build(job): return []\n", "return a list of layers, not an empty one"),
        ("def build(job): return 3\n", "it returned int"),
        ("def build(job): pass\n", "it returned nothing; end it with `return`, and the layers"),
        (HEAD + "def build(job): return embed(job)\n", ', or set model.split = "trace"'),
        (
            WORKLOAD + "def build(job): return Workload(layers=[])\n",
            "Workload(layers=..., loss=...",
        ),
        (
            WORKLOAD + "def build(job): return Workload([], sum)\n",
            "by these names; it may have data",
        ),
        ("def build(job): return [3]\n", "item 0 is int"),
        (
            HEAD + "def build(job):\n    e = embed(job)\n    h = nn.Linear(16, 256)\n"
            "    h.weight = e.weight\n    return [e, h]\n",
            "Embedding.weight (item 0) and Linear.weight (item 1) are one parameter",
        ),
        (
            HEAD + "def build(job):\n    e = embed(job)\n    h = nn.Linear(16, 256)\n"
            "    h.weight = nn.Parameter(e.weight.data)\n    return [e, h]\n",
            "Embedding.weight (item 0) and Linear.weight (item 1) are one parameter",
        ),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(tmp_path: Path, source: str, message: str) -> None:
    job = _job(tmp_path, source)
    with pytest.raises(InputError, match=r"model\.model = 'mine\.py:build'") as caught:
        build_model(job)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_function_that_makes_no_layer_is_refused(tmp_path: Path) -> None:
    workload = build_model(_job(tmp_path, "def build(job): return [lambda: 3]\n"))
    with pytest.raises(InputError, match="the function at 0 made int"):
        build_layer(workload, 0, 1)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    job = _job(tmp_path, READY)
    (tmp_path / "mine.py").unlink()
    with pytest.raises(InputError, match="FileNotFoundError"):
        build_model(job)
    (tmp_path / "mine.py").write_bytes(b"\x00\xff")
    with pytest.raises(InputError, match=r"mine\.py"):
        build_model(job)


@pytest.mark.parametrize(
    "layers",
    ["nn.Sequential(*parts)", "tuple(parts)", "Workload(layers=nn.Sequential(*parts), loss=sum)"],
)
def test_ready_layers_are_taken_in_any_of_these_forms(tmp_path: Path, layers: str) -> None:
    source = HEAD + (
        "from bamboo.models import Workload\n"
        "def build(job):\n"
        "    parts = [embed(job), nn.Linear(16, 16), nn.Linear(16, 256)]\n"
        f"    return {layers}\n"
    )
    workload = build_model(_job(tmp_path, source))
    assert [type(build_layer(workload, i, 1)).__name__ for i in range(3)] == [
        *("Embedding", "Linear", "Linear")
    ]
    assert build_layer(workload, 1, 1) is not build_layer(workload, 1, 1)


LOST = "No such file or directory (os error 2)"


def from_pretrained(said: str) -> None:
    """As transformers has it."""
    raise OSError(said)


def load_file(said: str) -> None:
    """As safetensors has it."""
    raise OSError(said)


@pytest.mark.parametrize(
    ("load", "said", "remedy"),
    [
        (from_pretrained, "no file named model.safetensors", "by its config, and begin with"),
        (from_pretrained, LOST, "by its config, and begin with"),
        (load_file, LOST, "read it with open()"),
        (load_file, "the disk is gone", None),
    ],
)
def test_a_file_below_python_that_no_run_takes_along_has_a_remedy(
    load: Callable[[str], None], said: str, remedy: str | None
) -> None:
    with pytest.raises(OSError, match=re.escape(said)) as caught:
        load(said)
    found = remedy_of_file(caught.value)
    assert (remedy in found) if remedy else not found
