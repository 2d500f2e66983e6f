"""`bamboo stop`: end a run at its next step boundary, from another terminal."""

import json
import time

import click

from bamboo.coord.follow import Follower
from bamboo.core.events import StopRequested
from bamboo.core.state import Outcome, Phase
from bamboo.errors import BambooError, InputError
from cli import background, runs, wiring
from cli.live import live_store

WAIT_S = 150.0
"""How long the members may take to agree on a step and to finish it."""
RECEIPT_S = 60.0
LOOK_S = 0.1


@click.command("stop")
@click.argument("run")
@click.option("--no-wait", is_flag=True, help="Return at once, without waiting for the end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: str, no_wait: bool, as_json: bool) -> None:
    """Stop a run at its next step boundary."""
    folder = runs.find(runs.home(), run)
    with live_store(folder) as store:
        wiring.driver(store, "stop").append(
            StopRequested(reason="stopped by `bamboo stop`", outcome=Outcome.STOPPED),
            deadline_s=10.0,
        )
        detached = runs.is_detached(folder)
        if detached:
            background.keep(folder)  # somebody has to end its instances
        if no_wait:
            _say(folder.id, None, "asked to stop", as_json=as_json)
            return
        follower = Follower()
        end_s = time.monotonic() + WAIT_S
        while time.monotonic() < end_s:
            follower.poll(store, timeout_s=1.0)
            state = follower.state
            if state is None:
                raise InputError(f"run {folder.id} has an empty log")
            if state.phase is Phase.FINISHED:
                if detached:
                    _await_receipt(folder)
                _say(folder.id, state.outcome, state.sentence, as_json=as_json)
                return
    raise BambooError(f"run {folder.id} did not stop within {WAIT_S:g} s; interrupt its launcher")


def _await_receipt(folder: runs.RunFolder) -> None:
    """Its launcher works in the background: wait until it has ended everything, and said so."""
    end_s = time.monotonic() + RECEIPT_S
    while not folder.receipt.exists():
        if time.monotonic() > end_s:
            raise BambooError(
                f"run {folder.id} has stopped, but its launcher has left no receipt within "
                f"{RECEIPT_S:g} s; see logs/launcher.log in {folder.path}"
            )
        time.sleep(LOOK_S)


def _say(run: str, outcome: Outcome | None, sentence: str, *, as_json: bool) -> None:
    """What became of the wish; no outcome: nobody waited for it."""
    body = {"run": run, "outcome": outcome, "sentence": sentence}
    click.echo(json.dumps(body) if as_json else f"{run}: {sentence}")
