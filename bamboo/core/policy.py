"""The figures of a job that decisions are made with. They stand in the first log entry and never
change."""

import math
from dataclasses import dataclass

from bamboo.errors import CoreMisuse
from bamboo.topology.strategy import SPREADS


@dataclass(frozen=True, slots=True, kw_only=True)
class GridTime:
    """The time of a calm step on a grid with one node for each slot, by the planner's figures."""

    pipelines: int
    stages: int
    step_s: float

    @property
    def size(self) -> int:
        """The number of nodes of this grid."""
        return self.pipelines * self.stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The figures of one run. Times are seconds of the store's clock.

    Raises CoreMisuse unless 0 < suspect_s <= gone_s and both are finite, and for an unknown
    `spread`.
    """

    suspect_s: float = 1.0
    """A node whose progress counter has not grown for so long is suspected (evidence)."""
    gone_s: float = 3.0
    """A node whose progress counter has not grown for so long is gone (decision). This is also the
    length of a lease, and of the time that all nodes are given after an outage of the store."""
    cuts: tuple[tuple[int, ...], ...] = ()
    """One cut for each number of stages that the model may have: the first layer of each stage,
    then the layer count. Empty: the layout never changes."""
    virtual_nodes: int = 1
    pipelines: int = 1
    """The largest number of pipelines; with fewer nodes there are fewer."""
    stages: int = 2
    """The number of stages of each pipeline while there are enough nodes."""
    steps: int = 0
    """The steps of the whole run; 0: unknown."""
    checkpoint_every: int = 0
    """Steps between checkpoints; 0: state is stored in an emergency only."""
    layer_bytes: tuple[int, ...] = ()
    """Bytes of parameters and moments, by layer. Empty: nothing is stored in an emergency."""
    store_bytes_per_s: float = 0.0
    """The rate between one node and the checkpoint store; 0: sizes do not matter."""
    notice_s: float = 120.0
    """How much of a notice is left when the members read it."""
    grids: tuple[GridTime, ...] = ()
    """Every grid that the run may have. Empty: step times are unknown, and the rule is as many
    whole pipelines as there are nodes for."""
    eval_every: int = 0
    """Steps between evaluations; 0: there are none."""
    eval_patience: int = 0
    """How many in a row may be no better (`eval_higher`: higher) than the best one; 0: any."""
    eval_higher: bool = False
    spread: str = "one"
    """How slots and replicas are spread over zones, one of SPREADS. Only `neighbours` puts
    neighbours into different zones; the others keep a pipeline within one zone where they can.
    With one stage `pipelines` puts these into different zones."""

    def __post_init__(self) -> None:
        if not (0 < self.suspect_s <= self.gone_s and math.isfinite(self.gone_s)):
            raise CoreMisuse(
                f"suspect_s = {self.suspect_s} and gone_s = {self.gone_s} are no policy; "
                "need 0 < suspect_s <= gone_s"
            )

        if self.spread not in SPREADS:
            raise CoreMisuse(f"spread {self.spread!r} is none of {', '.join(SPREADS)}")

    @property
    def apart(self) -> bool:
        """Whether neighbours of a ring should lie in different zones. With one stage a pipeline is
        a node, and the other pipelines are what it has for neighbours."""
        return self.spread == ("neighbours" if self.stages > 1 else "pipelines")

    @property
    def elastic(self) -> bool:
        """Whether the layout may change."""
        return bool(self.cuts)

    @property
    def keeps(self) -> bool:
        """Whether state may be stored in an emergency."""
        return self.elastic and bool(self.layer_bytes)

    def step_s(self, pipelines: int, stages: int) -> float | None:
        """The time of a calm step on this grid, or None where it is unknown."""
        for grid in self.grids:
            if (grid.pipelines, grid.stages) == (pipelines, stages):
                return grid.step_s
        return None

    def cut_for(self, stages: int) -> tuple[int, ...]:
        """The cut into so many stages. Raises CoreMisuse when there is none."""
        for cut in self.cuts:
            if len(cut) == stages + 1:
                return cut
        raise CoreMisuse(f"the policy has no cut into {stages} stages")
