"""What the members of a simulated run have in common, whatever they are doing.

Rule: members know the state that was decided last, say what has come to pass, and need the times
that `Pauses` states beyond the work itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from bamboo.core.events import Event
from bamboo.core.policy import Policy
from bamboo.core.state import State
from bamboo.planner.workload import Workload
from bamboo.sim.world import World
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout, equal_shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """What members need beyond the work itself. The defaults are rounded from this project's own
    benchmarks on one machine, where they were measured."""

    detect_s: float = 0.05
    """From a loss to the decision."""
    answer_s: float = 0.02
    """From a decision to what is said to it."""
    move_s: float = 0.05
    """A slot changes hands at a boundary."""
    reconfiguration_s: float = 0.5
    """A reconfiguration, beside what is sent."""
    restore_s: float = 1.0
    """To find and check a checkpoint, beside what is read."""


class Run(Protocol):
    """One simulated run."""

    world: World
    workload: Workload
    policy: Policy
    pauses: Pauses
    state: State

    def say(self, event: Event) -> None:
        """A member, or whoever keeps the fleet, has something to say now."""

    def say_all(self, events: Sequence[Event]) -> None:
        """Many have, at the same instant."""


def step_in_hand(run: Run) -> int:
    """The step that all members are at."""
    return run.world.progress.whole


def layout_of(state: State, policy: Policy) -> ModelLayout:
    """How the model lies over the grid of a state."""
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
    """Made once: a run asks for its own at every turn."""
    return ModelLayout(grid=Grid(pipelines=pipelines, stages=stages), cut=cut, shares=shares)
