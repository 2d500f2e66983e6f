"""`bamboo trace`: read recorded spot markets, write them in other forms, make some up."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from bamboo.sim.market.trace import Trace, parse_trace, read_trace, seconds_in
from bamboo.sim.market.trace_shape import multiplied, tiled, tiling
from bamboo.sim.market.trace_stats import stats
from bamboo.sim.market.trace_text import WRITERS
from bamboo.study.markets import NODES, MarketOptions, check_hours, made, market_of
from cli.echo import echo, echo_result
from cli.new_file import STDOUT, refuse_to_overwrite, write_new
from cli.views import market as views

F = TypeVar("F", bound=Callable[..., object])
_PATH = click.Path(path_type=Path)


def _writes(command: F) -> F:
    """The options of the file that is written."""
    for option in (
        click.option("--force", is_flag=True, help="Overwrite OUT."),
        click.option(
            "--gap-seconds",
            type=float,
            default=None,
            help="For counts and json: seconds between counts. By default counts have a line for "
            "each change, and json has one per minute.",
        ),
        click.option(
            "--to",
            "form",
            type=click.Choice(list(WRITERS)),
            default="events",
            show_default=True,
            help="Event CSV, alive counts, or a JSON availability series.",
        ),
    ):
        command = option(command)
    return command


@click.group("trace")
def command() -> None:
    """Read, convert and make up traces of spot markets.

    FILE and IN are event CSV (`ms,add|remove,node[,zone]`), alive counts (`YYYY-MM-DD, HH:MM:SS,
    alive`) or a JSON availability series. OUT may be `-` for standard output.
    """


@command.command("stats", short_help="Say what a trace comes to: nodes, losses, gaps, zones.")
@click.argument("file", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", type=_PATH, default=None, metavar="OUT.svg", help="Draw the trace.")
@click.option("--force", is_flag=True, help="Overwrite OUT.svg.")
def stats_command(*, file: Path, as_json: bool, plot: Path | None, force: bool) -> None:
    """Say what a trace comes to: nodes, preemptions, bulks, gaps, zones."""
    if plot is not None:
        from cli.pictures.canvas import check_name

        check_name(plot)
        refuse_to_overwrite(plot, force=force)
    trace = read_trace(file)
    found = stats(trace)
    if plot is not None:
        from cli.pictures.market import market_svg

        write_new(plot, market_svg(trace, title=file.name), force=force)
    body = views.stats_body(file.name, found)
    echo_result(json.dumps(body) if as_json else views.stats_text(file.name, found))


@command.command("convert")
@click.argument("source", metavar="IN", type=_PATH)
@click.argument("out", type=_PATH)
@_writes
@click.option("--hours", type=float, default=None, help="Cut or repeat it to this length.")
@click.option("--times", default=1, show_default=True, help="Copies side by side.")
def convert_command(
    *,
    source: Path,
    out: Path,
    form: str,
    gap_seconds: float | None,
    force: bool,
    hours: float | None,
    times: int,
) -> None:
    """Write a trace in another form, longer, shorter or wider."""
    refuse_to_overwrite(out, force=force)
    trace = read_trace(source)
    if hours is not None:
        check_hours(hours)
        if seconds_in(hours) != trace.length_s:
            said = views.tiling_text(trace.length_s, hours, tiling(trace, hours=hours))
            trace = tiled(trace, hours=hours)
            _say(said, out)
    _write(multiplied(trace, times=times), out, form=form, gap_s=gap_seconds, force=force)


@command.command("synth")
@click.argument("out", type=_PATH)
@click.option("--like", type=_PATH, default=None, metavar="FILE", help="Fit it to this trace.")
@click.option("--preset", default=None, metavar="calm|busy|storm", help="Use the named market.")
@click.option("--hazard", type=float, default=None, help="Preemptions per node-hour.")
@click.option("--bulk", type=float, default=None, help="With --hazard: nodes lost at once. [1]")
@click.option(
    "--back-seconds", type=float, default=None, help="With --hazard: time until one is back. [1944]"
)
@click.option("--nodes", type=int, default=None, help=f"Nodes wanted; not with --like. [{NODES}]")
@click.option("--zones", default=None, metavar="A,B,…", help="Zone names; not with --like.")
@click.option("--hours", type=float, default=24.0, show_default=True, help="Length in hours.")
@click.option("--seed", type=int, default=None, help="Seed; by default random.")
@_writes
def synth_command(
    *,
    out: Path,
    form: str,
    gap_seconds: float | None,
    force: bool,
    hours: float,
    seed: int | None,
    back_seconds: float | None,
    **given: object,
) -> None:
    """Make up a trace: like another, by name, or by its hazard."""
    refuse_to_overwrite(out, force=force)
    market = market_of(MarketOptions(back_s=back_seconds, **given))  # type: ignore[arg-type]
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    _say(f"{views.market_text(market)}; seed {seed}", out)
    trace = made(market, seed=seed, hours=hours)
    _write(trace, out, form=form, gap_s=gap_seconds, force=force)


def _write(trace: Trace, out: Path, *, form: str, gap_s: float | None, force: bool) -> None:
    text = WRITERS[form](trace, gap_s=gap_s)
    written = parse_trace(text, out)  # what could not be read again is not written
    write_new(out, text.encode(), force=force)
    said = views.written_text(out, written, stats(written)), views.counted_text(trace, written)
    _say("\n".join(filter(None, said)), out)


def _say(text: str, out: Path) -> None:
    echo(text, err=True) if str(out) == STDOUT else echo_result(text)
