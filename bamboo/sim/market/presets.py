"""Named spot markets, for users without a trace: modelled, each from measured figures.

Rule: every figure here was published, or is one that `bamboo trace stats` gives for a published
trace, with its source beside it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bamboo.sim.market.synth import ONE_BY_ONE, Bulk, Market, geometric, spread

EC2_SPANS = 7 / 128
"""Share of the preemption instants on EC2 that took nodes of more than one zone (Thorpe et al.,
Bamboo, NSDI 2023; on GCP 12 of 328)."""
P3_HAZARD = 0.61
"""Preemptions per node-hour of that paper's p3 trace: 11.4 h, up to 32 nodes."""
P3_BULK: Bulk = tuple(
    (size, times / 79) for size, times in ((1, 39), (2, 13), (3, 15), (4, 7), (5, 1), (6, 4))
)
"""Its 79 preemption instants, by the number of nodes they took."""
CALM_HAZARD = 0.01
"""The least of the hazards in the paper's Monte Carlo simulation."""
DROP_SHARE = 9 / 16
"""Of 16 V100 nodes, a drop took 7 to 11 on average (availability recorded in 2023)."""
DROPS_OF_ALL = 0.29
"""In that record 12 to 46 % of the drops took all 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A market without its size."""

    says: str
    preemptions_per_node_hour: float
    bulk: Callable[[int], Bulk]
    """The bulk distribution, by the nodes of a zone."""


def _deep(nodes: int) -> Bulk:
    """Some drops take all of a zone; the sizes of the others are geometric, with the right mean."""
    mean = max(1.0, (DROP_SHARE - DROPS_OF_ALL) * nodes / (1 - DROPS_OF_ALL))
    partly = {size: share * (1 - DROPS_OF_ALL) for size, share in geometric(mean, most=nodes)}
    partly[nodes] = partly.get(nodes, 0.0) + DROPS_OF_ALL
    return tuple(sorted(partly.items()))


PRESETS: Mapping[str, Preset] = {
    "calm": Preset(
        says="0.01 preemptions per node-hour, one node at a time",
        preemptions_per_node_hour=CALM_HAZARD,
        bulk=lambda _: ONE_BY_ONE,
    ),
    "busy": Preset(
        says="the published p3 trace: 0.61 per node-hour, half of the instants take 2 to 6 nodes",
        preemptions_per_node_hour=P3_HAZARD,
        bulk=lambda _: P3_BULK,
    ),
    "storm": Preset(
        says="as busy, but an instant takes half of a zone, and three in ten take all of it",
        preemptions_per_node_hour=P3_HAZARD,
        bulk=_deep,
    ),
}


def preset(name: str, *, nodes: int, zones: Sequence[str] = ("",)) -> Market:
    """The market of that name for `nodes` nodes. Raises KeyError for an unknown name."""
    found = PRESETS[name]
    wanted = spread(nodes, zones)
    return Market(
        zones=wanted,
        preemptions_per_node_hour=found.preemptions_per_node_hour,
        bulk=found.bulk(wanted[0].nodes),
        spans=EC2_SPANS,
    )
