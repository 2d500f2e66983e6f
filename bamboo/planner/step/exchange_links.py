"""Links between owners in different zones, as a dry run needs them.

Rule: pure; a node whose zone is not known is in a zone of its own name, "".
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

from bamboo.ids import NodeId, ZoneId
from bamboo.schedule.links import Link, ZoneLinks
from bamboo.topology.assignment import Assignment


def exchange_link(
    assignment: Assignment, zone_of: Mapping[NodeId, ZoneId], links: ZoneLinks
) -> Link | None:
    """The longest latency and the lowest rate of the exchange, for which all owners wait; None if
    it crosses no zone."""
    stages = assignment.grid.stages
    columns = (assignment.owners[stage::stages] for stage in range(stages))
    zones = {frozenset(zone_of.get(owner, ZoneId("")) for owner in column) for column in columns}
    crossed = {pair for together in zones for pair in combinations(sorted(together), 2)}
    if not crossed:
        return None
    used = [links.between(*pair) for pair in crossed]
    rates = [link.bytes_per_s for link in used if link.bytes_per_s]
    latency_s = max(link.latency_s for link in used)
    return Link(latency_s=latency_s, bytes_per_s=min(rates, default=0.0))


def zones_in_order(
    owners: Sequence[NodeId], zone_of: Mapping[NodeId, ZoneId], *, named: bool
) -> tuple[str, ...]:
    """The zone of each owner, in the order of their first stages; empty if all are in one zone."""
    zones = [zone_of.get(node, ZoneId("")) for node in dict.fromkeys(owners)]
    numbers = {zone: str(number) for number, zone in enumerate(dict.fromkeys(zones))}
    if len(numbers) < 2:
        return ()
    return tuple(zones) if named else tuple(numbers[zone] for zone in zones)
