"""The options of a simulated market, for every command that plays one.

Rule: a decorated command gets one value, `market`; `bamboo.study.simulating` interprets it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click

from bamboo.errors import InputError
from bamboo.sim.ways import SHORT
from bamboo.sim.world import Terms
from bamboo.study.markets import MarketAsked, MarketOptions

_PATH = click.Path(path_type=Path)


OPTIONS = (
    click.option("--trace", type=_PATH, help="Play this recorded market."),
    click.option(
        "--hazard", type=float, metavar="P", help="Make up a market: P preemptions per node-hour."
    ),
    click.option("--bulk", type=float, help="Nodes that are lost at once, on average."),
    click.option(
        "--back-seconds", type=float, help="Seconds until a lost node is back, on average."
    ),
    click.option("--market", "named", help="Make up a market by name: calm, busy or storm."),
    click.option("--nodes", type=int, help="Nodes of a made-up market; by default the job's."),
    click.option("--zones", help="Zones of a made-up market, such as a,b,c; by default one."),
    click.option("--hours", type=float, help="Hours to simulate; by default the trace's, or 24."),
    click.option(
        "--times", type=int, default=1, show_default=True, help="Copies of the trace, side by side."
    ),
    click.option(
        "--time-scale",
        type=float,
        default=1.0,
        show_default=True,
        help="Market seconds per second; `launch --trace` uses 60.",
    ),
    click.option("--prices", type=_PATH, help="Spot prices, as lines `ms,zone,usd_per_hour`."),
    click.option("--far-gbps", type=float, help="Bandwidth of a link between two zones."),
    click.option("--far-ms", type=float, help="Latency of a link between two zones."),
    click.option(
        "--far",
        "far_pairs",
        multiple=True,
        metavar="A,B=GBPS[,MS]",
        help="A link between zones A and B that is unlike the other links; repeatable.",
    ),
    click.option(
        "--boot-seconds",
        type=float,
        default=45.0,
        show_default=True,
        help="Boot time of instances.",
    ),
    click.option(
        "--notice-seconds", type=float, default=0.0, show_default=True, help="Notice before a loss."
    ),
)


def market_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options, and pass them on as one value."""

    @wraps(command)
    def with_market(
        *,
        trace: Path | None,
        hazard: float | None,
        bulk: float | None,
        back_seconds: float | None,
        named: str | None,
        nodes: int | None,
        zones: str | None,
        hours: float | None,
        times: int,
        time_scale: float,
        prices: Path | None,
        far_gbps: float | None,
        far_ms: float | None,
        far_pairs: tuple[str, ...],
        boot_seconds: float,
        notice_seconds: float,
        **others: Any,
    ) -> None:
        market = MarketAsked(
            trace=trace,
            options=MarketOptions(
                preset=named,
                hazard=hazard,
                bulk=bulk,
                back_s=back_seconds,
                nodes=nodes,
                zones=zones,
            ),
            hours=hours,
            times=times,
            time_scale=time_scale,
            prices=prices,
            terms=Terms(boot_s=boot_seconds, notice_s=notice_seconds),
            far_ms=far_ms,
            far_gbps=far_gbps,
            far_pairs=far_pairs,
        )
        command(market=market, **others)

    out: Callable[..., None] = with_market
    for option in reversed(OPTIONS):
        out = option(out)
    return out


def restarts_of(given: Sequence[str], *, rivals: bool) -> Mapping[str, float]:
    """Seconds that other ways to use a market are charged for a restart, by their names, from texts
    such as `checkpoint-restart=300`. Raises InputError for a wrong value, or one that has no
    effect."""
    found: dict[str, float] = {}
    for one in given:
        kind, _, figure = one.partition("=")
        try:
            seconds = float(figure)
        except ValueError:
            seconds = math.nan
        if kind not in SHORT or not 0 <= seconds < math.inf:
            raise InputError(
                f"--restart-s {one} is no restart; give one of {', '.join(SHORT)} and seconds, "
                "such as checkpoint-restart=300"
            )
        if SHORT[kind] in found:
            raise InputError(f"--restart-s {one}: {kind} is given twice; give it once")
        found[SHORT[kind]] = seconds
    if found and not rivals:
        raise InputError(f"--restart-s {given[0]} is of another way; give --rivals too")
    return found
