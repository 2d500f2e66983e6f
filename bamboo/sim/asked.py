"""The question of a simulation, as one value.

Rule: everything that determines a run, except the market and the seed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from bamboo.core.state import Policy
from bamboo.planner.prices.auxiliary import AuxiliaryPrice
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.sim.market.prices import Prices
from bamboo.sim.members import Pauses
from bamboo.sim.sizing import Sizes
from bamboo.sim.world import Terms
from bamboo.topology.grid import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be simulated."""

    workload: WorkloadFigures
    policy: Policy
    grid: Grid
    """The grid at the beginning."""
    redundancy: str
    standbys: int
    patience_s: float
    park_s: float
    surplus_s: float = math.inf
    """Time for which a node beyond what the run can use is kept."""
    sizes: Sizes | None = None
    """What an autoscaled run chooses its size by; None: it keeps as many nodes as it may have."""
    terms: Terms
    pauses: Pauses
    prices: Prices
    """Price of a spot instance."""
    on_demand_usd_per_hour: float
    free_first_hour: bool = False
    """Whether the first hour of a spot instance that the market takes within it is free, as
    `budget.free_first_hour` of a job."""
    horizon_s: float
    last_step: float = math.inf
    restart_s: Mapping[str, float] = field(default_factory=dict)
    """Restart times of other ways, by name, that differ from their default
    (`bamboo.sim.ways.RESTART_S`)."""
    store: Mapping[str, AuxiliaryPrice] = field(default_factory=dict)
    """Prices of the object store; empty: checkpoints cost nothing."""
    interval_is_open: bool = False
    """Whether the plan chose `policy.checkpoint_every`; then each other way takes its own best
    interval."""
    keep: int = 2
    """Number of checkpoints that are kept."""

    @property
    def given_every(self) -> int:
        """Steps between checkpoints for every way; 0: each has its own interval."""
        return 0 if self.interval_is_open else self.policy.checkpoint_every
