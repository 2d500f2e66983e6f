"""The wheel that instances install holds every file of the packages: code, Lua, catalogues."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.tidy.tree import PRODUCT, ROOT, paths


def test_wheel_holds_every_file_of_the_packages(tmp_path: Path) -> None:
    product = [p for p in paths() if p.startswith(PRODUCT)]
    for name in (*product, "pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "tree" / name)
    # Without isolation: the set-up installed the build's only requirement already.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), "."],
        cwd=tmp_path / "tree",
        check=True,
        timeout=100,
    )
    (wheel,) = tmp_path.glob("bamboo_train-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    assert set(product) - inside == set()
    assert any(name.endswith("licenses/LICENSE") for name in inside)
    assert any(name.endswith("entry_points.txt") for name in inside)
