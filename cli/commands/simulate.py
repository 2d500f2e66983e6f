"""`bamboo simulate`: what a job would do and cost on a spot market, before anything is rented."""

import json
from pathlib import Path

import click

from bamboo import api
from bamboo.sim.ways import SHORT
from bamboo.study.markets import MarketAsked
from cli.bar import bar
from cli.echo import echo_result
from cli.new_file import refuse_to_overwrite, write_new
from cli.options.gpu import gpu_option
from cli.options.market import market_options, restarts_of
from cli.options.overrides import overrides_option
from cli.options.strategy import strategy_option
from cli.pictures.canvas import check_name
from cli.pictures.simulation import simulation_svg
from cli.views.simulate import picture_title, simulation_body, simulation_text


@click.command("simulate")
@click.argument("job", type=click.Path(path_type=Path))
@market_options
@click.option(
    "--seeds", type=int, default=1, show_default=True, help="Runs on made-up markets, one per seed."
)
@click.option("--first-seed", type=int, default=0, show_default=True, help="The first run's seed.")
@click.option("--rivals", is_flag=True, help="Compare other ways to use the market.")
@click.option(
    "--restart-s",
    multiple=True,
    metavar="KIND=SECONDS",
    help=f"With --rivals: seconds of a restart besides boot and load, for {', '.join(SHORT)}.",
)
@click.option("--endless", is_flag=True, help="Do not stop at train.steps.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the first run as SVG.")
@click.option("--force", is_flag=True, help="Overwrite an existing picture.")
@overrides_option
@strategy_option
@gpu_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    job: Path,
    market: MarketAsked,
    seeds: int,
    first_seed: int,
    rivals: bool,
    restart_s: tuple[str, ...],
    endless: bool,
    plot: Path | None,
    force: bool,
    overrides: tuple[str, ...],
    strategy: Path | None,
    gpu: str | None,
    as_json: bool,
) -> None:
    """Simulate a job on a spot market: steps, losses, dollars and value."""
    if plot is not None:
        check_name(plot)
        refuse_to_overwrite(plot, force=force)
    with bar("simulating") as told:
        played = api.simulate(
            job,
            overrides=overrides,
            asked=market,
            seeds=seeds,
            first_seed=first_seed,
            endless=endless,
            strategy=strategy,
            gpu=gpu,
            rivals=rivals,
            restart_s=restarts_of(restart_s, rivals=rivals),
            told=told,
        )
    simulated = played.simulated
    found = played.runs
    if plot is not None:
        drawn = played.one_run(seed=first_seed)
        picture = simulation_svg(drawn, simulated, title=picture_title(simulated, seed=first_seed))
        write_new(plot, picture, force=force)
    if as_json:
        echo_result(json.dumps(simulation_body(simulated, found, first_seed=first_seed)))
    else:
        echo_result(simulation_text(simulated, found, first_seed=first_seed))
