"""The first boot of a worker: what it fetches and starts, and that whatever fails ends it."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from cloud.ec2.user_data import agent_names
from tests.cloud.ec2.test_ec2_requests import HOSTILE_NAMES
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
NAME = "bamboo_train-0.1.0-py3-none-any.whl"
WHEEL = f"wheels/{hashlib.sha256(b'wheel').hexdigest()}/{NAME}"
NAMES_WHEEL = f'BAMBOO_WHEEL="{WHEEL}"'
NAMES_TORCH = 'BAMBOO_TORCH="2.13.0+cpu"'
NAMES_RUN = 'BAMBOO_RUN="r1"'
PLAIN = f"{NAMES_RUN}\n{NAMES_TORCH}\n{NAMES_WHEEL}"
NAMES = "\n".join(agent_names())
AWS = f"""
case "$1 $2" in
    "s3 cp")
        case "$4" in
            */boot/agent_names.txt) echo '{NAMES}' >"$5" ;;
            */starts/r1/agent.env) echo '{PLAIN}' >"$5" ;;
            *.whl) printf wheel >"$5" ;;
            */constraints.txt) printf 'numpy==2\ntorch==2.13.0\n' >"$5" ;;
            *) echo "of $4" >"$5" ;;
        esac ;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path, real=("cat", "grep", "sed", "sha256sum", "timeout", "getent", "rm"))
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
        "BAMBOO_PATH": str(machine.bin),
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
    done = boot(machine)
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
    assert set((etc / "agent.env").read_text().splitlines()) == set(PLAIN.splitlines())
    assert (etc / "agent.env").stat().st_mode & 0o777 == 0o600
    units = {path.name for path in (machine.folder / "units").iterdir()}
    assert units == {
        *("bamboo-deadman.service", "bamboo-deadman.timer"),
        *("bamboo-logs.service", "bamboo-logs.timer", "bamboo-agent.service"),
    }


def test_the_certificate_of_the_store_comes_with_the_run(machine: Machine) -> None:
    with_python(machine)
    told = 'BAMBOO_REDIS_CA="/etc/bamboo/store-ca.pem"'
    with_settings(machine, told, PLAIN)
    assert boot(machine).returncode == 0
    authority = machine.folder / "etc" / "store-ca.pem"
    assert authority.read_text() == "of s3://bucket/starts/r1/store-ca.pem\n"


def test_a_boot_asks_for_no_secret(machine: Machine) -> None:
    """How the store is reached only the agent reads, and of its own run."""
    with_python(machine)
    with_settings(machine, 'BAMBOO_REDIS_URL="secret:bamboo/runs/r1"', PLAIN)
    assert boot(machine).returncode == 0
    assert not any("secretsmanager" in call for call in machine.calls())


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
    done = boot(machine)
    assert done.returncode != 0
    assert "this instance powers off" in done.stderr
    assert machine.calls("shutdown")[-1] == "shutdown -h +2"
    assert not any("bamboo-agent.service" in call for call in machine.calls("systemctl")[:-1])


def test_rights_that_are_not_known_yet_are_waited_for(machine: Machine) -> None:
    with_python(machine)
    refused = machine.folder / "refused"
    refused.write_text("no" * 3)
    machine.command(
        "aws",
        f"""tries=$(cat {refused}); echo -n "${{tries#no}}" >{refused}
[[ -z $tries ]] || exit 1
{AWS}""",
    )
    done = boot(machine)
    assert done.returncode == 0, done.stderr
    assert machine.calls("sleep") == ["sleep 5"] * 3


def test_rights_that_never_come_end_the_boot_within_a_minute(machine: Machine) -> None:
    machine.command("aws", "exit 1")
    assert boot(machine).returncode != 0
    assert machine.calls("sleep") == ["sleep 5"] * 11


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
    with_settings(machine, NAMES_RUN, NAMES_TORCH, line)
    assert boot(machine).returncode != 0
    assert machine.calls("venv-python") == []
    assert machine.calls("shutdown")[-1] == "shutdown -h +2"


def test_a_build_of_pypi_s_own_comes_from_there(machine: Machine) -> None:
    with_python(machine)
    with_settings(machine, NAMES_RUN, 'BAMBOO_TORCH="2.12.1"', NAMES_WHEEL)
    assert boot(machine).returncode == 0
    (installed,) = machine.calls("venv-python")
    assert "--index-url" not in installed
    constraints = machine.folder / "opt" / "constraints.txt"
    assert constraints.read_text() == "numpy==2\ntorch==2.12.1\n"


@pytest.mark.parametrize("torch", ["", "2", "2.13.0+", "2.13.0/e; reboot", "2.13.0+../x", "x"])
def test_what_is_no_version_of_torch_is_not_installed(machine: Machine, torch: str) -> None:
    with_python(machine)
    with_settings(machine, NAMES_RUN, f'BAMBOO_TORCH="{torch}"', NAMES_WHEEL)
    assert boot(machine).returncode != 0
    assert machine.calls("venv-python") == []


