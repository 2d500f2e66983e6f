"""The examples of docs/your-own-model.md: each is short, and trains as it stands there."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from PIL import Image

from bamboo.config.load import load_job
from bamboo.data.dataset import load_data
from bamboo.models import build_model
from bamboo.runtime.check.reference import CalmRun
from bamboo.runtime.step.numerics import prepare

GUIDE = Path(__file__).parents[2] / "docs" / "your-own-model.md"
LINES = 40
NAME = re.compile(r"    # (\w+\.(?:py|toml))")


def blocks() -> dict[str, str]:
    """Name of a file -> its text, of all indented text that begins with one."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in GUIDE.read_text(encoding="utf-8").splitlines():
        if named := NAME.fullmatch(line):
            lines = found.setdefault(named[1], [])
        elif line.startswith("    ") or not line:
            lines.append(line[4:])
        else:
            lines = []
    return {name: "\n".join(lines).rstrip() + "\n" for name, lines in found.items()}


def table(folder: Path) -> None:
    draw = random.Random(1)
    rows = [[draw.random() for _ in range(4)] for _ in range(64)]
    lines = [",".join(map(str, [*row, sum(row)])) for row in rows]
    (folder / "table.csv").write_text("\n".join(lines))


def images(folder: Path) -> None:
    draw = numpy.random.default_rng(1)
    for index in range(64):
        label = folder / "images" / f"label-{index % 4}"
        label.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 60, (16, 16, 3), dtype="uint8") + 40 * (index % 4)
        Image.fromarray(pixels.astype("uint8")).save(label / f"{index}.png")


NEEDS: dict[str, Callable[[Path], None]] = {"regression": table, "images": images}


LONG = {"classify"}
"""Those whose trace takes a while."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.full] if name in LONG else [])
        for name in sorted({Path(one).stem for one in blocks()})
    ],
)
def test_an_example_is_short_and_trains(tmp_path: Path, name: str) -> None:
    files = {file: text for file, text in blocks().items() if Path(file).stem == name}
    assert len([line for text in files.values() for line in text.split("\n") if line]) < LINES
    for file, text in files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    if name in NEEDS:
        NEEDS[name](tmp_path)
    sets = ["train.steps=20", "train.warmup_steps=1", "train.learning_rate=1e-2"]
    text = ["data.max_bytes=20000"] * (name not in {*NEEDS, "classify"})
    job = load_job(tmp_path / f"{name}.toml", [*sets, *text])
    prepare(job.cluster)
    workload = build_model(job)
    calm = CalmRun(job, workload, load_data(job, own=workload.data))
    losses = [calm.step() for _ in range(20)]
    assert losses[-1] < 0.9 * losses[0]


def test_the_guide_has_the_examples_that_it_names() -> None:
    assert {"regression", "images", "tied", "skip"} <= {Path(one).stem for one in blocks()}
