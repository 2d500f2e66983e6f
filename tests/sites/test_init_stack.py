"""`bamboo init --apply` and `--destroy`: shown, asked, done; Terraform is a recorder here."""

import http.server
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from bamboo.config.account import account_defaults
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.sites.account import setting_up, standing, terraform
from bamboo.sites.account.standing import public_address
from cli import agreement
from cli.main import run
from testbed.waiting import wait_until
from tests.sites.stack import Stack, stack_on_the_path
from tests.sites.test_init import text_of


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    return stack_on_the_path(tmp_path, monkeypatch)


def test_what_it_makes_and_costs_is_shown_then_made_then_written_down(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", "--apply", "--yes", "--var", 'zones=["us-east-1a"]']) == 0
    said = capsys.readouterr()
    assert "it makes 2, changes 0, destroys 0" in said.err
    assert "+ 1 aws_instance" in said.err
    assert "a month, run or no run (modelled" in said.err
    assert "aws_vpc.x: Creating..." in said.err
    assert stack.calls() == ["output", "init", "plan", "show", "apply", "output"]
    assert account_defaults()["bucket"] == "bamboo-1"
    assert "cloud.toml: written" in said.out
    kept = json.loads((stack.path / terraform.VARIABLES).read_text())
    assert kept == {"zones": ["us-east-1a"]}


def test_values_are_kept_for_the_next_time_and_for_terraform_itself(stack: Stack) -> None:
    assert run(["init", "--apply", "--yes", "--var", 'zones=["us-east-1a"]']) == 0
    assert run(["init", "--apply", "--yes", "--var", "launcher_cidrs=[]"]) == 0
    kept = json.loads((stack.path / terraform.VARIABLES).read_text())
    assert kept == {"zones": ["us-east-1a"], "launcher_cidrs": []}


@pytest.mark.parametrize("verb", ["plan", "show"])
def test_a_value_that_no_plan_came_of_is_not_kept(stack: Stack, verb: str) -> None:
    stack.does(verb, "echo 'Error: Invalid value for input variable' >&2; exit 1")
    assert run(["init", "--apply", "--yes", "--var", "zones=us-east-1a"]) == 2
    assert not (stack.path / terraform.VARIABLES).exists()
    stack.does()
    assert run(["init", "--apply", "--var", 'zones=["us-east-1a"]']) == 2, "nobody to be asked"
    assert not (stack.path / terraform.VARIABLES).exists()


@pytest.mark.parametrize("words", [["--apply", "--var", "region=us-west-2"], ["--destroy"]])
def test_a_stack_in_another_region_is_not_forgotten(
    stack: Stack, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    if "--destroy" in words:
        (stack.path / terraform.VARIABLES).write_text('{"region": "us-west-2"}')
    assert run(["init", *words, "--yes"]) == 2
    said = capsys.readouterr().err
    assert "stands in us-east-1, and would be forgotten there and bill on" in said
    assert not {"plan", "apply"} & set(stack.calls())


def test_a_second_stack_is_made_only_if_asked(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a clone whose state knows nothing of the one that the account file names."""
    assert run(["init"]) == 0
    (stack.folder / "outputs.json").write_text("{}")
    assert run(["init", "--apply", "--yes"]) == 2
    assert "names a stack, s3://bamboo-1, of which the state" in capsys.readouterr().err
    assert not {"plan", "apply"} & set(stack.calls())
    stack.does("apply", f"cp {stack.folder}/made.json {stack.folder}/outputs.json")
    (stack.folder / "made.json").write_text(text_of(bucket="bamboo-2"))
    assert run(["init", "--apply", "--yes", "--force"]) == 0
    assert account_defaults()["bucket"] == "bamboo-2"


def test_an_answer_of_no_makes_nothing_and_keeps_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agreement.sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(agreement.click, "confirm", lambda *_, **__: False)
    assert run(["init", "--apply", "--var", 'zones=["us-east-1a"]']) == 1
    assert "nothing was created" in capsys.readouterr().err
    assert "apply" not in stack.calls()
    assert not (stack.path / terraform.VARIABLES).exists()
    nothing_held(monkeypatch)
    stack.plan(aws_vpc=["delete"])
    assert run(["init", "--destroy"]) == 1
    assert "nothing was destroyed" in capsys.readouterr().err
    assert "apply" not in stack.calls()


def test_where_nothing_stands_there_is_nothing_to_destroy(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing_held(monkeypatch)
    (stack.folder / "outputs.json").write_text("{}")
    (stack.folder / "plan.json").write_text("{}")  # an empty plan names no changes
    assert run(["init", "--destroy", "--yes"]) == 0
    assert "the stack is gone" in capsys.readouterr().out
    assert "apply" not in stack.calls()


def test_nothing_is_made_unasked(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--apply"]) == 2
    assert "there is nobody to ask; --yes" in capsys.readouterr().err
    assert "apply" not in stack.calls()
    assert not account_defaults()


def test_a_stack_that_stands_is_left_and_written_down(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.plan(aws_vpc=["no-op"], aws_instance=["read"])
    assert run(["init", "--apply"]) == 0
    assert "nothing is changed" in capsys.readouterr().err
    assert "apply" not in stack.calls()
    assert account_defaults()["bucket"] == "bamboo-1"


def test_what_would_be_lost_is_named(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    stack.plan(aws_instance=["delete", "create"], aws_vpc=["update"])
    assert run(["init", "--apply"]) == 2
    said = capsys.readouterr().err
    assert "it makes 1, changes 1, destroys 1" in said
    assert "- aws_instance.x" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--apply", "--var", "zone=a"), "--var zone: the stack has no such variable"),
        (("--apply", "--var", "zones"), "--var zones: give NAME=VALUE"),
        (("--apply", "--destroy"), "give --apply or --destroy"),
        (("--var", "zones=[]"), "give --apply or --destroy"),
        (("--destroy", "--here"), "--destroy takes no --var"),
        (("outputs.json", "--apply"), "outputs.json is no directory"),
        (("bin", "--apply"), "there is no stack of Bamboo"),
    ],
)
def test_wrong_words_change_nothing(
    stack: Stack, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert run(["init", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not {"plan", "apply"} & set(stack.calls())


def test_a_file_of_values_that_is_none_is_named(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    (stack.path / terraform.VARIABLES).write_text("[1")
    assert run(["init", "--apply", "--yes"]) == 2
    assert f"{terraform.VARIABLES}: " in capsys.readouterr().err
    assert stack.calls() == []


@pytest.mark.parametrize("verb", ["init", "plan", "apply"])
def test_a_terraform_that_fails_says_why_and_what_then(
    stack: Stack, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    stack.does(verb, "echo 'Error: no credentials' >&2; exit 1")
    assert run(["init", "--apply", "--yes"]) == 2
    said = capsys.readouterr().err
    assert f"`terraform {verb}` in terraform failed" in said
    assert "Error: no credentials" in said
    assert ("the same command again goes on" if verb == "apply" else "nothing was changed") in said
    assert not account_defaults()


def test_a_plan_that_cannot_be_read_is_not_carried_out(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    (stack.folder / "plan.json").write_text("[]")
    assert run(["init", "--apply", "--yes"]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert "apply" not in stack.calls()


def test_one_that_takes_too_long_is_asked_to_stop(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terraform, "CHANGE_S", 0.2)
    stack.does("apply", "trap 'echo in order; exit 1' INT; while :; do sleep 0.05; done")
    assert run(["init", "--apply", "--yes"]) == 2
    assert "in order" in capsys.readouterr().err


def test_one_that_does_not_stop_is_ended(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terraform, "CHANGE_S", 0.2)
    monkeypatch.setattr(terraform, "TO_STOP_S", 0.5)
    stack.does("apply", "trap '' INT; exec python3 -c 'import signal; signal.pause()'")
    assert run(["init", "--apply", "--yes"]) == 2
    assert "`terraform apply` in terraform failed" in capsys.readouterr().err


def test_an_interrupt_reaches_terraform_once_and_it_is_waited_for(stack: Stack) -> None:
    told, begun = stack.folder / "told", stack.folder / "begun"
    stack.does(
        "apply",
        f"""trap 'echo told >>"{told}"' INT
            touch "{begun}"
            until [ -s "{told}" ]; do sleep 0.05; done
            sleep 0.3; echo state is written >>"{told}"; exit 1""",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "init", "--apply", "--yes"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        wait_until(begun.exists, what="the apply to begin")
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode != 0
    assert told.read_text().splitlines() == ["told", "state is written"]
    assert b"terraform apply was asked to stop; its last call has 300 s to end" in said
    assert b"the same command again goes on, `bamboo init --destroy` takes it away" in said


def nothing_held(monkeypatch: pytest.MonkeyPatch, *runs: str) -> None:
    monkeypatch.setattr(standing, "runs_in_account", lambda region, **_: tuple(map(RunId, runs)))
    monkeypatch.setattr(standing, "remove_left", lambda region, stack: ())

    class Bucket:
        def sizes(self, prefix: str) -> dict[str, int]:
            return {f"{prefix}r1/final/stage-00.safetensors": 2_000_000_000}

    monkeypatch.setattr(standing.wiring, "bucket", lambda url, **_: Bucket())


def test_destroyed_is_all_with_the_account_file(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing_held(monkeypatch)
    assert run(["init"]) == 0
    stack.plan(aws_vpc=["delete"], aws_instance=["delete"])
    assert run(["init", "--destroy", "--yes"]) == 0
    said = capsys.readouterr()
    assert "- aws_instance.x" in said.err
    assert "with s3://bamboo-1: 1 file of runs, checkpoints among them, 2 GB" in said.err
    assert "the stack is gone" in said.out
    assert not account_defaults()
    calls = (stack.folder / "calls").read_text()
    assert "plan -destroy" in calls
    let_go = "apply -auto-approve -target=aws_s3_bucket.this -var=delete_runs_with_bucket=true"
    assert let_go in calls
    assert stack.calls()[-1] == "apply"


def test_an_account_file_of_another_stack_stays(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_held(monkeypatch)
    (stack.folder / "outputs.json").write_text(text_of(bucket="bamboo-2"))
    assert run(["init"]) == 0
    (stack.folder / "outputs.json").write_text(text_of())
    stack.plan(aws_vpc=["delete"])
    assert run(["init", "--destroy", "--yes"]) == 0
    assert account_defaults()["bucket"] == "bamboo-2"


def test_nothing_is_destroyed_unasked_nor_under_a_run(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.plan(aws_vpc=["delete"])
    nothing_held(monkeypatch, "r7")
    assert run(["init", "--destroy", "--yes"]) == 2
    assert "us-east-1 holds something of r7; `bamboo stop --all" in capsys.readouterr().err
    nothing_held(monkeypatch)
    assert run(["init", "--destroy"]) == 2
    assert "there is nobody to ask" in capsys.readouterr().err
    assert "apply" not in stack.calls()


def test_one_that_was_made_in_part_is_destroyed_without_its_outputs(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_held(monkeypatch)
    (stack.folder / "outputs.json").write_text("{}")
    stack.plan(aws_vpc=["delete"])
    assert run(["init", "--destroy", "--yes"]) == 0
    assert stack.calls().count("apply") == 1


class Address(http.server.BaseHTTPRequestHandler):
    said = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.said)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    listening = http.server.HTTPServer(("127.0.0.1", 0), Address)
    thread = Thread(target=listening.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    thread.join()
    listening.server_close()


def test_here_is_the_address_that_is_seen_from_outside(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Address, "said", b"203.0.113.7\n")
    assert public_address(server) == "203.0.113.7/32"
    for said in (b"", b"<html>", b"::1", b"203.0.113.700", b"9" * 1000):
        monkeypatch.setattr(Address, "said", said)
        with pytest.raises(InputError, match=r"--here: .* give --var 'launcher_cidrs"):
            public_address(server)


def test_here_goes_into_the_values(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting_up, "public_address", lambda: "203.0.113.7/32")
    assert run(["init", "--apply", "--yes", "--here"]) == 0
    kept = json.loads((stack.path / terraform.VARIABLES).read_text())
    assert kept == {"launcher_cidrs": ["203.0.113.7/32"]}
