"""`bamboo logs`: the events of a run's nodes in the order of time, then their processes' output."""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import click

from bamboo.errors import InputError
from bamboo.runs import run_folder
from bamboo.runs.run_status import store_may_answer
from bamboo.sites import opened
from bamboo.telemetry.reader import Tail
from bamboo.telemetry.schema import EventRecord
from cli.echo import echo_result
from cli.views.logs import log_body, log_line

POLL_S = 0.2
BRING_EVERY_S = 10.0
"""How often the bucket of a run in an account is checked for more."""
STORE = "store"


@click.command("logs")
@click.argument("run")
@click.option(
    "--node",
    default="",
    help="Only this node (an id, or a prefix of one), launcher, cloud or store.",
)
@click.option("--follow", is_flag=True, help="Follow the run until it has ended.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def command(run: str, node: str, follow: bool, as_json: bool) -> None:
    """Show the events of a run's nodes.

    The output of the processes comes after the events. In an account it may be a minute late.
    """
    folder = run_folder.find(run_folder.home(), run)
    opened.bring_logs(folder)
    bring_at_s = time.monotonic() + BRING_EVERY_S
    tails: dict[Path, Tail] = {}
    if node and not any(True for _ in _files(folder, node)):
        names = ", ".join(dict.fromkeys(_source(p) for p in _files(folder, ""))) or "none yet"
        raise InputError(f"run {folder.id} has no log of a node {node!r}; it has: {names}")
    while True:
        over = _over(folder)
        if over or time.monotonic() >= bring_at_s:
            opened.bring_logs(folder)
            bring_at_s = time.monotonic() + BRING_EVERY_S
        for source, line in sorted(_fresh_lines(folder, node, tails), key=_moment):
            echo_result(json.dumps(log_body(source, line)) if as_json else log_line(source, line))
        if over or not follow:
            return
        time.sleep(POLL_S)


def _over(folder: run_folder.RunFolder) -> bool:
    if folder.receipt.exists():
        return True
    endpoint = folder.live_endpoint()
    if endpoint is None:
        return not folder.starting()
    return not store_may_answer(str(endpoint["store_url"]))


def _moment(line: tuple[str, str]) -> float:
    """Events by their time; text output of processes comes after them, file by file."""
    try:
        return EventRecord.from_json(line[1]).t_s
    except InputError:
        return math.inf


def _files(folder: run_folder.RunFolder, node: str) -> Iterator[Path]:
    """Event files first, then the output of processes; by name."""
    for pattern in ("events/*.jsonl", "logs/*.log", "logs/*/*.log"):
        for path in sorted(folder.path.glob(pattern)):
            # The store's own log is shown only on request.
            if _source(path).startswith(node) and (node or path.stem != STORE):
                yield path


def _source(path: Path) -> str:
    """The name of the writer: a node in an account has a folder of its own."""
    return path.stem if path.parent.name in ("events", "logs") else path.parent.name


def _fresh_lines(
    folder: run_folder.RunFolder, node: str, tails: dict[Path, Tail]
) -> Iterator[tuple[str, str]]:
    for path in _files(folder, node):
        for line in tails.setdefault(path, Tail(path)).lines():
            yield _source(path), line
