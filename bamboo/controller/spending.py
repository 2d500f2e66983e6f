"""What a run has spent, and what it will still spend before it can end: the figures that its dollar
limit is compared with.

    instances so far  +  overheads so far  +  what a stop in order still takes  >=  budget.max_usd

Rule: a stop takes at most the steps that the members may still finish before they agree on a
boundary, one write of the state, and the leaving. An instance is paid for the billed minimum at
least, and so is one that is about to be rented. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from bamboo.billing.money import Rented, beside_body, beside_of, bill
from bamboo.config.resolve import nodes_of
from bamboo.config.tree import JobConfig
from bamboo.controller.terms import Terms
from bamboo.core.state import State
from bamboo.core.straggler import kept_beyond
from bamboo.planner.prices.auxiliary import AuxiliaryPrice
from bamboo.runs.progress import Progress
from bamboo.value import MICRO, MINIMUM_BILLED_S, bill_micro_usd

STEPS_TO_STOP = 2
"""The step under way, and the next where a member has begun it already."""
LEAVING_S = 5.0
"""How long finished workers get to leave in order and send their last records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What the account of a run needs of its plan."""

    prices: Mapping[str, AuxiliaryPrice] = field(default_factory=dict)
    """Prices of the overheads."""
    crossing_bytes: float = 0.0
    """Bytes between zones in one step."""
    step_s: float = 0.0
    """As planned; used until steps were seen. 0: unknown."""
    state_s: float = 0.0
    """Time to write the state of the largest stage."""

    def crossed_bytes(self, progress: Progress) -> float:
        """Bytes between zones, by steps and by replicas."""
        return progress.steps_done * self.crossing_bytes + progress.crossed_bytes

    def beside_usd(self, progress: Progress, rented: Sequence[Rented], *, now_s: float) -> float:
        """What the overheads have cost so far."""
        crossed = self.crossed_bytes(progress)
        return beside_of(rented, self.prices, now_s=now_s, crossed_bytes=crossed).usd

    def beside_body(
        self, progress: Progress, rented: Sequence[Rented], *, now_s: float
    ) -> dict[str, Any]:
        """The same in its parts, as in a receipt."""
        crossed = self.crossed_bytes(progress)
        beside = beside_of(rented, self.prices, now_s=now_s, crossed_bytes=crossed)
        return beside_body(beside, crossed_bytes=crossed)

    def at(
        self, progress: Progress, rented: Sequence[Rented], *, now_s: float, missing: int = 0
    ) -> Progress:
        """The same progress with the dollars of now. `missing` is how many instances are to be
        rented as soon as the cloud has them."""
        usd = bill(rented, now_s=now_s, modelled=True).usd
        beside_usd = self.beside_usd(progress, rented, now_s=now_s)
        over_s = now_s + self.stop_s(progress, now_s=now_s)
        later = bill(rented, now_s=over_s, modelled=True).usd
        later += self.beside_usd(progress, rented, now_s=over_s)
        reserve_usd = later - usd - beside_usd + missing * _least_usd(rented)
        return replace(
            progress, now_s=now_s, usd=usd, beside_usd=beside_usd, reserve_usd=reserve_usd
        )

    def stop_s(self, progress: Progress, *, now_s: float) -> float:
        """Seconds that a stop in order takes at most, by the longest of the last steps."""
        known = [one.at_s for one in progress.recent if one.at_s > 0]
        took_s = [after - before for before, after in pairwise(known)]
        longest_s = max(took_s, default=self.step_s)
        return STEPS_TO_STOP * longest_s + self.state_s + LEAVING_S


def spending_of(terms: Terms) -> Spending:
    """The spending of a run; its state is sent over the link of its instances."""
    catalogue, kinds = terms.catalogue, terms.job.cloud.instance_types
    bytes_per_s = min(catalogue.find(kind).network_gbps for kind in kinds) * 1e9 / 8
    return Spending(
        prices=catalogue.auxiliary,
        crossing_bytes=terms.crossing_bytes,
        step_s=terms.step_s,
        state_s=terms.frame_bytes / bytes_per_s if bytes_per_s > 0 else 0.0,
    )


def short_of(
    job: JobConfig, state: State, rented: Sequence[Rented], *, wanted: int | None
) -> tuple[int, int]:
    """(Instances that exist and are not about to leave, instances that a run in training lacks and
    the fleet may rent.) `wanted` None: as many as the job may have."""
    leaving = {node.instance for node in state.nodes if not node.usable}
    there = [one.instance for one in rented if one.ended_at_s is None]
    here = sum(instance not in leaving for instance in there)
    if state.assignment is None:
        return here, 0
    nodes = nodes_of(job) + kept_beyond(state) if wanted is None else wanted
    most = job.budget.max_instances
    able = min(nodes, most - (len(there) - here)) if most else nodes
    return here, max(0, able - here)


def _least_usd(rented: Sequence[Rented]) -> float:
    """The billed minimum of one more instance, at the dearest price that the run pays."""
    price = max((one.usd_per_hour for one in rented), default=0.0)
    return bill_micro_usd(MINIMUM_BILLED_S, usd_per_hour=price) / MICRO
