"""The overheads of a plan, as lines and as JSON; all of it modelled."""

from collections.abc import Sequence
from typing import Any

from bamboo.planner.prices.auxiliary import Part, auxiliary_usd_per_hour
from bamboo.quantities import usd
from cli.views.columns import columns


def auxiliary_lines(parts: Sequence[Part]) -> list[str]:
    """A line for each part that costs anything, and their sum."""
    rows = [(part.name, usd(part.usd_per_hour), part.why) for part in parts if part.usd_per_hour]
    return [
        f"  besides the instances, modelled: {usd(auxiliary_usd_per_hour(parts))}/h",
        *columns(rows, indent=4, right=frozenset({1})),
    ]


def auxiliary_body(parts: Sequence[Part]) -> dict[str, Any]:
    """The same as JSON, with the parts that cost nothing."""
    return {
        "modelled": True,
        "usd_per_hour": auxiliary_usd_per_hour(parts),
        "parts": [
            {"name": part.name, "usd_per_hour": part.usd_per_hour, "why": part.why}
            for part in parts
        ],
    }
