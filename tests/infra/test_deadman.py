"""The dead-man switch of an instance: what powers it off, and what must not."""

import os
from pathlib import Path

import pytest

from tests.infra.fakes import Machine

NOW = 1_800_000_000
UP_S = 20_000
METADATA = """
case "${@: -1}" in
    */api/token) [[ -n $NO_METADATA ]] && exit 22; echo token ;;
    */tags/instance/bamboo:expires-at) [[ -n $EXPIRES ]] || exit 22; echo "$EXPIRES" ;;
esac
"""
SYSTEMCTL = """
case "$*" in
    *ActiveState*) echo "$STATE" ;;
    *ActiveEnterTimestampMonotonic*) echo "${BEGAN_US:-0}" ;;
    *InactiveEnterTimestampMonotonic*) echo "${ENDED_US:-0}" ;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path, real=("cat", "mkdir"))
    real_date = "/bin/date"
    made.command("date", f'[[ $1 == +%s ]] && echo {NOW} || {real_date} "$@"')
    made.command("shutdown")
    made.command("curl", METADATA)
    made.command("systemctl", SYSTEMCTL)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "uptime").write_text(f"{UP_S}.25 1.00\n")
    return made


def look(machine: Machine, **environment: str) -> str:
    """One look; why it powers off, or ""."""
    before = len(machine.calls("shutdown"))
    done = machine.run(
        "deadman.sh",
        **{
            "BAMBOO_PROC": str(machine.folder / "proc"),
            "BAMBOO_DEADMAN_DIR": str(machine.folder / "kept"),
            "BAMBOO_HEARD_FILE": str(machine.folder / "heard"),
            "STATE": "active",
            "BEGAN_US": str((UP_S - 100) * 1_000_000),
            "EXPIRES": str(NOW + 3600),
            "NO_METADATA": "",
        }
        | environment,
    )
    assert done.returncode == 0, done.stderr
    said = machine.calls("shutdown")[before:]
    assert len(said) <= 1
    return said[0].removeprefix("shutdown -h +1 bamboo: ") if said else ""


def heard(machine: Machine, *, ago_s: int) -> None:
    path = machine.folder / "heard"
    path.touch()
    os.utime(path, (NOW - ago_s, NOW - ago_s))


def ended(*, ago_s: int) -> str:
    return str((UP_S - ago_s) * 1_000_000)


def test_one_that_is_still_there_goes_at_once_then_by_force(machine: Machine) -> None:
    assert look(machine, EXPIRES=str(NOW)) != ""
    before = len(machine.calls("systemctl"))
    for _ in range(3):
        assert look(machine, EXPIRES=str(NOW)) == "", "an order given anew is put off"
    ordered = [c for c in machine.calls("systemctl")[before:] if "poweroff" in c]
    assert ordered == ["systemctl poweroff"] * 2 + ["systemctl poweroff --force --force"]


def test_a_shutdown_that_cannot_be_ordered_is_done(machine: Machine) -> None:
    machine.command("shutdown", "exit 1")
    look(machine, EXPIRES=str(NOW))
    assert "systemctl poweroff" in machine.calls("systemctl")


def test_a_node_at_work_is_left_alone(machine: Machine) -> None:
    heard(machine, ago_s=1)
    assert look(machine) == ""


@pytest.mark.parametrize(("in_s", "off"), [(1, False), (0, True), (-3600, True)])
def test_what_has_expired_goes(machine: Machine, in_s: int, off: bool) -> None:
    heard(machine, ago_s=1)
    assert bool(look(machine, EXPIRES=str(NOW + in_s))) is off


def test_a_run_may_be_prolonged(machine: Machine) -> None:
    heard(machine, ago_s=1)
    assert look(machine, EXPIRES=str(NOW + 1)) == ""
    assert look(machine, EXPIRES=str(NOW + 9999)) == ""
    assert (machine.folder / "kept" / "expires-at").read_text() == f"{NOW + 9999}\n"


def test_an_expiry_is_remembered_where_the_metadata_service_is_silent(machine: Machine) -> None:
    heard(machine, ago_s=1)
    (machine.folder / "kept").mkdir()
    (machine.folder / "kept" / "expires-at").write_text(f"{NOW - 1}\n")
    assert look(machine, NO_METADATA="1") == f"it expired at {NOW - 1}"


@pytest.mark.parametrize("value", ["", "never", "1e9", "12 34", "9" * 30, "$(reboot)"])
def test_an_expiry_that_is_none_ends_nothing(machine: Machine, value: str) -> None:
    heard(machine, ago_s=1)
    assert look(machine, EXPIRES=value) == ""


@pytest.mark.parametrize("state", ["inactive", "failed"])
def test_an_agent_that_ended_is_given_its_time(machine: Machine, state: str) -> None:
    assert look(machine, STATE=state, ENDED_US=ended(ago_s=899)) == ""
    assert look(machine, STATE=state, ENDED_US=ended(ago_s=900)) == "its agent ended 900 s ago"


def test_a_boot_that_comes_to_no_agent_ends(machine: Machine) -> None:
    assert look(machine, STATE="inactive", BAMBOO_BEGIN_S=str(UP_S + 1)) == ""
    assert look(machine, STATE="inactive") == f"it has no agent {UP_S} s after its start"


def test_a_systemd_that_says_nothing_is_no_reprieve(machine: Machine) -> None:
    machine.command("systemctl", "exit 1")
    assert look(machine) == f"it has no agent {UP_S} s after its start"


def test_a_silent_store_ends_it(machine: Machine) -> None:
    heard(machine, ago_s=4499)
    assert look(machine) == ""
    heard(machine, ago_s=4500)
    assert look(machine) == "the store has not answered for 4500 s"


def test_an_agent_that_never_heard_of_the_store_counts_from_its_start(machine: Machine) -> None:
    assert look(machine, BEGAN_US=ended(ago_s=4499)) == ""
    assert look(machine, BEGAN_US=ended(ago_s=4500)) == "the store has not answered for 4500 s"


def test_the_last_lines_of_the_log_go_up_first(machine: Machine) -> None:
    look(machine, EXPIRES=str(NOW - 1))
    last = machine.calls("systemctl", "shutdown")[-2:]
    assert last[0] == "systemctl start --no-block bamboo-logs.service"


def test_logs_that_cannot_go_up_hold_nothing_back(machine: Machine) -> None:
    machine.command("systemctl", "exit 1")
    assert look(machine, EXPIRES=str(NOW - 1)) != ""
