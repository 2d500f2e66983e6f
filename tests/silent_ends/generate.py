"""From a seed to a case: the files of a model, an edit of one of them, and where a node is lost.

Pure: the same seed gives the same case, on every machine. Cases with an even seed are honest; those
with an odd one have a habit that makes bits hang on something else, each in its turn, and from the
second turn on a second one.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import Template

from bamboo.config.tree import Kill
from tests.silent_ends.catalogue import HAZARDS, HONEST, SHAPES, SURROUNDINGS
from tests.silent_ends.feature import Edit, Feature, Shape

STAGES, STEPS, CONTEXT = 3, 8, 16
GATE_STEP = 1
"""Nothing goes past the begin of this step while files are edited."""
MODEL, DATA = "model.py", "data.txt"
PHASES = ("forward", "backward", "exchange", "ship", "step")

_HEADER = """\
import copy
import datetime
import functools
import importlib
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

HERE = Path(__file__).parent
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A generated model, and what happens to it while it is trained."""

    seed: int
    honest: bool
    description: str
    """The names of its habits and its edit, in one line."""
    width: int
    files: dict[str, str]
    edit: Edit
    cut: tuple[int, ...]
    """The first layer of each stage."""
    kill: Kill
    in_folder: bool
    """Workers start in the model's folder, as on the user's machine, or in another one."""

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.description}"


def case_of(seed: int) -> Case:
    """The case of a seed."""
    return composed(seed, *_habits(seed, _chance(seed, "habits")))


def composed(seed: int, features: Sequence[Feature], shape: Shape) -> Case:
    """A case of these habits; the seed decides about all else."""
    draw = _chance(seed, "case")
    width = draw.choice((8, 12, 16))
    count = draw.randint(3, 4)
    layers: list[list[Feature]] = [[] for _ in range(count)]
    numbered = [_numbered(one, i, width, count) for i, one in enumerate(features)]
    for one in numbered:
        for layer in layers if one.everywhere else [draw.choice(layers)]:
            layer.append(one)
    files = {MODEL: _model(numbered, layers, shape, width), DATA: _text(draw)}
    for one in numbered:
        files |= one.files
    edit, what = _edit(draw, files, numbered)
    first = draw.randint(1, count)
    cut = (0, first, draw.randint(first + 1, count + 1))
    return Case(
        seed=seed,
        honest=shape.honest and all(one.honest for one in features),
        description=f"{', '.join(one.name for one in features)}; {shape.name}; edit: {what}",
        width=width,
        files=files,
        edit=edit,
        cut=cut,
        kill=Kill(
            step=draw.randint(GATE_STEP + 1, GATE_STEP + 2),
            stage=_stage_of(draw, layers, cut, edit),
            phase=draw.choice(PHASES),
            microbatch=draw.randrange(4),
        ),
        in_folder=draw.random() < 0.5,
    )


def _chance(seed: int, what: str) -> random.Random:
    return random.Random(f"a search for silent ends, {seed}, {what}")


def hazards() -> list[Feature | Shape]:
    """All that is not honest, in the order in which odd seeds take it."""
    found = [*HAZARDS, *SURROUNDINGS, *(shape for shape in SHAPES if not shape.honest)]
    return random.Random("hazards").sample(found, len(found))


def _habits(seed: int, draw: random.Random) -> tuple[list[Feature], Shape]:
    features = draw.sample(HONEST, draw.randint(1, 3))
    shape = draw.choice([one for one in SHAPES if one.honest])
    turn, order = seed // 2, hazards()
    if seed % 2:
        features = features[: draw.randint(0, 1)]
        wrong = [order[turn % len(order)]]
        if turn >= len(order):
            wrong.append(draw.choice(order))
        for one in wrong:
            if isinstance(one, Shape):
                shape = one
            else:
                features.append(one)
    return features or [HONEST[0]], shape


def _stage_of(
    draw: random.Random, layers: Sequence[Sequence[Feature]], cut: Sequence[int], edit: Edit
) -> int:
    """Where a node is lost: mostly where a habit is that is not honest, or that the edit meets."""
    met = [
        i + 1
        for i, habits in enumerate(layers)
        if any(not one.honest or edit in one.edits for one in habits)
    ]
    if not met or draw.random() < 0.2:
        return draw.randrange(STAGES)
    layer = draw.choice(met)
    return sum(begin <= layer for begin in cut) - 1


def _numbered(one: Feature, number: int, width: int, count: int) -> Feature:
    """With the places in its texts filled."""

    def fill(text: str) -> str:
        return Template(text).safe_substitute(n=number, w=width, c=CONTEXT, count=count)

    places = ("top", "init", "forward", "methods", "build")
    return replace(
        one,
        **{place: fill(getattr(one, place)) for place in places},
        files={fill(path): fill(text) for path, text in one.files.items()},
        edits=tuple(
            Edit(path=fill(e.path), text=None if e.text is None else fill(e.text))
            for e in one.edits
        ),
    )


def _model(
    features: Sequence[Feature], layers: Sequence[Sequence[Feature]], shape: Shape, width: int
) -> str:
    names = [f"Layer{i + 1}" for i in range(len(layers))]
    tops = [one.top for one in features if one.top]
    build = "".join(_indented(one.build, 4) for one in features)
    classes = [_class(name, layer, width) for name, layer in zip(names, layers, strict=True)]
    ending = Template(shape.code).safe_substitute(
        classes=", ".join(names),
        called=", ".join(f"{name}()" for name in names),
        first=names[0],
        last=names[-1],
        count=len(names),
        build=build,
        w=width,
    )
    return "\n\n".join([_HEADER, *tops, *classes, ending])


def _class(name: str, features: Sequence[Feature], width: int) -> str:
    return (
        f"class {name}(nn.Module):\n"
        + "".join(_indented(one.methods, 4) for one in features)
        + "    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.linear = nn.Linear({width}, {width})\n"
        + "".join(_indented(one.init, 8) for one in features)
        + "    def forward(self, x):\n"
        "        y = self.linear(x)\n"
        + "".join(_indented(one.forward, 8) for one in features)
        + "        return x + torch.tanh(y)\n"
    )


def _indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.splitlines())


def _text(draw: random.Random) -> str:
    words = ["bamboo", "grows", "in", "the", "shade", "of", "an", "old", "wall"]
    return " ".join(draw.choice(words) for _ in range(1200)) + "\n"


def _edit(
    draw: random.Random, files: dict[str, str], features: Sequence[Feature]
) -> tuple[Edit, str]:
    model, text = files[MODEL], files[DATA]
    own = [edit for one in features for edit in one.edits]
    general = [
        (Edit(path=MODEL, text=model.replace("torch.tanh", "torch.sinh")), "another function"),
        (
            Edit(path=MODEL, text=model.replace("torch.tanh", "torch.sinh"), same_time=True),
            "another function, and the file's size and time are as before",
        ),
        (Edit(path=MODEL, text=model.replace("x + torch.tanh", "x - torch.tanh")), "a sign"),
        (Edit(path=MODEL, text=model.replace("class", "clas", 1)), "no longer Python"),
        (Edit(path=MODEL, text=model + "\nraise SystemExit(0)\n"), "it ends the process"),
        (Edit(path=MODEL, text=model.replace("256, bias", "128, bias")), "another head"),
        (Edit(path=MODEL, text=None), "the model's file is gone"),
        (Edit(path=DATA, text=text + text[:400]), "the data have grown"),
        (Edit(path=DATA, text=text[::-1]), "the data are others"),
        (Edit(path=DATA, text=None), "the data are gone"),
    ]
    if own and draw.random() < 0.75:
        chosen = draw.choice(own)
        return chosen, f"{chosen.path} {'goes' if chosen.text is None else 'changes'}"
    there = [one for one in general if one[0].text != files[one[0].path]]
    return draw.choice(there)
