"""The wheel that instances install holds every file of the packages: code, Lua, catalogues; and it
takes no name but `bamboo` from anybody."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bamboo.sites.account.wheel import placed
from tests.tidy.tree import PRODUCT, ROOT, paths

PRODUCTS = [path for path in paths() if path.startswith(PRODUCT)]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    for name in (*PRODUCTS, "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "tree" / name)
    # Without isolation: the set-up installed the build's only requirement already.
    subprocess.run(
        [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), "."],
        cwd=folder / "tree",
        check=True,
        timeout=100,
    )
    (made,) = folder.glob("bamboo_train-*.whl")
    return made


def test_it_holds_every_file_of_the_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    assert {placed(name) for name in PRODUCTS} - inside == set()
    assert any(name.endswith("licenses/LICENSE") for name in inside)
    assert any(name.endswith("entry_points.txt") for name in inside)
    about = {name for name in inside if ".dist-info/" in name}
    assert {name.split("/")[0] for name in inside - about} == {"bamboo"}


def test_beside_a_package_that_owns_the_names_of_ours_each_has_its_own(
    wheel: Path, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    install = [*PIP, "install", "--no-deps", "--no-index", "--target", str(there), str(wheel)]
    subprocess.run(install, check=True, timeout=100)
    for name in ("cli", "cloud"):
        (there / name).mkdir()
        (there / name / "__init__.py").write_text("WHOSE = 'another one'\n")
    looks = (
        "import bamboo.loading, cli, cloud; print(cli.WHOSE, '|', cloud.WHOSE);"
        "print(cli.__file__, bamboo.__file__)"
    )
    # As the script and every process that it starts begin.
    runs = "from bamboo.loading import main; raise SystemExit(main(['cli.main', 'list']))"
    program = (
        "import contextlib, cli; from bamboo import api; from bamboo.errors import InputError\n"
        "with contextlib.suppress(InputError): api.open_run()\n"
        "import cloud; print(cli.WHOSE, hasattr(cloud, 'WHOSE'))"
    )
    environment = {**os.environ, "PYTHONPATH": str(there), "BAMBOO_HOME": str(tmp_path / "runs")}
    said = [
        subprocess.run(
            [sys.executable, "-P", "-c", code],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        for code in (looks, runs, program)
    ]
    assert [done.returncode for done in said] == [0, 0, 0], said
    assert said[0].stdout.startswith("another one | another one\n"), said[0]
    assert str(there / "cli" / "__init__.py") in said[0].stdout
    assert "no run" in said[1].stdout + said[1].stderr, said[1]
    assert said[2].stdout == "another one False\n", said[2]
