"""The set-up script, with a stand-in for Python that records what it is asked to do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Programs from standard input are the script's own: the fingerprint runs for real, questions about
# this machine (is torch there, does the index answer) are answered by FAKE_... variables.
FAKE_PYTHON = """#!/bin/sh
case "$1 $2" in
    "-c import venv, ensurepip") exit "${FAKE_NO_VENV:-0}" ;;
    "-c import sys; sys.exit("*) exit "${FAKE_TOO_OLD:-0}" ;;
    "-c "*) echo same ;;
    "-m venv")
        for last in "$@"; do :; done
        echo "$@" >>venv.log
        mkdir -p "$last/bin" && cp "$0" "$last/bin/python" ;;
    "-m pip")
        case "$*" in *--version) exit 0 ;; esac
        echo "$@" >>pip.log
        case "$*" in
            *--dry-run*) exit "${FAKE_NO_LOCAL_WHEEL:-0}" ;;
            *--editable*)
                [ -z "$FAKE_BROKEN" ] || exit 1
                touch "${0%/*}/bamboo" && chmod +x "${0%/*}/bamboo" ;;
        esac ;;
    "- torch=="*) exit "${FAKE_NO_TORCH:-1}" ;;
    "- http"*) exit "${FAKE_NO_INDEX:-0}" ;;
    "- "*) exec "$REAL_PYTHON" "$@" ;;
    *) echo "not expected: $*" >&2; exit 99 ;;
esac
"""


class Project:
    """A folder with what the script reads, and a path with the stand-in and the basics only."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tools = root / "tools"
        (root / "infra").mkdir()
        self.tools.mkdir()
        for name in ("infra/setup.sh", "pyproject.toml", "setup.py", "constraints.txt"):
            shutil.copy(ROOT / name, root / name)
        self.add_tool("python3", FAKE_PYTHON)
        for name in (
            "sh",
            "dirname",
            "cat",
            "grep",
            "rm",
            "mkdir",
            "cp",
            "touch",
            "chmod",
            "uname",
        ):
            found = shutil.which(name)
            assert found is not None, name
            (self.tools / name).symlink_to(found)

    def add_tool(self, name: str, text: str) -> None:
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def set_up(self, **environment: str) -> subprocess.CompletedProcess[str]:
        surroundings = {
            "PATH": str(self.tools),
            "HOME": str(self.root),
            "REAL_PYTHON": sys.executable,
            "BAMBOO_ACCELERATOR": "cpu",
        }
        return subprocess.run(
            [self.root / "infra" / "setup.sh"],
            env=surroundings | environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    @property
    def pip_calls(self) -> list[str]:
        log = self.root / "pip.log"
        calls = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [call.removeprefix("-m pip --disable-pip-version-check -qq ") for call in calls]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


CHECKS = ["infra/setup.sh", "ruff check", "ruff format", "lint-imports", "mypy", "pytest"]
EXTRAS = "local,plot,data,hf,tensorboard,trackio,otlp,dev"
REST = f"install --constraint constraints.txt --editable .[{EXTRAS}]"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="torch for CPU is special on Linux")


@linux_only
def test_takes_a_local_cpu_wheel_first(project: Project) -> None:
    done = project.set_up()
    assert done.returncode == 0, done.stderr
    assert "240 MB (torch for CPU is in pip's local wheels)" in done.stdout
    assert project.pip_calls == [
        "install --dry-run --no-deps --no-index torch==2.13.0",
        "install --no-deps --no-index torch==2.13.0",
        REST,
    ]


@linux_only
def test_takes_the_cpu_index_next(project: Project) -> None:
    done = project.set_up(FAKE_NO_LOCAL_WHEEL="1", BAMBOO_TORCH_CPU_INDEX="http://wheels.test/cpu")
    assert done.returncode == 0, done.stderr
    assert "430 MB" in done.stdout
    assert project.pip_calls[1:] == [
        "install --no-deps --index-url http://wheels.test/cpu torch==2.13.0",
        REST,
    ]


