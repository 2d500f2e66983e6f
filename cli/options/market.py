"""The options of a simulated market, for every command that plays one.

Rule: a decorated command gets one value, `market`; `bamboo.study.simulating` interprets it.
"""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from bamboo.sim.world import Terms
from bamboo.study.markets import MarketAsked, MarketOptions

_PATH = click.Path(path_type=Path)


OPTIONS = (
    click.option("--trace", type=_PATH, help="Play this recorded market."),
    click.option(
        "--hazard", type=float, metavar="P", help="Make a market up: P preemptions per node-hour."
    ),
    click.option("--bulk", type=float, help="Nodes that an instant takes, on average."),
    click.option("--back-seconds", type=float, help="Until a lost node is back, on average."),
    click.option("--market", "named", help="Make a market up by name: calm, busy or storm."),
    click.option("--nodes", type=int, help="Nodes of a made-up market; as many as the job takes."),
    click.option("--zones", help="Zones of a made-up market, such as a,b,c; by default one."),
    click.option("--hours", type=float, help="So long; by default the trace, or 24 h."),
    click.option(
        "--times", type=int, default=1, show_default=True, help="Copies of the trace side by side."
    ),
    click.option(
        "--time-scale",
        type=float,
        default=1.0,
        show_default=True,
        help="Market seconds in a second; `launch --trace` has 60.",
    ),
    click.option("--prices", type=_PATH, help="Spot prices: `ms,zone,usd_per_hour` lines."),
    click.option("--far-gbps", type=float, help="Of a link between two zones, if not as others."),
    click.option("--far-ms", type=float, help="Its latency, likewise."),
    click.option(
        "--far",
        "far_pairs",
        multiple=True,
        metavar="A,B=GBPS[,MS]",
        help="Of the link between the zones A and B; once for each pair that is unlike the others.",
    ),
    click.option(
        "--boot-seconds", type=float, default=45.0, show_default=True, help="Of an instance."
    ),
    click.option(
        "--notice-seconds", type=float, default=0.0, show_default=True, help="Before each loss."
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
