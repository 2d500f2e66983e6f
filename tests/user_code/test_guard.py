"""What the user's code looks at is as it was at launch, or refused by name."""

import os
import py_compile
import subprocess
import sys
import tempfile
from pathlib import Path

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

from bamboo.errors import InputError
from bamboo.user_code.bundle import check_identity, load_bundle
from bamboo.user_code.guard import NotTakenAlong, _status_of, unguarded
from bamboo.user_code.local import leave_data
from cloud.ec2.s3 import S3Store
from tests.user_code.files import bundled, moved, paths, recorded, write

READS_ENVIRONMENT = """
import os
A = os.environ.get("MODEL_A", "none")
B = "MODEL_B" in os.environ
C = os.getenv("MODEL_C")
D = os.environ.setdefault("MODEL_D", "own")
def again():
    return os.environ["MODEL_D"], os.environ["MODEL_A"]
def late():
    return os.environ.get("MODEL_LATE", "none")
def names():
    return sorted(os.environ)
"""


def test_environment_variables_are_those_of_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_A", "secret")
    monkeypatch.delenv("MODEL_D", raising=False)
    write(tmp_path, {"src/m.py": READS_ENVIRONMENT})
    manifest = bundled(tmp_path / "src/m.py", tmp_path / "run")
    read = {"MODEL_A": "secret", "MODEL_B": None, "MODEL_C": None, "MODEL_D": None}
    assert dict(manifest.environment) == read
    assert "secret" not in str(manifest.identity())
    assert (tmp_path / "run/manifest.json").stat().st_mode & 0o77 == 0
    for name in ("MODEL_A", "MODEL_B", "MODEL_C", "MODEL_LATE"):
        monkeypatch.setenv(name, "other")
    monkeypatch.delenv("MODEL_D", raising=False)
    module = load_bundle(tmp_path / "run")
    assert (module.A, module.B, module.C, module.D) == ("secret", False, None, "own")
    assert module.again() == ("own", "secret")
    with pytest.raises(NotTakenAlong, match=r"m\.py, line 10, reads the environment variable MODE"):
        module.late()
    with pytest.raises(NotTakenAlong, match=r"m\.py, line 12, reads the whole environment"):
        module.names()


def test_a_variable_of_the_launch_is_told_and_is_no_environment_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its name: one that runs code in an interpreter that is started later runs none."""
    names = ("PYTHONWARNINGS", "BROWSER", "LD_PRELOAD")
    lines = "\n".join(f"{name} = os.environ.get({name!r})" for name in names)
    write(tmp_path, {"src/m.py": f"import os\n{lines}\n"})
    for name in names:
        monkeypatch.setenv(name, f"of {name}")
    bundled(tmp_path / "src/m.py", tmp_path / "run")
    for name in names:
        monkeypatch.delenv(name)
    module = load_bundle(tmp_path / "run")
    assert [getattr(module, name) for name in names] == [f"of {name}" for name in names]
    look = f"import os; print([name for name in {names!r} if name in os.environ])"
    told = subprocess.check_output([sys.executable, "-c", look], text=True, timeout=30)
    assert told == "[]\n"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import os\nX = dict(os.environ)\n", r"line 2, reads the whole environment"),
        ("import os\nX = len(list(os.environ.items()))\n", r"line 2, reads the whole environment"),
        (
            "from pathlib import Path\nP = Path('n.txt')\nN = int(P.read_text()) + 1\n"
            "P.write_text(str(N))\n",
            r"line 4, writes .*n\.txt, which the model reads",
        ),
        (
            "from pathlib import Path\nwith open('n.txt', 'a') as file:\n    file.write('x')\n"
            "N = len(Path('n.txt').read_text())\n",
            r"line 4, writes .*n\.txt, which the model reads, or reads what it added to",
        ),
        (
            "import os\nwith open('n.txt', 'a') as file:\n    file.write('x')\n"
            "N = os.path.getsize('n.txt')\n",
            r"line 4, writes .*n\.txt, which the model reads, or reads what it added to",
        ),
        (
            "with open('n.txt', 'a+') as file:\n    file.write('x')\n",
            r"line 1, writes .*n\.txt",
        ),
    ],
)
def test_what_no_run_can_take_along_is_refused_at_launch(
    tmp_path: Path, source: str, message: str
) -> None:
    write(tmp_path, {"m.py": source, "n.txt": "1"})
    with pytest.raises(InputError, match=message):
        recorded(tmp_path / "m.py")


def test_a_thread_that_a_library_begins_for_bamboo_is_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of one's own model goes to a bucket by threads of boto3, which open its file."""
    write(tmp_path, {"src/m.py": "A = 1\n", "state": "weights"})
    bundled(tmp_path / "src/m.py", tmp_path / "run")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        store = S3Store(client, bucket="bucket", prefix="runs/r")
        load_bundle(tmp_path / "run")
        store.put_file("state", tmp_path / "state")
        store.fetch("state", tmp_path / "back")
    unguarded()
    assert (tmp_path / "back").read_text() == "weights"


