"""`bamboo simulate`: what a job would do and cost on a spot market, before anything is rented."""

import json
from collections.abc import Callable
from pathlib import Path

import click
from click.core import ParameterSource

from bamboo import api
from bamboo.errors import InputError
from bamboo.sim.other_ways.nsdi23 import MODELS
from bamboo.sim.ways import SHORT
from bamboo.study import simulating
from bamboo.study.markets import MarketAsked
from bamboo.study.restarts import restarts_of
from cli import nsdi23
from cli.bar import bar
from cli.echo import echo_result
from cli.new_file import refuse_to_overwrite, write_new
from cli.options.gpu import gpu_option
from cli.options.market import market_options
from cli.options.overrides import overrides_option
from cli.options.strategy import strategy_option
from cli.pictures.canvas import check_name
from cli.pictures.simulation import simulation_svg
from cli.views.nsdi23 import nsdi23_text
from cli.views.simulate import picture_title, simulation_body, simulation_text

SWARM_TAKES = frozenset({"swarm", "first_seed", "out", "as_json"})
PRESET_TAKES = frozenset(
    {"preset", "model", "job", "trace", "hazard", "seeds", "first_seed", "as_json"}
)
NO_JOB_TAKES = frozenset({"model", "out"})


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
    "--seeds", type=int, default=1, show_default=True, help="Runs on made-up markets, one per seed."
)
@click.option("--first-seed", type=int, default=0, show_default=True)
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
    job: Path | None,
    preset: str | None,
    model: str,
    swarm: int | None,
    out: Path | None,
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
    if swarm is not None:
        _refuse("--swarm", lambda name: name not in SWARM_TAKES)
        from cli.swarming import run_swarm  # only the swarm needs this import

        raise SystemExit(run_swarm(swarm, first_seed, out, as_json))
    if preset is not None:
        _refuse(f"--preset {preset}", lambda name: name not in PRESET_TAKES)
        body = nsdi23.run(model, job=job, market=market, seeds=seeds, first_seed=first_seed)
        echo_result(json.dumps(body) if as_json else nsdi23_text(body))
        return
    _refuse("a JOB", lambda name: name in NO_JOB_TAKES)
    if plot is not None:
        check_name(plot)
        refuse_to_overwrite(plot, force=force)
    if job is None:
        raise InputError("nothing to simulate: give a JOB.toml, or --preset nsdi23")
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
    simulated, found = played.simulated, played.runs
    if plot is not None:
        drawn = simulating.one_run(simulated, seed=first_seed)
        picture = simulation_svg(drawn, simulated, title=picture_title(simulated, seed=first_seed))
        write_new(plot, picture, force=force)
    if as_json:
        echo_result(json.dumps(simulation_body(simulated, found, first_seed=first_seed)))
    else:
        echo_result(simulation_text(simulated, found, first_seed=first_seed))


def _refuse(what: str, refused: Callable[[str], bool]) -> None:
    """Raises InputError for options on the command line that would mean nothing."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        # An argument that was not given has that source, too.
        if given and context.params[name] is not None and refused(name):
            said = parameter.opts[0] if isinstance(parameter, click.Option) else "a JOB"
            raise InputError(
                f"{said} does not go with {what}, where it would mean nothing; leave it out"
            )
