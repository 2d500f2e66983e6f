"""`bamboo simulate`: what a job would do and cost on a spot market, before anything is rented."""

import json
import sys
from pathlib import Path

import click

from bamboo.errors import InputError
from bamboo.sim.ours import Pauses
from bamboo.sim.run import Figures, simulate
from bamboo.sim.trace import read_trace
from bamboo.sim.world import Terms
from cli import simulating
from cli.simulating import HOUR_S
from cli.views.simulate import simulation_body, simulation_text


@click.command("simulate")
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--trace", type=click.Path(path_type=Path), help="A recorded market to play.")
@click.option("--hours", type=float, help="So long; by default as long as the trace.")
@click.option("--boot-seconds", type=float, default=45.0, show_default=True)
@click.option("--notice-seconds", type=float, default=0.0, show_default=True)
@click.option(
    "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a key."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    job: Path,
    trace: Path | None,
    hours: float | None,
    boot_seconds: float,
    notice_seconds: float,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Simulate a job on a spot market: steps, losses, dollars and value."""
    if trace is None:
        raise InputError("no market to simulate: give --trace FILE")
    market = read_trace(trace)
    simulated = simulating.prepare(
        job,
        overrides=overrides,
        hours=market.length_s / HOUR_S if hours is None else hours,
        terms=Terms(boot_s=boot_seconds, notice_s=notice_seconds),
        pauses=Pauses(),
    )
    asked = simulated.asked
    found: list[Figures] = [
        simulate(
            asked,
            market,
        )
    ]
    if as_json:
        click.echo(json.dumps(simulation_body(simulated, found, source=str(trace))))
    else:
        click.echo(simulation_text(simulated, found, source=str(trace)), file=sys.stdout)