LOOKS = """
import os, glob
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
HERE = Path(__file__).parent
A = os.path.exists("half")
B = Path({folder!r}).is_dir()
C = (HERE / "conf").is_dir() and (HERE / "conf").resolve().name
D = os.path.lexists({folder!r} + "/link")
E = os.getcwd()
with ThreadPoolExecutor() as pool:
    F = list(pool.map(Path.read_text, [Path({folder!r}) / "f.txt"]))
    G = list(pool.map(os.environ.get, ["MODEL_G"]))
try:
    H = Path("cache").read_text()
except FileNotFoundError:
    H = "made"
    Path("cache").write_text(H)
I = Path("cache").read_text()
os.environ.pop("MODEL_I", None)
def looks():
    return os.path.exists({folder!r} + "/new")
def lists():
    return len(os.listdir({folder!r})), glob.glob({folder!r} + "/../*")
"""


def test_what_was_there_and_what_was_not_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "src/far"
    source = LOOKS.format(folder=str(folder))
    write(tmp_path, {"src/job/m.py": source, "src/far/f.txt": "f", "src/job/conf/x": ""})
    (tmp_path / "src/cwd").mkdir()
    monkeypatch.chdir(tmp_path / "src/cwd")
    monkeypatch.setenv("MODEL_G", "g")
    monkeypatch.setenv("MODEL_I", "i")
    bundled(tmp_path / "src/job/m.py", tmp_path / "run")
    names = "ABCDEFGHI"
    monkeypatch.chdir(tmp_path)
    for name in ("half", "src/cwd/half", "src/far/link", "src/far/new"):
        (tmp_path / name).write_text("there by now")
    (folder / "f.txt").write_text("edited")
    monkeypatch.setenv("MODEL_G", "other")
    monkeypatch.delenv("MODEL_I", raising=False)
    module = load_bundle(tmp_path / "run")
    cwd = str(tmp_path / "src/cwd")
    expected = [False, True, "conf", False, cwd, ["f"], ["g"], "made", "made"]
    assert [getattr(module, name) for name in names] == expected
    with pytest.raises(NotTakenAlong, match=r"looks whether .*far/new is there"):
        module.looks()
    with pytest.raises(NotTakenAlong, match=r"m\.py, line \d+, lists the folder .*src: a run"):
        module.lists()


def test_a_folder_beside_the_model_hides_no_installed_package(tmp_path: Path) -> None:
    write(tmp_path, {"src/m.py": YAML, "src/yaml/v.txt": "[1]"})
    bundled(tmp_path / "src/m.py", tmp_path / "run")
    moved(tmp_path / "src")
    for name in [name for name in sys.modules if name.partition(".")[0] == "yaml"]:
        del sys.modules[name]
    assert load_bundle(tmp_path / "run").X == [1]


YAML = """
from pathlib import Path
import yaml
X = yaml.safe_load((Path(__file__).parent / "yaml/v.txt").read_text())
"""


def test_a_module_without_its_source_comes_along(tmp_path: Path) -> None:
    write(tmp_path, {"src/m.py": "import compiled\nX = compiled.X\n", "src/compiled.py": "X = 5\n"})
    py_compile.compile(str(tmp_path / "src/compiled.py"), cfile=str(tmp_path / "src/compiled.pyc"))
    (tmp_path / "src/compiled.py").unlink()
    manifest = bundled(tmp_path / "src/m.py", tmp_path / "run")
    assert paths(manifest) == ["0/compiled.pyc", "0/m.py"]
    moved(tmp_path / "src")
    assert load_bundle(tmp_path / "run").X == 5


