"""`bamboo strategy`: what strategies are made of, and what differs between two."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from bamboo import api
from bamboo.planner.sync.catalogue import BLOCKS
from cli.echo import echo_result
from cli.views.strategy import blocks_text, difference_text

_PATH = click.Path(path_type=Path)


@click.group("strategy")
def command() -> None:
    """Show what strategies are made of, and what differs between two.

    A strategy says where a job runs and how the gradient of each parameter passes between
    pipelines and to shadows. It decides time and bytes, and no bit of what is trained.
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_command(*, as_json: bool) -> None:
    """List the building blocks: what each does, its bytes, when it wins, and its source."""
    echo_result(json.dumps([asdict(one) for one in BLOCKS]) if as_json else blocks_text(BLOCKS))


@command.command("diff")
@click.argument("one", metavar="A", type=_PATH)
@click.argument("other", metavar="B", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def diff_command(*, one: Path, other: Path, as_json: bool) -> None:
    """Show what differs between the strategies in files A and B, in bytes of a step.

    A file holds a strategy alone, or what `bamboo plan --json` prints. The latter has the shapes of
    the parameters, and one such file gives the bytes of both.
    """
    found = api.strategy_difference(one, other)
    echo_result(json.dumps(found.body()) if as_json else difference_text(found))
