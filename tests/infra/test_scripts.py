"""Scripts and units of infra/: they parse, stop at the first failure, and a broken boot ends."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [".ci/run", *sorted(f"infra/{p.name}" for p in (ROOT / "infra").glob("*.sh"))]


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


def boot(tmp_path: Path, curl: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the boot script where every command it could do harm with is a recorder."""
    for name in ("aws", "install", "systemctl", "useradd", "shutdown"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >>"{tmp_path}/calls"\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / "curl").write_text(curl)
    (tmp_path / "curl").chmod(0o755)
    bash = shutil.which("bash")
    assert bash is not None
    return subprocess.run(
        [bash, ROOT / "infra" / "boot.sh"],
        env={"PATH": str(tmp_path)} | environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_boot_without_metadata_powers_off(tmp_path: Path) -> None:
    done = boot(tmp_path, "#!/bin/sh\nexit 22\n", BAMBOO_BUCKET="bucket")
    assert done.returncode == 22
    assert "this instance powers off" in done.stderr
    assert (tmp_path / "calls").read_text() == "shutdown -h +2\n"


def test_a_boot_outside_a_stack_does_nothing(tmp_path: Path) -> None:
    done = boot(tmp_path, "#!/bin/sh\nexit 22\n")
    assert done.returncode != 0
    assert "BAMBOO_BUCKET" in done.stderr
    assert not (tmp_path / "calls").exists()


def test_unit_is_one_that_systemd_takes() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not on the path")
    said = subprocess.run(
        ["systemd-analyze", "verify", ROOT / "infra" / "bamboo-agent.service"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    ).stderr
    # The agent is not installed here; anything else it says is a fault of the unit.
    complaints = [line for line in said.splitlines() if "is not executable" not in line]
    assert complaints == []
