"""The command `bamboo`: a table of commands, each imported only when it is called.

Rule: `bamboo --help` reads this file and click, nothing else. So the help texts are here, and a
test compares them with the commands. Every error that a user can cause is one line on stderr and an
exit code. An unforeseen error is one line too, with its traceback in a file.
"""

import importlib
import sys
import tempfile
import traceback
from types import TracebackType
from typing import Any

import click

from bamboo import __version__, loading
from bamboo.errors import BambooError
from bamboo.private_files import keep_private
from cli.echo import echo, open_closed, printable, refused_by_output

COMMANDS: dict[str, str] = {
    "launch": "Train a job on spot instances.",
    "cost": "Rank what a job could be rented as by samples per dollar, or say what a run cost.",
    "plan": "Show the plan of a job: what each node holds and does, what it is worth, and why.",
    "prepare": "Make the data of a job ready: text into tokens, once, and hashes of a token file.",
    "profile": "Measure the layers of a job: times, parameters, activations, stash.",
    "simulate": "Simulate a job on a spot market: steps, losses, dollars and value.",
    "explain": "Explain how each parameter of a job or a run is synchronised, and why.",
    "strategy": "Show what strategies are made of, and what differs between two.",
    "schedule": "Draw a pipeline schedule and its figures.",
    "trace": "Read, convert and make up traces of spot markets.",
    "prices": "Show the prices of instances, their age, and the quotas that they need.",
    "init": "Create the stack in your AWS account, and record what it contains.",
    "attach": "Watch a run, and give it a launcher if it has lost its own.",
    "status": "Show the progress of a run and what each node does.",
    "list": "List the runs.",
    "logs": "Show the events of a run's nodes.",
    "stop": "Stop a run at its next step boundary.",
    "preempt": "Kill a node of a run: take its instance away, at once or after a notice.",
    "chaos": "Train a job while a seeded swarm kills its nodes, and check what became of it.",
    "rm": "Remove the folder of a run that has ended.",
    "prune": "Remove the folders of all ended runs but the newest.",
    "resume": "Continue a run that ended before its last step.",
    "report": "Write a report of a run: one HTML file with its curves, losses and dollars.",
    "doctor": "Check this machine and the account, with a remedy for each fault.",
    "verify": "Train a run again calmly and compare every bit.",
    "export": "Write what a run has trained, for other programs.",
    "eval": "Evaluate what a run has trained, forward only.",
    "sample": "Let the language model of a run go on with a text.",
}
"""Verb -> help line; its module has the attribute `command`."""

MOST_CHARACTERS = 2000
"""The longest error that is shown whole: a file may contain a value of any length."""
HIDDEN = ("agent", "launcher")
"""Commands that programs call, and people do not."""


def module_of(verb: str) -> str:
    """The module of a command."""
    return f"cli.commands.{'programs.' * (verb in HIDDEN)}{verb}"


class Verbs(click.Group):
    """A group that knows its commands by name and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS and cmd_name not in HIDDEN:
            return None
        command = importlib.import_module(module_of(cmd_name)).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of verbs from the static texts, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


_NAMES = {verb: click.Command(verb) for verb in COMMANDS}
"""click uses these to suggest similar names for a command that does not exist."""


@click.group(cls=Verbs, commands=_NAMES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bamboo")
def bamboo() -> None:
    """Train large models on spot GPUs as though nothing happened.

    RUN is a run's id, a unique prefix of it, or `last`. To see a job of yours survive: launch it,
    `bamboo preempt last --stage 1` from another terminal, and `bamboo verify last` at its end.
    """


def run(arguments: list[str] | None = None) -> int:
    """Run one command line and give its exit code; expected errors become one line on stderr."""
    try:
        result: Any = bamboo.main(args=arguments, prog_name="bamboo", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        echo(error.format_message())
        return 2
    except click.ClickException as error:
        echo(f"error: {_with_remedy(error)}", err=True)
        return 2
    except (click.Abort, KeyboardInterrupt):
        echo("error: interrupted", err=True)
        return 130
    except BambooError as error:
        return _refused(error)
    except OSError as error:  # from what click prints itself
        refused = refused_by_output(error)
        if refused is None:
            raise
        return _refused(refused)
    return result if isinstance(result, int) else 0


def _refused(error: BambooError) -> int:
    echo(f"error: {one_line(str(error))}", err=True)
    return error.exit_code


def _with_remedy(error: click.ClickException) -> str:
    """What click says of a wrong command line, and where the right one is documented."""
    line = one_line(error.format_message())
    if not isinstance(error, click.UsageError):
        return line
    path = "bamboo" if error.ctx is None else error.ctx.command_path
    stop = "" if line.endswith((".", "?", ")")) else ";"
    return f"{line}{stop} `{path} --help` shows what it takes"


def one_line(text: str) -> str:
    """A message as one line of a terminal, whatever it was built from. Characters that could
    control a terminal become escapes; the middle of a line beyond MOST_CHARACTERS is cut."""
    line = printable(" ".join(text.split()))
    if len(line) > MOST_CHARACTERS:
        line = f"{line[: MOST_CHARACTERS // 2]} ... {line[-MOST_CHARACTERS // 2 :]}"
    return line


def report_unforeseen(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """The hook for unforeseen exceptions: one line, and the traceback in a file."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="bamboo-traceback-", suffix=".log", delete=False
    ) as file:
        file.writelines(traceback.format_exception(kind, error, trace))
    echo(
        f"error: a fault of Bamboo's own, {kind.__name__}: {one_line(str(error))}; "
        f"the traceback is in {file.name}",
        err=True,
    )


def main(arguments: list[str] | None = None) -> int:
    """A whole process of the command; None: with the arguments that it was started with."""
    keep_private()
    open_closed()
    sys.excepthook = report_unforeseen
    loading.until_the_end()
    return run(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
