"""The wheel that a launch brings: installable as it is, the code that runs here, the same each
time."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from bamboo.errors import InputError
from bamboo.sites.account import wheel
from bamboo.sites.account.wheel import own_wheel, placed
from tests.tidy.tree import PRODUCT, ROOT, paths


def test_it_installs_without_a_network_as_the_code_that_runs_here(tmp_path: Path) -> None:
    made = own_wheel()
    path = tmp_path / Path(made.name).name
    path.write_bytes(made.data)
    there = tmp_path / "there"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
    subprocess.run(
        [*pip, "--no-deps", "--no-index", "--target", str(there), str(path)],
        check=True,
        timeout=60,
    )
    for name in (p for p in paths() if p.startswith(PRODUCT)):
        assert (there / placed(name)).read_bytes() == (ROOT / name).read_bytes(), name
    (installed,) = metadata.distributions(path=[str(there)])
    assert installed.version == metadata.version(wheel.DISTRIBUTION)
    assert {one.name for one in installed.entry_points} == {"bamboo"}
    assert "torch" in "".join(installed.requires or ())
    # Every file that RECORD names is what it says, or an installer would have refused it.
    assert any(path.name == "LICENSE" for path in installed.files or ())


def test_the_same_code_is_the_same_wheel() -> None:
    assert own_wheel() == own_wheel()


def test_other_code_is_another_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    before = own_wheel()
    code = list(wheel._code())
    monkeypatch.setattr(wheel, "_code", lambda: [*code, ("cli/new.py", b"")])
    assert own_wheel().name != before.name


def test_what_was_not_installed_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "DISTRIBUTION", "bamboo-nowhere")
    with pytest.raises(InputError, match=r"cannot be made of what is installed here.*make setup"):
        own_wheel()
