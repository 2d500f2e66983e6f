"""What a run takes along: complete, checked, and all that a worker knows of the user's code."""

import os
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bamboo.errors import InputError
from bamboo.user_code import recording as recording_module
from bamboo.user_code.bundle import DamagedCode, check_identity, load_bundle, write_bundle
from bamboo.user_code.guard import NotTakenAlong
from bamboo.user_code.manifest import Manifest
from tests.user_code.files import bundled, moved, paths, recorded, write


def loaded(tmp_path: Path, files: dict[str, str], model: str = "src/m.py") -> ModuleType:
    """A model's module, loaded from a run's folder after its sources have gone."""
    write(tmp_path, files)
    bundled(tmp_path / model, tmp_path / "run")
    moved(tmp_path / "src")
    return load_bundle(tmp_path / "run")


def test_imports_of_all_kinds_come_from_the_run(tmp_path: Path) -> None:
    module = loaded(
        tmp_path,
        {
            "src/m.py": "from parts import L\nimport lib.deep.one as one\n"
            "def late():\n    import late\n    from lib import never_yet\n"
            "    return late.X + never_yet.Y\n",
            "src/parts.py": "L = 3\n",
            "src/late.py": "X = 1\n",
            "src/lib/__init__.py": "",
            "src/lib/never_yet.py": "from .deep.two import Y\n",
            "src/lib/deep/one.py": "V = 7\n",
            "src/lib/deep/two.py": "Y = 10\n",
        },
    )
    assert (module.L, module.one.V, module.late()) == (3, 7, 11)


def test_a_package_stays_one(tmp_path: Path) -> None:
    module = loaded(
        tmp_path,
        {
            "src/pkg/__init__.py": "",
            "src/pkg/m.py": "from .parts import L\nimport beside\n",
            "src/pkg/parts.py": "from pkg import beside as b\nL = b.B\n",
            "src/pkg/beside.py": "B = 2\n",
        },
        "src/pkg/m.py",
    )
    assert (module.L, module.beside.B, module.__name__) == (2, 2, "pkg.m")


def test_another_folder_on_the_path_comes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "src/else"))
    module = loaded(
        tmp_path,
        {
            "src/job/m.py": "import sys\nsys.path.insert(0, ELSE)\nimport far\n".replace(
                "ELSE", repr(str(tmp_path / "src/else"))
            ),
            "src/else/far/__init__.py": "from .inner import Z\n",
            "src/else/far/inner.py": "Z = 5\n",
        },
        "src/job/m.py",
    )
    assert module.far.Z == 5


OPENED = """
import io, json, os
from pathlib import Path
HERE = Path(__file__).parent
A = (HERE / "conf/a.json").read_text()
with open({absolute!r}) as file: B = file.read()
with io.open(file="c.txt") as file: C = file.read()
D = (HERE / ".." / "beside" / "d.txt").read_text()
E = (Path(__file__).resolve().parent.parent / "beside" / "d.txt").read_text()
descriptor = os.open({absolute!r}, os.O_RDONLY)
F = os.read(descriptor, 9).decode()
os.close(descriptor)
G = os.path.exists({absolute!r}) and Path({absolute!r}).is_file()
"""


def test_files_that_the_model_opens_come_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absolute = tmp_path / "src/far/b.txt"
    write(
        tmp_path,
        {
            "src/job/m.py": OPENED.format(absolute=str(absolute)),
            "src/job/conf/a.json": "a",
            "src/far/b.txt": "b",
            "src/beside/d.txt": "d",
            "src/cwd/c.txt": "c",
        },
    )
    monkeypatch.chdir(tmp_path / "src/cwd")
    manifest = bundled(tmp_path / "src/job/m.py", tmp_path / "run")
    assert len(manifest.files) == 5
    monkeypatch.chdir(tmp_path)
    moved(tmp_path / "src")
    module = load_bundle(tmp_path / "run")
    values = [getattr(module, name) for name in "ABCDEFG"]
    assert values == ["a", "b", "c", "d", "d", "b", True]


WRITES = """
from pathlib import Path
CACHE = Path({cache!r})
CACHE.write_text("x")
X = CACHE.read_text()
"""


def test_what_the_model_wrote_itself_is_no_part_of_it(tmp_path: Path) -> None:
    write(tmp_path, {"src/m.py": WRITES.format(cache=str(tmp_path / "cache.txt"))})
    manifest = bundled(tmp_path / "src/m.py", tmp_path / "run")
    assert paths(manifest) == ["0/m.py"]
    assert load_bundle(tmp_path / "run").X == "x"


def test_local_code_from_elsewhere_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, {"else/stray.py": "X = 1\n"})
    module = loaded(
        tmp_path,
        {
            "src/m.py": "import importlib, sys\ndef late(folder):\n    sys.path.append(folder)\n"
            "    return importlib.import_module('str' + 'ay')\n"
        },
    )
    with pytest.raises(NotTakenAlong, match=r"m\.py, line 4, imports stray from .*else/stray\.py"):
        module.late(str(tmp_path / "else"))


READS_LATE = """
from pathlib import Path
def late(path):
    try:
        return Path(path).read_text()
    except OSError:
        return "none"
"""


