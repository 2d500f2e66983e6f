"""A model file loads as Python would load it."""

import sys
from pathlib import Path

import pytest

from bamboo.errors import InputError
from bamboo.user_code.loading import entry_of, load_entry
from tests.user_code.files import write


def test_modules_beside_the_file_are_found(tmp_path: Path) -> None:
    write(tmp_path, {"m.py": "from parts import L\n", "parts.py": "L = 3\n"})
    module = load_entry(entry_of(tmp_path / "m.py"))
    assert (module.L, module.__name__) == (3, "m")
    assert sys.modules["m"] is module


@pytest.mark.parametrize("line", ["import cli", "from cli.parts import L", "import cloud.x"])
def test_a_package_of_the_users_that_is_called_as_one_of_ours_is_refused_by_name(
    tmp_path: Path, line: str
) -> None:
    files = {"m.py": f"{line}\n", "cli/__init__.py": "", "cli/parts.py": "L = 3\n"}
    write(tmp_path, files | {"cloud/__init__.py": "", "cloud/x.py": ""})
    with pytest.raises(InputError, match=r"m\.py imports (cli|cloud) from .*; rename yours"):
        load_entry(entry_of(tmp_path / "m.py"))
    beside = {
        "n.py": "from helpers.deep import L\n",
        "helpers/deep.py": "from . import far\nL = 3\n",
    }
    write(tmp_path, beside | {"helpers/far.py": f"import n, json\n{line}\n"})
    with pytest.raises(InputError, match=r"far\.py imports (cli|cloud) from .*; rename yours"):
        load_entry(entry_of(tmp_path / "n.py"))


def test_one_that_the_model_does_not_import_is_no_hindrance(tmp_path: Path) -> None:
    write(tmp_path, {"m.py": "L = 3\n", "cli/__init__.py": ""})
    assert load_entry(entry_of(tmp_path / "m.py")).L == 3


def test_a_file_in_a_package_has_its_relative_imports(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "pkg/__init__.py": "A = 1\n",
            "pkg/sub/__init__.py": "",
            "pkg/sub/m.py": "from ..parts import L\nfrom .. import A\nimport beside\n",
            "pkg/sub/beside.py": "",
            "pkg/parts.py": "L = 3\n",
        },
    )
    module = load_entry(entry_of(tmp_path / "pkg/sub/m.py"))
    assert (module.L, module.A, module.__name__) == (3, 1, "pkg.sub.m")


def test_a_package_that_imports_the_model_executes_it_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "pkg/__init__.py": "from .m import COUNT\n",
            "pkg/m.py": "import counted\ncounted.N += 1\nCOUNT = counted.N\n",
            "pkg/counted.py": "N = 0\n",
        },
    )
    assert load_entry(entry_of(tmp_path / "pkg/m.py")).COUNT == 1


@pytest.mark.parametrize("name", ["json.py", "torch.py", "my-model.py", "a.b.py"])
def test_a_name_that_python_has_already_or_cannot_import_is_no_hindrance(
    tmp_path: Path, name: str
) -> None:
    write(tmp_path, {name: "HERE = 1\nclass C: pass\n"})
    before = sys.modules.get(name.removesuffix(".py"))
    module = load_entry(entry_of(tmp_path / name))
    assert module.HERE == 1
    assert sys.modules[module.C.__module__] is module, "so that pickle, dataclasses and such work"
    if before is not None:
        assert sys.modules[name.removesuffix(".py")] is before


def test_each_load_executes_the_file_and_its_modules_anew(tmp_path: Path) -> None:
    write(tmp_path, {"m.py": "from parts import L\n", "parts.py": "L = 3\n"})
    load_entry(entry_of(tmp_path / "m.py"))
    other = tmp_path / "other"
    write(other, {"m.py": "from parts import L\n", "parts.py": "L = 44\n"})
    assert load_entry(entry_of(other / "m.py")).L == 44
    assert str(tmp_path) not in sys.path


def test_a_file_that_fails_leaves_no_module(tmp_path: Path) -> None:
    write(tmp_path, {"broken.py": "1 / 0\n"})
    with pytest.raises(ZeroDivisionError):
        load_entry(entry_of(tmp_path / "broken.py"))
    assert "broken" not in sys.modules
    with pytest.raises(FileNotFoundError):
        load_entry(entry_of(tmp_path / "missing.py"))
