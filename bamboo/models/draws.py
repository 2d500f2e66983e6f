"""Randomness for the user's code: every generator that it may draw from starts from a key.

Rule: each block is independent. What was drawn before it changes nothing in it, and it changes
nothing after it, so the order in which layers are made does not matter.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

NUMPY_SEEDS = 1 << 32
"""NumPy takes no seed from here on."""


@contextmanager
def keyed_draws(seed: int) -> Iterator[None]:
    """Within the block, torch's default generator, Python's `random` and, where it is loaded,
    `numpy.random` give the numbers of `seed`; afterwards they go on as though the block had not
    run."""
    numpy: Any = sys.modules.get("numpy.random")
    python_state = random.getstate()
    numpy_state = None if numpy is None else numpy.get_state()
    with torch.random.fork_rng(devices=[]):
        _seed_torch(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.seed(seed % NUMPY_SEEDS)
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy is not None:
                numpy.set_state(numpy_state)


def _seed_torch(seed: int) -> None:
    """Seed torch's generators: those of a GPU, too, where this build of torch can have one."""
    if torch.version.cuda is None:
        # `torch.manual_seed` would format a traceback for each kind of device that there might be,
        # which takes longer than most layers take to draw their values.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
