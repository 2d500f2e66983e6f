"""What the members of a simulated run have in common, in every phase.

Rule: members know the newest decided state, report events, and take the times that `Pauses` gives
in addition to the work itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from bamboo.core.events import Event
from bamboo.core.state import Policy, State
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.sim.world import World
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout, equal_shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Times that members need beyond the work itself. The defaults are rounded from this project's
    own benchmarks, measured on one machine."""

    detect_s: float = 0.05
    """From a loss to the decision."""
    answer_s: float = 0.02
    """From a decision to the members' answer."""
    move_s: float = 0.05
    """For a slot to change its owner at a boundary."""
    reconfiguration_s: float = 0.5
    """For a reconfiguration, in addition to the transfers."""
    restore_s: float = 1.0
    """To find and check a checkpoint, in addition to reading it."""


class Run(Protocol):
    """One simulated run."""

    world: World
    workload: WorkloadFigures
    policy: Policy
    pauses: Pauses
    state: State

    def say(self, event: Event) -> None:
        """A member, or the keeper of the fleet, reports an event now."""

    def say_all(self, events: Sequence[Event]) -> None:
        """Many report events, at the same time."""


def step_in_hand(run: Run) -> int:
    """The step in which all members are."""
    return run.world.progress.whole


def layout_of(state: State, policy: Policy) -> ModelLayout:
    """The layout of the model on the grid of a state."""
    grid = state.grid
    return _layout(
        grid.pipelines,
        grid.stages,
        state.cut or policy.cut_for(grid.stages),
        state.shares or _equal_shares(policy.virtual_nodes, grid.pipelines),
    )


_equal_shares = lru_cache(maxsize=64)(equal_shares)


@lru_cache(maxsize=256)
def _layout(
    pipelines: int, stages: int, cut: tuple[int, ...], shares: tuple[int, ...]
) -> ModelLayout:
    """Cached, because a run asks for its layout again and again."""
    return ModelLayout(grid=Grid(pipelines=pipelines, stages=stages), cut=cut, shares=shares)
