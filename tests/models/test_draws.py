"""Chance in the user's code: keyed at import, in `build` and in each layer's function."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bamboo.config.tree import JobConfig
from bamboo.models import build_layer, build_model
from bamboo.models.draws import keyed_draws
from tests.jobs import tiny_job

DRAWS = {
    "torch": "torch.rand(3)",
    "Python's random": "torch.tensor([random.random() for _ in range(3)])",
    "NumPy": "torch.tensor(np.random.rand(3))",
}
FILE = """
import random
import numpy as np
import torch
from torch import nn
def drawn(): return {draw}
class Drawn(nn.Module):
    def __init__(self, found=None):
        super().__init__()
        self.register_buffer("drawn", drawn() if found is None else found)
"""
PLACES = {
    "a list made at import": "LAYERS = [Drawn()]\ndef build(job): return LAYERS\n",
    "a number drawn at import": "FOUND = drawn()\ndef build(job): return [lambda: Drawn(FOUND)]\n",
    "a number drawn in build": "def build(job): f = drawn(); return [lambda: Drawn(f)]\n",
    "a layer's own function": "def build(job): return [Drawn]\n",
}


def _job(folder: Path, place: str, draw: str) -> JobConfig:
    (folder / "mine.py").write_text(FILE.format(draw=draw) + place, encoding="utf-8")
    return tiny_job(folder, ["model.model=mine.py:build"])


def _drawn(job: JobConfig, disturbance: int) -> Tensor:
    """What layer 0 has in a process in which so much else was drawn."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(disturbance)
    return build_layer(build_model(job), 0, job.train.seed).state_dict()["drawn"]


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("place", PLACES)
def test_whoever_draws_initial_values_gets_the_same(tmp_path: Path, place: str, draw: str) -> None:
    job = _job(tmp_path, PLACES[place], DRAWS[draw])
    assert torch.equal(_drawn(job, 1), _drawn(job, 2))


@pytest.mark.parametrize("place", PLACES)
def test_another_seed_draws_others(tmp_path: Path, place: str) -> None:
    job = _job(tmp_path, PLACES[place], DRAWS["torch"])
    other = tiny_job(tmp_path, ["model.model=mine.py:build", "train.seed=2"])
    assert not torch.equal(_drawn(job, 1), _drawn(other, 1))


def _next() -> tuple[float, float, float]:
    return torch.rand(1).item(), random.random(), np.random.rand()


def test_the_generators_go_on_as_though_nothing_had_been() -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    undisturbed = _next()
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
    with keyed_draws(7):
        keyed = _next()
    assert _next() == undisturbed
    assert keyed != undisturbed
    after = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), keyed_draws(7):
        _ = 1 / torch.randint(1, (1,)).item()
    assert torch.equal(torch.get_rng_state(), after)


def test_the_numbers_of_a_key_are_torch_s_own() -> None:
    with keyed_draws(7):
        found = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(found, torch.rand(3))


def test_a_process_without_numpy_s_generator_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy.random")
    with keyed_draws(7):
        first = torch.rand(1), random.random()
    with keyed_draws(7):
        assert (torch.rand(1), random.random()) == first
