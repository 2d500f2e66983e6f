"""What is loaded for good: once, without the collector, and without what no step needs."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from bamboo import loading


def test_the_collector_rests_while_modules_load_and_works_after() -> None:
    frozen = gc.get_freeze_count()
    with loading.for_good():
        assert not gc.isenabled()
        kept = [[] for _ in range(100)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + len(kept)
    with pytest.raises(ImportError), loading.for_good():
        raise ImportError("no such module")
    assert gc.isenabled()


def test_a_module_is_run_with_its_arguments_and_its_status(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(
        "import gc\n"
        "WHILE_LOADED = gc.isenabled()\n"
        "def main(arguments):\n"
        "    print(WHILE_LOADED, gc.isenabled(), arguments)\n"
        "    return 7\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "bamboo.loading", "told", "a", "b"],
        env={"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (7, "False True ['a', 'b']\n"), done.stderr


@pytest.mark.parametrize(("call", "said"), [("", "looked for\n"), ("until_the_end()", "")])
def test_at_the_end_nobody_looks_for_cycles(call: str, said: str) -> None:
    program = (
        "import bamboo.loading\n"
        "class Cycle:\n"
        "    def __init__(self): self.own = self\n"
        "    def __del__(self): print('looked for')\n"
        "Cycle()\n"
        f"{call and 'bamboo.loading.' + call}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


def test_a_backward_with_a_gradient_loads_nothing_more_and_has_the_bits_of_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.stdout == "True True True\n", done.stderr


def test_a_layer_that_is_computed_again_loads_nothing_after_the_node_has_joined() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AGAIN], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.stdout == "[]\n", done.stderr


AGAIN = """
import sys
from types import SimpleNamespace
import torch
import bamboo.wiring.worker
from bamboo.config.tree import ClusterConfig
from bamboo.models import run_back, run_layers
from bamboo.runtime.node.arrival import warm_up

job = SimpleNamespace(cluster=ClusterConfig(recompute="layer"))
warm_up(SimpleNamespace(job=job, device=SimpleNamespace(place=torch.device("cpu"))))
before = set(sys.modules)
at = {"seed": 1, "step": 0, "microbatch": 0}
y = run_layers([(0, torch.nn.Linear(5, 7))], (torch.randn(3, 5),), range(1), **at)
run_back(y, (torch.randn(3, 7),))
print(sorted(set(sys.modules) - before))
"""


PROGRAM = """
import sys
import torch
import bamboo.wiring.worker
from bamboo.models import run_back

layer = torch.nn.Linear(5, 7)
x = torch.randn(3, 5, requires_grad=True)
gradient = torch.randn(3, 7)
run_back((layer(x),), (gradient,))
light = "sympy" not in sys.modules
ours, layer.weight.grad, x_ours, x.grad = layer.weight.grad, None, x.grad, None
torch.autograd.backward(layer(x), gradient)
print(light, torch.equal(ours, layer.weight.grad), torch.equal(x_ours, x.grad))
"""
