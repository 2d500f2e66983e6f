"""The command line's frame: quick help, one-line errors, exit codes."""

import subprocess
import sys
from pathlib import Path

import click
import pytest

from bamboo.errors import BudgetReached, InputError
from cli import main

HEAVY = ("torch", "rich", "boto3", "botocore", "redis", "numpy", "moto", "zmq", "matplotlib")


def test_help_imports_nothing_heavy_and_is_quick() -> None:
    """In processor time of its own, which another load on the machine does not change."""
    code = (
        "import sys, time\nfrom cli.main import run\ncode = run(['--help'])\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], code, time.process_time())"
    )
    took_s = []
    for _ in range(3):
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
        )
        heavy, status, own_s = out.stdout.rsplit(maxsplit=2)
        assert (heavy.splitlines()[-1], status) == ("[]", "0")
        took_s.append(float(own_s))
    assert min(took_s) < 0.2


@pytest.mark.parametrize("verb", list(main.COMMANDS))
def test_every_verb_has_a_command_and_the_same_help(verb: str) -> None:
    command = main.Verbs().get_command(click.Context(main.bamboo), verb)
    assert command is not None
    assert command.name == verb
    assert main.COMMANDS[verb] == (command.help or "").split("\n\n")[0].replace("\n", " ")


def test_reading_verbs_import_no_torch() -> None:
    code = (
        "import importlib, sys\n"
        "from cli.main import module_of\n"
        f"for verb in {(*main.COMMANDS, *main.HIDDEN)!r}:\n"
        "    importlib.import_module(module_of(verb))\n"
        "    print(verb, 'torch' in sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert out.stdout.split("\n") == [*(f"{v} False" for v in (*main.COMMANDS, *main.HIDDEN)), ""]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nonsense"], "No such command 'nonsense'. `bamboo --help` shows"),
        (["lunch"], "No such command 'lunch'. Did you mean 'launch'? `bamboo"),
        (["launch"], "'JOB'. `bamboo launch --help` shows"),
        (["verify", "x", "--decisions", "--samples"], "at a time; `bamboo verify --help` shows"),
        (["--wrong"], "--wrong"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert word in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [
        (InputError("job.toml: a = 1:\n  wrong"), 2, "error: job.toml: a = 1: wrong\n"),
        (BudgetReached("spent"), 4, "error: spent\n"),
        (KeyboardInterrupt(), 130, "\nerror: interrupted\n"),
    ],
)
def test_expected_errors_become_a_line_and_their_code(
    raised: BaseException,
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @click.command()
    def command() -> None:
        raise raised

    monkeypatch.setattr(main.Verbs, "get_command", lambda *_: command)
    assert main.run(["list"]) == code
    assert capsys.readouterr().err == text


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("s3://", "s3://bucket/prefix"),
        ("http://x", "s3://bucket/prefix"),
        ("/dev/null", "is no directory"),
    ],
)
def test_where_checkpoints_cannot_go_nothing_is_begun(
    url: str,
    word: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    monkeypatch.delenv("BAMBOO_REDIS_URL", raising=False)
    monkeypatch.setattr("bamboo.wiring.run_preflight", lambda _: pytest.fail("it was looked at"))
    Path("job.toml").write_text(f'[checkpoint]\nevery_steps = 5\nurl = "{url}"\n')
    assert main.run(["launch", "job.toml"]) == 2
    error = capsys.readouterr().err
    assert "checkpoint.url" in error
    assert f"'{url}'" in error
    assert word in error
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


def test_an_unforeseen_error_is_one_line_and_a_traceback_file(tmp_path: Path) -> None:
    code = "import sys\nimport cli.main as m\nm.run = lambda _: 1 // 0\nsys.exit(m.main())"
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"TMPDIR": str(tmp_path)},
    )
    assert out.returncode == 1
    assert out.stderr.count("\n") == 1
    (log,) = tmp_path.glob("bamboo-traceback-*.log")
    assert str(log) in out.stderr
    assert "ZeroDivisionError" in log.read_text()
