"""Writes the generated part of `docs/cli.md` anew: `python -m tests.tidy.cli_reference`.

Rule: below its mark the page has what `--help` of each verb prints on a terminal of 80 columns,
from the click commands themselves; above it the page is written by hand. The script lies here, and
not beside the page, because the test beside it holds the page to it.
"""

from collections.abc import Iterator
from pathlib import Path

import click

from cli import main

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
MARK = "<!-- Below: written by `python -m tests.tidy.cli_reference`. Do not edit. -->\n"
COLUMNS = 78
"""What click takes of a terminal of 80 columns."""
HELP = ("-h, --help", "Show this message and exit.")


def reference() -> str:
    """The table of all verbs, and the help of each."""
    context = click.Context(main.bamboo, info_name="bamboo")
    rows = [f"| [`{verb}`](#bamboo-{verb}) | {help} |" for verb, help in main.COMMANDS.items()]
    table = "\n".join(["| verb | what it does |", "|---|---|", *rows])
    verbs = [main.bamboo.get_command(context, verb) for verb in main.COMMANDS]
    pages = [page for verb in verbs if verb is not None for page in pages_of(verb, "bamboo", "##")]
    return "\n".join(["", table, "", *pages])


def pages_of(command: click.Command, of: str, heading: str) -> Iterator[str]:
    """Of a command and of those within it."""
    name = f"{of} {command.name}"
    yield f"{heading} {name}\n\n```text\n{help_of(command, name)}\n```\n"
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        yield from pages_of(inner, name, f"{heading}#")


def help_of(command: click.Command, name: str) -> str:
    """What `--help` prints. click itself keeps the names of that option as a command was asked for
    them first, with or without `-h`."""
    context = click.Context(command, info_name=name, terminal_width=COLUMNS)
    formatter = context.make_formatter()
    command.format_usage(context, formatter)
    command.format_help_text(context, formatter)
    options = [one for one in command.params if isinstance(one, click.Option)]
    rows = [row for one in options if (row := one.get_help_record(context)) is not None]
    with formatter.section("Options"):
        formatter.write_dl([*rows, HELP])
    if isinstance(command, click.Group):
        command.format_commands(context, formatter)
    command.format_epilog(context, formatter)
    return formatter.getvalue().rstrip()


def page(text: str) -> str:
    """A page with its generated part anew."""
    by_hand, mark, _ = text.partition(MARK)
    if not mark:
        raise ValueError(f"{PAGE.name} has no line {MARK!r}")
    return by_hand + MARK + reference()


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
