"""`bamboo stop`: end a run at its next step boundary, from another terminal, and make sure that
nothing of it is left in an account."""

import json

import click

from bamboo import api
from bamboo.errors import InputError
from cli.echo import echo_result, note


@click.command("stop")
@click.argument("run", default="")
@click.option(
    "--all", "everything", is_flag=True, help="Stop all runs, and end all with their tag."
)
@click.option(
    "--region",
    default="",
    help="End all with the run's tag in this region; RUN is its whole id, known here or not.",
)
@click.option("--no-wait", is_flag=True, help="Return at once, without waiting for the end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per run.")
def command(*, run: str, everything: bool, region: str, no_wait: bool, as_json: bool) -> int:
    """Stop a run at its next step boundary.

    In an account, everything with the run's tag is then ended: requests, instances, and the volumes
    that they leave. This needs neither the run's store nor its launcher nor its folder, and it is
    safe to repeat.
    """
    if everything == bool(run):
        raise InputError("give the run to stop, or --all")
    if everything:
        asked = api.stop_all(region=region, wait=not no_wait, note=note)
    else:
        asked = iter([api.stop_run(run, region=region, wait=not no_wait, note=note)])
    code = 0
    for one in asked:
        if one.error is not None:  # the others are stopped all the same
            code = max(code, one.error.exit_code)
            note(f"{one.run}: {' '.join(str(one.error).split())}")
            continue
        body = {"run": one.run, "outcome": one.outcome, "sentence": one.sentence}
        echo_result(json.dumps(body) if as_json else f"{one.run}: {one.sentence}")
    return code