def test_an_image_without_a_python_of_use_is_named(machine: Machine) -> None:
    with_python(machine)
    machine.command("python3", 'case "$*" in *version_info*) exit 1 ;; esac')
    done = boot(machine)
    assert done.returncode != 0
    assert "the image has no Python >= 3.11" in done.stderr
    assert machine.calls("shutdown")[-1] == "shutdown -h +2"


def test_the_python_and_the_extra_of_a_run_that_brings_code(machine: Machine) -> None:
    with_python(machine)
    with_settings(machine, PLAIN, 'BAMBOO_PYTHON="3.12"', 'BAMBOO_EXTRA="hf"')
    done = boot(machine)
    assert done.returncode != 0
    assert "the image has no Python 3.12" in done.stderr
    (machine.bin / "python3").rename(machine.bin / "python3.12")
    assert boot(machine).returncode == 0
    assert machine.calls("venv-python")[-1].endswith(f"opt/{NAME}[hf]")


@pytest.mark.parametrize("line", ['BAMBOO_PYTHON="3/x"', 'BAMBOO_EXTRA="hf,x"'])
def test_what_is_no_python_and_no_extra_installs_nothing(machine: Machine, line: str) -> None:
    with_python(machine)
    with_settings(machine, PLAIN, line)
    assert boot(machine).returncode != 0
    assert not any(NAME in call for call in machine.calls("venv-python"))


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


@pytest.mark.parametrize("run", ["", "../../boot", "a b", 'a"b', "Ab"])
def test_a_tag_that_is_no_run_powers_off(machine: Machine, run: str) -> None:
    done = boot(machine, RUN=run)
    assert done.returncode != 0
    assert machine.calls("shutdown")[-1] == "shutdown -h +2"
    assert machine.calls("aws") == []


LEADS_PYTHON = 'PYTHONWARNINGS="ignore:x:antigravity.x"'


@pytest.mark.parametrize(
    ("line", "named"),
    [
        *((f'{name}="1"', name) for name in HOSTILE_NAMES if name.isidentifier()),
        (LEADS_PYTHON, "PYTHONWARNINGS"),
        ('BAMBOO_RUN="r2"', "BAMBOO_RUN"),
        *(
            (line, 'no NAME="value"')
            for line in (
                *("PYTHONWARNINGS=1", ' PATH="x"', '="x"', "", "export X=1", "# of nobody"),
                *('AWS_REGION="a" B="c"', 'AWS_REGION="a\\', 'AWS_REGION="$(reboot)"'),
                *('AWS_REGION="`reboot`"', "AWS_REGION='x'", 'AWS_REGION="x";reboot', "\0"),
            )
        ),
    ],
)
def test_what_no_agent_is_given_starts_nothing(machine: Machine, line: str, named: str) -> None:
    with_python(machine)
    machine.command("aws", f"""case "$4" in *agent.env) cat settings >"$5"; exit ;; esac\n{AWS}""")
    (machine.folder / "settings").write_text(f"{PLAIN}\n{line}\n")
    done = boot(machine)
    assert done.returncode != 0
    assert named in done.stderr
    assert machine.calls("shutdown")[-1] == "shutdown -h +2"
    assert machine.calls("venv-python", "python3") == []
    assert not any("bamboo-agent" in call for call in machine.calls("systemctl"))
    assert not (machine.folder / "etc" / "agent.env").exists()


@pytest.mark.parametrize("told", ["", 'BAMBOO_RUN="r2"'])
def test_the_settings_of_another_run_start_nothing(machine: Machine, told: str) -> None:
    with_python(machine)
    with_settings(machine, *filter(None, (told, NAMES_TORCH, NAMES_WHEEL)))
    done = boot(machine)
    assert done.returncode != 0
    assert "not of r1" in done.stderr
    assert machine.calls("venv-python") == []


@pytest.mark.parametrize("path", ["instance-id", "placement/region"])
def test_what_the_metadata_say_ends_no_line_of_a_file(machine: Machine, path: str) -> None:
    """Another unit, of root, reads them there."""
    machine.command(
        "curl", f'case "${{@: -1}}" in */{path}) echo \'x"\nA="b\' ;; *) {METADATA} ;; esac'
    )
    assert boot(machine).returncode != 0
    assert not (machine.folder / "etc" / "instance.env").exists()


def test_python_is_started_isolated_all_along(machine: Machine) -> None:
    with_python(machine)
    assert boot(machine, PYTHONWARNINGS="error", PYTHONPATH=str(machine.folder)).returncode == 0
    started = machine.calls("python3", "venv-python")
    assert len(started) >= 4
    assert all(call.split()[1] == "-I" for call in started)


def test_a_boot_outside_a_stack_does_nothing(machine: Machine) -> None:
    done = machine.run("boot.sh")
    assert done.returncode != 0
    assert "BAMBOO_BUCKET" in done.stderr
    assert machine.calls() == []
