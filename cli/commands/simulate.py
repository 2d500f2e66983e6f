"""`bamboo simulate`: what a job would do and cost on a spot market, before anything is rented."""

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track

from bamboo.errors import InputError
from bamboo.sim.world import Terms
from cli import nsdi23, simulating
from cli.echo import echo
from cli.markets import MarketOptions
from cli.new_file import refuse_to_overwrite, write_new
from cli.pictures.canvas import check_name
from cli.pictures.simulation import simulation_svg
from cli.simulating import MarketAsked
from cli.swarming import run_swarm
from cli.views.nsdi23 import nsdi23_text
from cli.views.simulate import picture_title, simulation_body, simulation_text


@click.command("simulate")
@click.argument("job", type=click.Path(path_type=Path), required=False)
@click.option(
    "--preset",
    type=click.Choice(["nsdi23"]),
    help="The paper's published simulator, without a JOB.",
)
@click.option("--model", default="bert", show_default=True, help="Of the preset.")
@click.option("--trace", type=click.Path(path_type=Path), help="Play this recorded market.")
@click.option(
    "--hazard", type=float, metavar="P", help="Make a market up: P preemptions per node-hour."
)
@click.option("--bulk", type=float, help="Nodes that an instant of preemption takes, on average.")
@click.option("--back-seconds", type=float, help="Until a lost node can be had again, on average.")
@click.option("--market", "named", help="Make a market up by name: calm, busy or storm.")
@click.option("--nodes", type=int, help="Nodes of a made-up market; as many as the job takes.")
@click.option("--hours", type=float, help="So long; by default the trace, or 24 h.")
@click.option(
    "--times", type=int, default=1, show_default=True, help="Copies of the trace side by side."
)
@click.option(
    "--seeds", type=int, default=1, show_default=True, help="Runs on made-up markets, one a seed."
)
@click.option("--first-seed", type=int, default=0, show_default=True)
@click.option("--time-scale", type=float, default=1.0, help="As `bamboo launch --trace` plays it.")
@click.option("--boot-seconds", type=float, default=45.0, show_default=True)
@click.option("--notice-seconds", type=float, default=0.0, show_default=True)
@click.option("--rivals", is_flag=True, help="Other ways to use the same market beside it.")
@click.option("--endless", is_flag=True, help="Do not end at train.steps.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the first run, as SVG.")
@click.option("--force", is_flag=True, help="Write over the picture that is there.")
@click.option("--swarm", type=int, metavar="SEEDS", help="No job: so many orders of faults.")
@click.option("--out", type=click.Path(path_type=Path), help="Of --swarm: where a red one goes.")
@click.option(
    "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a key."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    job: Path | None,
    swarm: int | None,
    out: Path | None,
    first_seed: int,
    as_json: bool,
    **asked: Any,
) -> None:
    """Simulate a job on a spot market: steps, losses, dollars and value."""
    if swarm is not None:
        raise SystemExit(run_swarm(swarm, first_seed, out, as_json))
    if job is None:
        raise InputError("no job to simulate: give its file, or --swarm SEEDS without one")
    _simulate(job=job, first_seed=first_seed, as_json=as_json, **asked)


def _simulate(
    *,
    job: Path,
    preset: str | None,
    model: str,
    trace: Path | None,
    hazard: float | None,
    bulk: float | None,
    back_seconds: float | None,
    named: str | None,
    nodes: int | None,
    hours: float | None,
    times: int,
    seeds: int,
    first_seed: int,
    time_scale: float,
    boot_seconds: float,
    notice_seconds: float,
    rivals: bool,
    endless: bool,
    plot: Path | None,
    force: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    if preset is not None:
        body = nsdi23.run(
            model, job=job, trace=trace, hazard=hazard, seeds=seeds, first_seed=first_seed
        )
        echo(json.dumps(body) if as_json else nsdi23_text(body))
        return
    if plot is not None:
        check_name(plot)
        refuse_to_overwrite(plot, force=force)
    simulated = simulating.prepare(
        job,
        overrides=overrides,
        market=MarketAsked(
            trace=trace,
            options=MarketOptions(
                preset=named, hazard=hazard, bulk=bulk, back_s=back_seconds, nodes=nodes
            ),
            hours=hours,
            times=times,
            time_scale=time_scale,
        ),
        terms=Terms(boot_s=boot_seconds, notice_s=notice_seconds),
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
        picture = simulation_svg(drawn, simulated, title=picture_title(simulated))
        write_new(plot, picture, force=force)
    if as_json:
        echo(json.dumps(simulation_body(simulated, found)))
    else:
        echo(simulation_text(simulated, found))
