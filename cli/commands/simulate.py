"""`bamboo simulate`: what a job would do and cost on a spot market, before anything is rented."""

import json
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import track

from bamboo.errors import InputError
from cli import nsdi23, simulating
from cli.echo import echo_result, progress_is_hidden
from cli.market_options import MarketAsked, market_options
from cli.new_file import refuse_to_overwrite, write_new
from cli.pictures.canvas import check_name
from cli.pictures.simulation import simulation_svg
from cli.swarming import run_swarm
from cli.views.nsdi23 import nsdi23_text
from cli.views.simulate import picture_title, simulation_body, simulation_text

OF_SWARM = ("swarm", "first_seed", "out", "as_json")
OF_PRESET = ("job", "preset", "model", "trace", "hazard", "seeds", "first_seed", "as_json")
NOT_OF_JOBS = ("model", "out")


@click.command("simulate")
@click.argument("job", type=click.Path(path_type=Path), required=False)
@click.option(
    "--preset",
    type=click.Choice(["nsdi23"]),
    help="The paper's published simulator, without a JOB.",
)
@click.option("--model", default="bert", show_default=True, help="Of the preset.")
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
    _refuse_what_is_not_played(swarm=swarm is not None, preset=preset is not None)
    if swarm is not None:
        raise SystemExit(run_swarm(swarm, first_seed, out, as_json))
    if preset is not None:
        body = nsdi23.run(model, job=job, market=market, seeds=seeds, first_seed=first_seed)
        echo_result(json.dumps(body) if as_json else nsdi23_text(body))
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
            disable=progress_is_hidden(),
        )
    )
    if plot is not None:
        drawn = simulating.one_run(simulated, seed=first_seed)
        picture = simulation_svg(drawn, simulated, title=picture_title(simulated))
        write_new(plot, picture, force=force)
    if as_json:
        echo_result(json.dumps(simulation_body(simulated, found)))
    else:
        echo_result(simulation_text(simulated, found))


def _refuse_what_is_not_played(*, swarm: bool, preset: bool) -> None:
    """Raises InputError for an option that would change nothing."""
    context = click.get_current_context()
    for option in context.command.params:
        name = str(option.name)
        if swarm:
            plays, what = name in OF_SWARM, "does not go with --swarm"
        elif preset:
            plays, what = name in OF_PRESET, "does not go with --preset nsdi23"
        else:
            plays, what = name not in NOT_OF_JOBS, "does not go with a JOB"
        if not plays and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            shown = option.opts[0] if isinstance(option, click.Option) else "a JOB"
            raise InputError(f"{shown} {what}; leave it out")