def test_bytecode_and_files_beside_the_listed_ones_are_not_loaded(tmp_path: Path) -> None:
    write(
        tmp_path, {"src/m.py": "from parts import X\nimport importlib\n", "src/parts.py": "X = 1\n"}
    )
    manifest = bundled(tmp_path / "src/m.py", tmp_path / "run")
    write(tmp_path, {"planted.py": "X = 2\n"})
    compiled = tmp_path / "run/0/__pycache__" / f"parts.{sys.implementation.cache_tag}.pyc"
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(tmp_path / "planted.py"), str(compiled), invalidation_mode=mode)
    module = load_bundle(tmp_path / "run")
    assert module.X == 1
    check_identity(tmp_path / "run", manifest.identity())
    write(tmp_path, {"run/0/more.py": "X = 3\n"})
    with pytest.raises(NotTakenAlong, match=r"0/more\.py is no file that the run took along"):
        module.importlib.import_module("more")


MAKES_FOLDERS = """
import os, pathlib, tempfile
FIRST = not os.path.isdir("kept")
if FIRST:
    os.mkdir("kept")
EMPTY = not os.path.exists("kept/x")
with open("kept/x", "w") as out:
    out.write("1")
os.makedirs("deep/er", exist_ok=True)
pathlib.Path(__file__).with_name("beside").mkdir(exist_ok=True)
pathlib.Path("old").mkdir(exist_ok=True)
OLD = os.path.exists("old/y")
os.makedirs(os.path.join(tempfile.mkdtemp(), "a/b"))
def again():
    os.mkdir("kept")
"""


def test_folders_that_the_code_makes_are_as_new_on_every_node(tmp_path: Path) -> None:
    write(tmp_path, {"m.py": MAKES_FOLDERS, "old/y": "y"})
    bundled(tmp_path / "m.py", tmp_path / "run")
    for _ in range(2):  # two nodes of one machine
        module = load_bundle(tmp_path / "run")
        assert (module.FIRST, module.EMPTY, module.OLD) == (True, True, True)
        with pytest.raises(FileExistsError):
            module.again()


@given(st.integers(0, 1 << 61))
def test_a_time_of_a_file_has_the_bits_that_the_interpreter_gives_it(changed_ns: int) -> None:
    with tempfile.NamedTemporaryFile() as file:
        os.utime(file.name, ns=(changed_ns, changed_ns))
        there = os.stat(file.name)
        told = _status_of(there.st_mode, there.st_ino, there.st_dev, 0, there.st_mtime_ns)
        assert (told.st_mtime, told.st_mtime_ns) == (there.st_mtime, there.st_mtime_ns)


READS_DATA = """
import os
from pathlib import Path
NAMES = sorted(os.listdir("link"))
def read(name):
    path = Path("link") / name
    return path.read_text() if path.exists() else "none"
def helper():
    import sys
    sys.path.insert(0, "link")
    import helper
    return helper.X
"""


def test_data_stay_where_they_are_and_modules_among_them_are_code(tmp_path: Path) -> None:
    write(tmp_path, {"src/m.py": READS_DATA, "data/a.txt": "1", "data/helper.py": "X = 1\n"})
    write(tmp_path, {"beside/b.txt": "2"})
    (tmp_path / "link").symlink_to(tmp_path / "data")
    leave_data(tmp_path / "link")
    manifest = bundled(tmp_path / "src/m.py", tmp_path / "run")
    assert paths(manifest) == ["0/m.py"]
    module = load_bundle(tmp_path / "run")
    assert module.NAMES == ["a.txt", "helper.py"]
    write(tmp_path, {"data/new.txt": "3"})
    assert [module.read(name) for name in ("a.txt", "new.txt", "no.txt")] == ["1", "3", "none"]
    with pytest.raises(NotTakenAlong, match=r"line 7, .*beside/b\.txt"):
        module.read("../beside/b.txt")
    with pytest.raises(NotTakenAlong, match=r"imports helper from .*, which the run did not take"):
        module.helper()
