"""The first boot of a worker: what it fetches and starts, and that whatever fails ends it."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.fakes import Machine

RECORDED = ("install", "systemctl", "useradd", "shutdown", "sleep", "chmod")
METADATA = """
case "${@: -1}" in
    */api/token) echo token ;;
    */tags/instance/bamboo:run) echo "$RUN" ;;
    */instance-id) echo i-1 ;;
    */placement/region) echo us-east-1 ;;
    *) exit 22 ;;
esac
"""
SECRET = json.dumps({"url": "rediss://worker:pass@10.0.0.4:6379/0", "ca_pem": "PEM\nLINES\n"})
NAME = "bamboo_train-0.1.0-py3-none-any.whl"
WHEEL = f"wheels/{hashlib.sha256(b'wheel').hexdigest()}/{NAME}"
NAMES_WHEEL = f'BAMBOO_WHEEL="{WHEEL}"'
NAMES_TORCH = 'BAMBOO_TORCH="2.13.0+cpu"'
PLAIN = f"{NAMES_TORCH}\n{NAMES_WHEEL}"
AWS = f"""
case "$1 $2" in
    "secretsmanager get-secret-value") printf '%s' '{SECRET}' ;;
    "s3 cp")
        case "$4" in
            */agent.env) echo '{PLAIN}' >"$5" ;;
            *.whl) printf wheel >"$5" ;;
            */constraints.txt) printf 'numpy==2\ntorch==2.13.0\n' >"$5" ;;
            *) echo "of $4" >"$5" ;;
        esac ;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path, real=("cat", "grep", "sed", "sha256sum", "timeout", "getent", "mkdir"))
    for name in RECORDED:
        made.command(name)
    made.command("curl", METADATA)
    made.command("aws", AWS)
    for folder in ("opt/venv/bin", "etc", "units"):
        (tmp_path / folder).mkdir(parents=True)
    return made


def boot(machine: Machine, **environment: str) -> subprocess.CompletedProcess[str]:
    folders = {
        "BAMBOO_HOME_DIR": str(machine.folder / "opt"),
        "BAMBOO_ETC_DIR": str(machine.folder / "etc"),
        "BAMBOO_UNITS_DIR": str(machine.folder / "units"),
        "BAMBOO_BUCKET": "bucket",
        "RUN": "r1",
    }
    return machine.run("boot.sh", **(folders | environment))


def with_python(machine: Machine) -> None:
    """An interpreter that makes no environment, and the one that would be in it."""
    real = sys.executable  # one on the path may be a script that looks for others there
    machine.command("python3", f'case "$*" in *" venv "*) exit 0 ;; esac\nexec {real} "$@"')
    machine.command("venv-python")
    (machine.folder / "opt/venv/bin/python").symlink_to(machine.bin / "venv-python")


def with_settings(machine: Machine, *lines: str) -> None:
    """Another agent.env than that of a plain run."""
    text = "\n".join(lines)
    machine.command("aws", f"""case "$4" in *agent.env) echo '{text}' >"$5"; exit ;; esac\n{AWS}""")


def test_a_whole_boot(machine: Machine) -> None:
    with_python(machine)
    done = boot(machine, BAMBOO_STORE_SECRET="arn:secret")
    assert done.returncode == 0, done.stderr
    assert machine.calls("shutdown") == [
        "shutdown -h +45 bamboo: the boot takes too long",
        "shutdown -c",
    ]
    assert machine.calls("systemctl") == [
        "systemctl daemon-reload",
        "systemctl enable --now bamboo-deadman.timer bamboo-logs.timer",
        "systemctl daemon-reload",
        "systemctl start bamboo-agent.service",
    ]
    torch, installed = machine.calls("venv-python")
    assert torch.endswith("--index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu")
    constraints = machine.folder / "opt" / "constraints.txt"
    assert constraints.read_text() == "numpy==2\ntorch==2.13.0+cpu\n"
    assert "--constraint" in installed
    assert installed.endswith(f"opt/{NAME}")
    assert f"aws s3 cp --only-show-errors s3://bucket/{WHEEL} " in "\n".join(machine.calls("aws"))
    etc = machine.folder / "etc"
    assert (etc / "agent.env").read_text() == f"{PLAIN}\n"
    assert (etc / "agent.env").stat().st_mode & 0o777 == 0o600
    units = {path.name for path in (machine.folder / "units").iterdir()}
    assert units == {
        *("bamboo-deadman.service", "bamboo-deadman.timer"),
        *("bamboo-logs.service", "bamboo-logs.timer", "bamboo-agent.service"),
    }


def test_the_store_s_login_goes_into_a_file_of_root_and_nowhere_else(machine: Machine) -> None:
    with_python(machine)
    done = boot(machine, BAMBOO_STORE_SECRET="arn:secret")
    etc = machine.folder / "etc"
    authority = etc / "store-ca.pem"
    assert authority.read_text() == "PEM\nLINES\n"
    assert (etc / "store.env").read_text().splitlines() == [
        f'BAMBOO_REDIS_CA="{authority}"',
        f'BAMBOO_REDIS_URL="rediss://worker:pass@10.0.0.4:6379/0?ssl_ca_certs={authority}"',
    ]
    assert (etc / "store.env").stat().st_mode & 0o777 == 0o600
    assert "pass" not in "".join([*machine.calls(), done.stdout, done.stderr])