@linux_only
def test_warns_before_it_falls_back_to_gigabytes(project: Project) -> None:
    done = project.set_up(FAKE_NO_LOCAL_WHEEL="1", FAKE_NO_INDEX="1")
    assert done.returncode == 0, done.stderr
    assert "does not answer" in done.stdout
    assert "3 GB" in done.stdout
    assert project.pip_calls[1:] == [REST]


def test_takes_cuda_with_a_driver(project: Project) -> None:
    project.add_tool("nvidia-smi", "#!/bin/sh\nexit 0\n")
    done = project.set_up(BAMBOO_ACCELERATOR="")
    assert done.returncode == 0, done.stderr
    assert "3 GB (torch for CUDA" in done.stdout
    assert project.pip_calls == [REST]


def test_does_not_fetch_torch_twice(project: Project) -> None:
    done = project.set_up(FAKE_NO_TORCH="0")
    assert done.returncode == 0, done.stderr
    assert project.pip_calls == [REST]


def test_is_silent_when_nothing_changed(project: Project) -> None:
    assert project.set_up().returncode == 0
    assert project.pip_calls
    done = project.set_up()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert project.pip_calls == []


@pytest.mark.parametrize(
    "name", ["pyproject.toml", "setup.py", "constraints.txt", "infra/setup.sh"]
)
def test_runs_again_when_what_it_reads_changed(project: Project, name: str) -> None:
    assert project.set_up().returncode == 0
    with (project.root / name).open("a") as file:
        file.write("# changed\n")
    assert project.pip_calls
    assert project.set_up().returncode == 0
    assert REST in project.pip_calls


def test_keeps_a_working_environment(project: Project) -> None:
    assert project.set_up().returncode == 0
    (project.root / ".venv" / ".bamboo-setup").unlink()
    assert project.set_up().returncode == 0
    assert (project.root / "venv.log").read_text() == "-m venv --clear .venv\n"


def test_names_the_missing_venv_package(project: Project) -> None:
    done = project.set_up(FAKE_NO_VENV="1")
    assert done.returncode == 2
    assert "apt-get install python3-venv" in done.stderr
    assert project.pip_calls == []


def test_refuses_an_old_python(project: Project) -> None:
    done = project.set_up(FAKE_TOO_OLD="1")
    assert done.returncode == 2
    assert "no Python >= 3.11 on the path" in done.stderr


@pytest.mark.parametrize("python", ["/nowhere/python3", "false"])
def test_refuses_a_named_python_that_does_not_work(project: Project, python: str) -> None:
    done = project.set_up(PYTHON=python)
    assert done.returncode == 2
    assert f"PYTHON={python} is not a working Python >= 3.11" in done.stderr


def test_refuses_an_unknown_accelerator(project: Project) -> None:
    done = project.set_up(BAMBOO_ACCELERATOR="tpu")
    assert done.returncode == 2
    assert "BAMBOO_ACCELERATOR=tpu" in done.stderr


def test_a_failed_installation_is_tried_again(project: Project) -> None:
    assert project.set_up(FAKE_BROKEN="yes").returncode == 1
    assert project.pip_calls
    assert project.set_up().returncode == 0
    assert REST in project.pip_calls


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("launch", ["infra/setup.sh", "bamboo launch examples/gpt-local.toml"]),
        ("test", ["infra/setup.sh", "ruff check", "ruff format", "lint-imports", "mypy", "pytest"]),
        (
            "check",
            ["infra/setup.sh", "ruff check", "ruff format", "lint-imports", "mypy", "pytest"],
        ),
        ("chaos", ["infra/setup.sh", "pytest -m full"]),
    ],
)
def test_make_sets_up_first_and_then_does_it(target: str, wanted: list[str]) -> None:
    # Without the variables of a make around this test, which would change what it prints.
    quiet = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    printed = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target],
        cwd=ROOT,
        env=quiet,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout
    found = [printed.find(part) for part in wanted]
    assert -1 not in found
    assert found == sorted(found)