def test_a_file_from_elsewhere_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, {"else/w.txt": "1"})
    module = loaded(tmp_path, {"src/m.py": READS_LATE})
    with pytest.raises(NotTakenAlong, match=r"m\.py, line 5, opens .*else/w\.txt"):
        module.late(tmp_path / "else/w.txt")
    assert module.late(tmp_path / "else/missing.txt") == "none", "as it would be anywhere"


def test_a_file_edited_while_the_job_is_looked_at_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"m.py": "X = 1\n"})
    manifest = recorded(tmp_path / "m.py")
    write(tmp_path, {"m.py": "X = 2\n"})
    with pytest.raises(InputError, match=r"m\.py was changed while the job was looked at"):
        write_bundle(manifest, tmp_path / "run")


@pytest.mark.parametrize("name", ["0/m.py", "0/parts.py"])
@pytest.mark.parametrize("change", ["edited", "gone"])
def test_a_changed_file_is_named(tmp_path: Path, name: str, change: str) -> None:
    write(tmp_path, {"src/m.py": "import parts\n", "src/parts.py": ""})
    identity = bundled(tmp_path / "src/m.py", tmp_path / "run").identity()
    check_identity(tmp_path / "run", identity)
    file = tmp_path / "run" / name
    file.unlink()
    if change == "edited":
        file.write_text("X = 2\n", encoding="utf-8")
    what = "was changed" if change == "edited" else "is missing or no file"
    with pytest.raises(DamagedCode, match=rf"run/{name} {what} after the launch"):
        check_identity(tmp_path / "run", identity)


def test_the_versions_of_what_is_imported_are_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"m.py": "import numpy, os\ndef f():\n    import yaml\n"})
    manifest = bundled(tmp_path / "m.py", tmp_path / "run")
    assert dict(manifest.requires) == {
        "PyYAML": metadata.version("PyYAML"),
        "numpy": metadata.version("numpy"),
    }
    monkeypatch.setattr(metadata, "version", lambda name: "0.0" if name == "numpy" else "6")
    with pytest.raises(DamagedCode, match=r"imports PyYAML .*, and 6 is installed here"):
        check_identity(tmp_path / "run", manifest.identity())


@pytest.mark.parametrize(("for_bamboo", "required"), [(True, set()), (False, {"certifi"})])
def test_what_is_imported_for_bamboo_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, for_bamboo: bool, required: set[str]
) -> None:
    """As by torch's compiler, when a module is traced."""
    monkeypatch.delitem(sys.modules, "certifi", raising=False)
    monkeypatch.setattr(recording_module, "_for_bamboo", set())
    around = "importing_for_bamboo" if for_bamboo else "nullcontext"
    text = (
        "from contextlib import nullcontext\nfrom importlib import import_module\n"
        "from bamboo.user_code.recording import importing_for_bamboo\n"
        f"with {around}():\n    import_module('certifi')\n"
    )
    write(tmp_path, {"m.py": text})
    assert set(bundled(tmp_path / "m.py", tmp_path / "run").requires) == required


def test_identity_is_content_and_not_place(tmp_path: Path) -> None:
    for place in ("one", "two"):
        write(tmp_path / place, {"m.py": "import parts\n", "parts.py": "X = 1\n"})
    one, two = (recorded(tmp_path / place / "m.py").identity() for place in ("one", "two"))
    assert one == two


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.update(schema_version=2),
        lambda raw: raw.pop("files"),
        lambda raw: raw["files"][0].update(path="../m.py"),
        lambda raw: raw["files"][0].update(path="/etc/passwd"),
        lambda raw: raw["files"][0].pop("sha256"),
        lambda raw: raw.update(search=[3]),
        lambda raw: raw.update(entry_path="0/other.py"),
        lambda raw: raw.update(requires=[]),
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path: Path, change: Any) -> None:
    write(tmp_path, {"m.py": ""})
    raw = recorded(tmp_path / "m.py").to_dict()
    assert Manifest.from_dict(raw).to_dict() == raw
    change(raw)
    with pytest.raises(ValueError, match=r"."):
        Manifest.from_dict(raw)


def test_a_file_too_large_to_take_along_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_module, "MOST_BYTES", 100)
    write(tmp_path, {"m.py": "import pathlib\npathlib.Path('w').read_text()\n", "w": "x" * 101})
    with pytest.raises(InputError, match=r"/w has 101 bytes, and the model reads it"):
        recorded(tmp_path / "m.py")


def test_the_user_code_is_no_code_of_bambo_or_python(tmp_path: Path) -> None:
    write(tmp_path, {"m.py": "import json, bamboo.models, yaml, wave\n"})
    sys.modules.pop("wave", None)
    assert paths(recorded(tmp_path / "m.py")) == ["0/m.py"]


def test_a_pipe_in_the_place_of_a_file_is_named_at_once(tmp_path: Path) -> None:
    write(tmp_path, {"m.py": ""})
    identity = bundled(tmp_path / "m.py", tmp_path / "run").identity()
    for name in ("0/m.py", "manifest.json"):
        (tmp_path / "run" / name).unlink()
        os.mkfifo(tmp_path / "run" / name)
        with pytest.raises(DamagedCode, match=name):
            check_identity(tmp_path / "run", identity)


def test_a_run_of_a_release_without_code_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"m.py": ""})
    bundled(tmp_path / "m.py", tmp_path / "run")
    with pytest.raises(DamagedCode, match="of an older release"):
        check_identity(tmp_path / "run", {})