def test_the_certificate_of_another_store_comes_with_the_run(machine: Machine) -> None:
    with_python(machine)
    told = 'BAMBOO_REDIS_CA="/etc/bamboo/store-ca.pem"'
    with_settings(machine, told, PLAIN)
    assert boot(machine).returncode == 0
    authority = machine.folder / "etc" / "store-ca.pem"
    assert authority.read_text() == "of s3://bucket/runs/r1/store-ca.pem\n"


def test_a_boot_without_the_stack_s_store_asks_for_no_secret(machine: Machine) -> None:
    with_python(machine)
    assert boot(machine).returncode == 0
    assert not any("secretsmanager" in call for call in machine.calls())
    assert not (machine.folder / "etc" / "store.env").exists()


@pytest.mark.parametrize(
    ("command", "does"),
    [
        ("curl", "exit 22"),
        ("aws", "exit 1"),
        ("aws", 'case "$4" in *agent.env) exit 1 ;; esac'),
        ("systemctl", "exit 1"),
        ("venv-python", "exit 1"),
    ],
)
def test_whatever_fails_powers_off(machine: Machine, command: str, does: str) -> None:
    with_python(machine)
    machine.command(command, does)
    done = boot(machine, BAMBOO_STORE_SECRET="arn:secret")
    assert done.returncode != 0
    assert "this instance powers off" in done.stderr
    assert machine.calls("shutdown")[-1] == "shutdown -h +2"
    assert not any("bamboo-agent.service" in call for call in machine.calls("systemctl")[:-1])


@pytest.mark.parametrize(
    "line",
    [
        "",
        'BAMBOO_WHEEL=""',
        f'BAMBOO_WHEEL="wheels/{NAME}"',
        f'BAMBOO_WHEEL="{WHEEL.replace("wheels", "runs/r2")}"',
        f'BAMBOO_WHEEL="{WHEEL.replace(NAME, "../../" + NAME)}"',
        f'BAMBOO_WHEEL="{WHEEL.replace(NAME, "other.whl")}"',
        f'BAMBOO_WHEEL="{WHEEL[:-1]}l"; reboot "',
        f"{NAMES_WHEEL}\n{NAMES_WHEEL}",
        f'BAMBOO_WHEEL="{WHEEL.replace(WHEEL[7:71], "0" * 64)}"',
    ],
)
def test_what_is_not_the_wheel_of_the_launcher_is_not_installed(
    machine: Machine, line: str
) -> None:
    with_python(machine)
    with_settings(machine, NAMES_TORCH, line)
    assert boot(machine).returncode != 0
    assert machine.calls("venv-python") == []
    assert machine.calls("shutdown")[-1] == "shutdown -h +2"


def test_a_build_of_pypi_s_own_comes_from_there(machine: Machine) -> None:
    with_python(machine)
    with_settings(machine, 'BAMBOO_TORCH="2.12.1"', NAMES_WHEEL)
    assert boot(machine).returncode == 0
    (installed,) = machine.calls("venv-python")
    assert "--index-url" not in installed
    constraints = machine.folder / "opt" / "constraints.txt"
    assert constraints.read_text() == "numpy==2\ntorch==2.12.1\n"


@pytest.mark.parametrize("torch", ["", "2", "2.13.0+", "2.13.0/e; reboot", "2.13.0+../x", "x"])
def test_what_is_no_version_of_torch_is_not_installed(machine: Machine, torch: str) -> None:
    with_python(machine)
    with_settings(machine, f'BAMBOO_TORCH="{torch}"', NAMES_WHEEL)
    assert boot(machine).returncode != 0
    assert machine.calls("venv-python") == []


def test_an_image_without_a_python_of_use_is_named(machine: Machine) -> None:
    with_python(machine)
    machine.command("python3", 'case "$*" in *version_info*) exit 1 ;; esac')
    done = boot(machine)
    assert done.returncode != 0
    assert "the image has no Python >= 3.11" in done.stderr
    assert machine.calls("shutdown")[-1] == "shutdown -h +2"


def test_what_makes_environments_is_installed_where_it_lacks(machine: Machine) -> None:
    with_python(machine)
    path = machine.bin / "python3"
    path.write_text(
        path.read_text().replace("exec ", 'case "$*" in *ensurepip*) exit 1; esac\nexec ')
    )
    machine.command("apt-get")
    assert boot(machine).returncode == 0
    assert machine.calls("apt-get") == [
        "apt-get update -qq",
        "apt-get install -qq -y python3-venv",
    ]


def test_a_store_that_says_nothing_yet_is_asked_again(machine: Machine) -> None:
    with_python(machine)
    machine.command(
        "aws",
        f"if [[ $1 == secretsmanager && ! -e asked ]]; then echo >asked; exit 255; fi\n{AWS}",
    )
    assert boot(machine, BAMBOO_STORE_SECRET="arn:secret").returncode == 0
    assert machine.calls("sleep") == ["sleep 15"]


@pytest.mark.parametrize("run", ["", "../../boot", "a b", 'a"b', "Ab"])
def test_a_tag_that_is_no_run_powers_off(machine: Machine, run: str) -> None:
    done = boot(machine, RUN=run)
    assert done.returncode != 0
    assert machine.calls("shutdown")[-1] == "shutdown -h +2"
    assert machine.calls("aws") == []


def test_a_boot_outside_a_stack_does_nothing(machine: Machine) -> None:
    done = machine.run("boot.sh")
    assert done.returncode != 0
    assert "BAMBOO_BUCKET" in done.stderr
    assert machine.calls() == []
