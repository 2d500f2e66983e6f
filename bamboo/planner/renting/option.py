"""One way to rent for a job, as a value: the offer, the question, and the resulting option.

Rule: plain values; `options` finds them. Every figure of an option is the planner's, and its value
is that of `value.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from bamboo.planner.layers.bounded import MOST_BYTES
from bamboo.planner.plans.losses import Hazard
from bamboo.planner.plans.ranking import Candidate
from bamboo.planner.profiles.workload import NO_SAVING, Saving, WorkloadFigures
from bamboo.planner.risks.hazards import PUBLISHED, LossRate
from bamboo.planner.risks.zones import REPLACE_S, Stakes
from bamboo.topology.strategy import BARE_MODES, REDUNDANCY_MODES
from bamboo.value import tokens_per_usd

ON_DEMAND = "on-demand"
SPOT = "spot"
MIXED = "mixed"
MARKETS = (SPOT, ON_DEMAND, MIXED)
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One instance type, and the job's figures on it."""

    name: str
    gpu: str
    memory_bytes: int
    """Memory of one node."""
    workload: WorkloadFigures
    on_demand_usd_per_hour: float
    spot_usd_per_hour: Mapping[str, float]
    """By zone; empty if it is not available on spot."""
    rate: LossRate = PUBLISHED
    """Rate of losses on spot."""
    host_bytes: int = MOST_BYTES
    """Memory of its host, as in `Room`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What all options have in common."""

    nodes: range
    steps: int
    checkpoint_every: int | None
    """As in `Stakes`, like `put_usd`."""
    replace_s: float = REPLACE_S
    """Time until a lost node is replaced."""
    standbys: int = 0
    modes: tuple[str, ...] = REDUNDANCY_MODES
    savings: tuple[Saving, ...] = (NO_SAVING,)
    """As in `Room`."""
    put_usd: float = 0.0
    most_hours: float = inf
    """Expected hours; slower plans are left out."""
    least_value: float = 0.0
    """Samples per dollar: a line whose plans cannot reach it is not examined closely."""

    def hazard(
        self,
        zone_usd_per_hour: Mapping[str, float],
        *,
        preemptible: bool,
        rate: LossRate = PUBLISHED,
    ) -> Hazard:
        """The hazard of nodes at these prices and this rate of losses."""
        stakes = Stakes(
            zone_usd_per_hour=zone_usd_per_hour,
            preemptible=preemptible,
            steps=self.steps,
            checkpoint_every=self.checkpoint_every,
            put_usd=self.put_usd,
        )
        return Hazard(stakes=stakes, rate=rate, replace_s=self.replace_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The choices that tell options apart."""

    instance_type: str
    market: str
    spread: str
    mode: str

    @property
    def resilience(self) -> str:
        """The redundancy mode in words for a user: what helps when a node is lost."""
        return {"off": "checkpoints only", "peer": "other pipelines"}.get(self.mode, self.mode)

    @property
    def name(self) -> str:
        """Text such as `g5.xlarge spot, stash, all in one zone`."""
        where = {
            "one": "all in one zone",
            "pipelines": "a pipeline in a zone",
            "neighbours": "neighbours in different zones",
        }[self.spread]
        return f"{self.instance_type} {self.market}, {self.resilience}, {where}"

    @property
    def redundant(self) -> bool:
        """Whether a stage has a replica."""
        return self.mode not in BARE_MODES


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A line with its best plan; all its figures are those of the planner."""

    line: Line
    gpu: str
    plan: Candidate
    zones: Mapping[str, int]
    """Zone -> nodes, standbys included."""
    anchors: int
    """The nodes that are on demand in a mixed option: `cloud.anchors` of its launch."""
    preemptions_per_node_hour: float
    """Expected rate for the spot nodes, by their zones; 0: there are none."""
    steps: int
    batch: int

    @property
    def launchable(self) -> bool:
        """Whether a launch rents exactly this option. `cloud.anchors` says how many nodes are on
        demand, but not in which slots they are. That suffices if each stage has a live copy on one
        of them wherever they are, and no standby may be one."""
        if self.line.market != MIXED:
            return True
        grid = self.plan.choice.grid
        standbys = self.plan.nodes - grid.size
        return grid.pipelines == 1 and grid.stages - self.anchors <= 1 and not standbys

    def by_market(self) -> dict[bool, int]:
        """Whether on spot -> number of nodes."""
        fixed = self.plan.nodes if self.line.market == ON_DEMAND else self.anchors
        return {
            spot: nodes
            for spot, nodes in ((True, self.plan.nodes - fixed), (False, fixed))
            if nodes
        }

    @property
    def value(self) -> float:
        """Samples per US dollar: `value.samples_per_usd`, less what losses cost."""
        return self.plan.value

    @property
    def hours(self) -> float:
        """Expected hours until the last step."""
        return self.steps * self.batch / self.plan.expected_samples_per_s / HOUR_S

    @property
    def usd(self) -> float:
        """Expected total cost."""
        return self.steps * self.batch / self.value

    @property
    def preemptions(self) -> float:
        """Expected total number."""
        spot = self.by_market().get(True, 0)
        return self.preemptions_per_node_hour * spot * self.hours

    def usd_per_million(self, tokens_per_sample: int) -> float:
        """The price of a million tokens; of a million samples where a sample has no tokens."""
        return 1e6 / tokens_per_usd(self.value, tokens_per_sample or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfits:
    """Lines without a plan that fits into memory."""

    lines: int
    nearest: str
    """The type and the reason, with layer and bytes; "" if there are none."""
    memory_bytes: int = 0
    """Memory of a node of that type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The table: the options found, best first, and all other lines examined."""

    found: tuple[Option, ...]
    behind: tuple[tuple[Line, float], ...]
    """Each other line, with an upper bound of its value."""
    misfits: Misfits
    too_slow: tuple[Line, ...]
    """Lines in which every plan that fits takes longer than allowed."""
    least_hours: float
    """The least time of any plan that fits, without the limit; inf: none fits."""
    lines: int
    """Number of all lines."""

    def first(self, wanted: Callable[[Option], bool]) -> Option | None:
        """The best option for which `wanted` is true."""
        return next((one for one in self.found if wanted(one)), None)
