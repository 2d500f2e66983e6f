"""`bamboo profile`: time and bytes of each layer of a job, on this machine or on a named GPU."""

import json
from pathlib import Path

import click

from bamboo import api
from cli.bar import bar
from cli.echo import echo_result
from cli.options.overrides import overrides_option
from cli.views.profile import profile_body, profile_text


@click.command("profile")
@click.argument("job", type=click.Path(path_type=Path))
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Device to measure on.",
)
@click.option("--gpu", metavar="NAME", help="Model a GPU such as T4 instead, by published figures.")
@click.option(
    "--seconds", type=float, default=60.0, show_default=True, help="Seconds to measure, at most."
)
@click.option("--fresh", is_flag=True, help="Measure again, even if a profile is kept.")
@overrides_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    job: Path,
    device: str,
    gpu: str | None,
    seconds: float,
    fresh: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure the layers of a job: times, parameters, activations, stash."""
    found = api.profile(
        job, overrides=overrides, device=device, gpu=gpu, seconds=seconds, fresh=fresh, bar=bar
    )
    echo_result(json.dumps(profile_body(found)) if as_json else profile_text(found))
