"""`bamboo init --destroy` that stops half-way: gone on with once, then it says what bills on."""

from pathlib import Path

import pytest

from bamboo.config.account import account_defaults
from bamboo.sites.account import terraform
from cli.main import run
from testbed.waiting import wait_until
from tests.cloud.local.local_world import alive
from tests.sites.stack import Stack, changes, stack_on_the_path
from tests.sites.test_init_stack import nothing_held


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    return stack_on_the_path(tmp_path, monkeypatch)


FAILS_ONCE = """if [ -e failed ]; then exit 0; fi
            case "$*" in *-target*) exit 0 ;; esac
            touch failed; echo 'Error: NotFound' >&2; exit 1"""


def test_a_destroy_that_stops_half_way_goes_on_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing_held(monkeypatch)
    assert run(["init"]) == 0
    stack.plan(aws_vpc=["delete"])
    stack.does("apply", FAILS_ONCE)
    assert run(["init", "--destroy", "--yes"]) == 0
    said = capsys.readouterr()
    assert "Error: NotFound" in said.err
    assert "again, from what is still there" in said.err
    assert "the stack is gone" in said.out
    assert stack.calls()[-5:] == ["apply", "init", "plan", "show", "apply"]


def test_one_that_stops_twice_says_what_bills_on(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing_held(monkeypatch)
    assert run(["init"]) == 0
    stack.plan(aws_vpc=["delete"], aws_instance=["delete"])
    stack.does("apply", 'case "$*" in *-target*) exit 0 ;; esac; echo "Error: no" >&2; exit 1')
    assert run(["init", "--destroy", "--yes"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "there is still aws_instance.x (billed until gone) and aws_vpc.x (not billed); " in said
    assert "`bamboo init --destroy` again" in said
    assert account_defaults(), "the account file stays with what stands"


def test_one_that_had_done_all_before_it_failed_is_done(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_held(monkeypatch)
    stack.plan(aws_vpc=["delete"])
    gone = f"""case "$*" in *-target*) exit 0 ;; esac
            echo '{changes()}' >"{stack.folder}/plan.json"; exit 1"""
    stack.does("apply", gone)
    assert run(["init", "--destroy", "--yes"]) == 0


@pytest.mark.parametrize("verb", ["output", "apply"])
def test_nothing_that_terraform_started_outlives_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """A provider is a process of its own: it holds the pipe that we read, and stays for ever."""
    monkeypatch.setattr(terraform, "LOOK_S", 0.5)
    monkeypatch.setattr(terraform, "CHANGE_S", 0.5)
    monkeypatch.setattr(terraform, "TO_STOP_S", 0.5)
    pid = stack.folder / "pid"
    stack.does(verb, f"trap '' INT; sleep 600 & echo $! >\"{pid}\"; wait; wait")
    run(["init", "--apply", "--yes"])
    left = int(pid.read_text())
    wait_until(lambda: not alive(left), what="the provider has ended")
