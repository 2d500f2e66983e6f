"""The figures that decisions use, given by the job and stored with the run's first log entry.

Rule: every decision is a function of state, event, time and these figures alone, so a run's whole
history can be recomputed from its log.
"""

import math
from dataclasses import dataclass

from bamboo.errors import CoreMisuse
from bamboo.topology.strategy import SPREADS


@dataclass(frozen=True, slots=True, kw_only=True)
class GridTime:
    """What a calm step takes on a grid with a node for every slot, by the planner's figures."""

    pipelines: int
    stages: int
    step_s: float

    @property
    def size(self) -> int:
        """Nodes that it takes."""
        return self.pipelines * self.stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long a node may stand still, in seconds of the store's time.

    Raises CoreMisuse unless 0 < suspect_s <= gone_s and both are finite.
    """

    suspect_s: float = 1.0
    """A progress counter that has not grown for so long makes its node suspected (evidence)."""
    gone_s: float = 3.0
    """One that has not grown for so long makes the node gone (decision). Also the length of a
    lease, and of the grace that all nodes get after the store was away."""
    cuts: tuple[tuple[int, ...], ...] = ()
    """For each number of stages that the model may be cut into: the first layer of each stage and
    the layer count. Empty: the layout never changes."""
    virtual_nodes: int = 1
    pipelines: int = 1
    """The most that the run may have; there are fewer while there are fewer nodes."""
    stages: int = 2
    """What each pipeline is to have while there are nodes enough."""
    steps: int = 0
    """Of the whole run; 0: nobody knows."""
    checkpoint_every: int = 0
    """Steps between checkpoints; 0: only what notices leave without a home is stored."""
    layer_bytes: tuple[int, ...] = ()
    """Of parameters and moments, by layer. Empty: no state is kept in an emergency."""
    store_bytes_per_s: float = 0.0
    """Between one node and the checkpoints; 0: sizes do not matter."""
    notice_s: float = 120.0
    """What is left of a notice when the members hear of it."""
    grids: tuple[GridTime, ...] = ()
    """Every grid that the run may have. Empty: nobody knows how long steps take, and the rule is as
    many whole pipelines as there are nodes for."""
    spread: str = "one"
    """How slots and replicas are laid over zones, one of SPREADS. Only `neighbours` places them
    differently: the others keep a pipeline within a zone where they can."""

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
        """Whether neighbours of a ring are to lie in different zones."""
        return self.spread == "neighbours"

    @property
    def elastic(self) -> bool:
        """Whether the layout may change."""
        return bool(self.cuts)

    @property
    def keeps(self) -> bool:
        """Whether state that notices leave without a home may be stored."""
        return self.elastic and bool(self.layer_bytes)

    def step_s(self, pipelines: int, stages: int) -> float | None:
        """Of a calm step on a grid, where it is known."""
        for grid in self.grids:
            if (grid.pipelines, grid.stages) == (pipelines, stages):
                return grid.step_s
        return None

    def cut_for(self, stages: int) -> tuple[int, ...]:
        """The cut into so many stages. Raises CoreMisuse when the model was not cut so."""
        for cut in self.cuts:
            if len(cut) == stages + 1:
                return cut
        raise CoreMisuse(f"the policy has no cut into {stages} stages")
