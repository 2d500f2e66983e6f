"""What an extra brings is asked for by name, in one line, before anything is begun."""

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from bamboo import extras
from bamboo.config.tree import LogConfig
from bamboo.errors import InputError
from bamboo.trackers import places
from cli.main import run
from tests.jobs import tiny_job
from tests.tidy.tree import ROOT


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    brought = {name for names in extras.MODULES.values() for name in names}
    monkeypatch.setattr(
        extras, "find_spec", lambda name: None if name in brought else find_spec(name)
    )


@pytest.mark.usefixtures("without")
def test_a_launch_on_this_machine_names_the_extra_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    assert run(["launch", tiny_job(tmp_path).file]) == 2
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "error" in one]
    assert line == (
        "error: a launch on this machine needs moto, which is not installed; "
        'install it: pip install "bamboo-train[local]"'
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb", "mlflow", "otlp"])
def test_a_tracker_names_the_extra_that_it_needs(name: str) -> None:
    (module, *_) = extras.MODULES[name]
    with pytest.raises(InputError) as refused:
        places.check(LogConfig(to=(name,)))
    assert str(refused.value) == (
        f'log.to = ["{name}"] needs {module}, which is not installed; '
        f'install it: pip install "bamboo-train[{name}]"'
    )


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize(
    "words",
    [
        ["trace", "stats", "examples/spot-market.csv", "--plot", "x.svg"],
        ["simulate", "examples/gpt-local.toml", "--plot", "x.svg"],
        ["cost", "examples/gpt-local.toml", "--plot", "x.svg"],
    ],
    ids=lambda words: words[0],
)
def test_a_picture_names_the_extra_that_it_needs(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        "error: --plot x.svg needs matplotlib, which is not installed; "
        'install it: pip install "bamboo-train[plot]"'
    )


def test_the_modules_are_those_of_the_distributions_that_are_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, modules in extras.MODULES.items():
        names = {re.split(r"\W", one)[0] for one in declared["optional-dependencies"][extra]}
        # flask comes with moto's server.
        assert names == {module.partition(".")[0] for module in modules} - {"flask"}, extra
        needed = {re.split(r"\W", one)[0] for one in declared["dependencies"]}
        assert not names & needed
