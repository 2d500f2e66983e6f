"""Scripts and units of infra/: they parse, stop at the first failure, and stand in the bucket."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [".ci/run", *sorted(f"infra/{p.name}" for p in (ROOT / "infra").glob("*.sh"))]
UNITS = sorted(
    p.name for p in (ROOT / "infra").glob("bamboo-*") if p.suffix in (".service", ".timer")
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_parses_and_is_strict(name: str) -> None:
    text = (ROOT / name).read_text()
    shell = "bash" if "bash" in text.splitlines()[0] else "sh"
    assert re.search(r"^set -eu", text, re.MULTILINE), "a script stops at the first failure"
    assert (ROOT / name).stat().st_mode & 0o111, f"{name} is not executable"
    assert max(map(len, text.splitlines())) <= 100
    subprocess.run([shell, "-n", ROOT / name], check=True, timeout=10)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_passes_shellcheck(name: str) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not on the path")
    subprocess.run(["shellcheck", ROOT / name], check=True, timeout=30)


@pytest.mark.parametrize("name", UNITS)
def test_unit_is_one_that_systemd_takes(name: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not on the path")
    said = subprocess.run(
        ["systemd-analyze", "verify", ROOT / "infra" / name],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    ).stderr
    # Nothing is installed here; anything else it says is a fault of the unit.
    complaints = [line for line in said.splitlines() if "is not executable" not in line]
    assert complaints == []
