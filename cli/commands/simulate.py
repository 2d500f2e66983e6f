"""`bamboo simulate`: what a job would do and cost on a spot market, before anything is rented."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import track

from bamboo.errors import InputError
from bamboo.sim.nsdi23 import MODELS
from cli import nsdi23, simulating
from cli.echo import echo
from cli.market_options import MarketAsked, market_options
from cli.new_file import refuse_to_overwrite, write_new
from cli.pictures.canvas import check_name
from cli.pictures.simulation import simulation_svg
from cli.swarming import run_swarm
from cli.views.nsdi23 import nsdi23_text
from cli.views.simulate import picture_title, simulation_body, simulation_text

_TAKEN: Mapping[str, frozenset[str]] = {
    "--swarm": frozenset({"swarm", "first_seed", "out", "as_json"}),
    "--preset nsdi23": frozenset(
        {"preset", "model", "job", "trace", "hazard", "seeds", "first_seed", "as_json"}
    ),
}
"""What goes with a way to simulate that is not of a JOB."""


def _refuse_ignored(way: str) -> None:
    """Raises InputError for the first thing that was given and would not be looked at."""
    context = click.get_current_context()
    for given in context.command.params:
        name = given.name or ""
        source = context.get_parameter_source(name)
        if source is ParameterSource.COMMANDLINE and name not in _TAKEN[way]:
            said = (
                given.opts[0] if isinstance(given, click.Option) else f"JOB {context.params[name]}"
            )
            raise InputError(f"{said} does not go with {way}, which would ignore it; leave it out")


@click.command("simulate")
@click.argument("job", type=click.Path(path_type=Path), required=False)
@click.option(
    "--preset",
    type=click.Choice(["nsdi23"]),
    help="The paper's published simulator, without a JOB.",
)
@click.option(
    "--model", default="bert", show_default=True, help=f"Of the preset: {', '.join(MODELS)}."
)
@click.option(
    "--swarm", type=int, metavar="SEEDS", help="Without a JOB: faults for the decision core."
)
@click.option("--out", type=click.Path(path_type=Path), help="Where --swarm puts a red seed.")
@market_options
@click.option(
    "--seeds", type=int, default=1, show_default=True, help="Runs on made-up markets, one a seed."
)
@click.option("--first-seed", type=int, default=0, show_default=True)
@click.option("--rivals", is_flag=True, help="Other ways to use the same market beside it.")
@click.option("--endless", is_flag=True, help="Do not end at train.steps.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the first run, as SVG.")
@click.option("--force", is_flag=True, help="Write over the picture that is there.")
@click.option(
    "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a key."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    job: Path | None,
    preset: str | None,
    model: str,
    swarm: int | None,
    out: Path | None,
    market: MarketAsked,
    seeds: int,
    first_seed: int,
    rivals: bool,
    endless: bool,
    plot: Path | None,
    force: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Simulate a job on a spot market: steps, losses, dollars and value."""
    if swarm is not None or preset is not None:
        _refuse_ignored("--swarm" if swarm is not None else f"--preset {preset}")
    if swarm is not None:
        raise SystemExit(run_swarm(swarm, first_seed, out, as_json))
    if preset is not None:
        body = nsdi23.run(model, job=job, market=market, seeds=seeds, first_seed=first_seed)
        echo(json.dumps(body) if as_json else nsdi23_text(body))
        return
    if plot is not None:
        check_name(plot)
        refuse_to_overwrite(plot, force=force)
    simulated = simulating.prepare(
        job,
        overrides=overrides,
        market=market,
        endless=endless,
    )
    runs = simulating.play(simulated, seeds=seeds, first_seed=first_seed, rivals=rivals)
    found = list(
        track(
            runs,
            total=seeds,
            description="simulating",
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
    )
    if plot is not None:
        drawn = simulating.one_run(simulated, seed=first_seed)
        picture = simulation_svg(drawn, simulated, title=picture_title(simulated, seed=first_seed))
        write_new(plot, picture, force=force)
    if as_json:
        echo(json.dumps(simulation_body(simulated, found)))
    else:
        echo(simulation_text(simulated, found))
