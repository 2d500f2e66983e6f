"""The grid D x P and the neighbours in it."""

from dataclasses import dataclass
from functools import lru_cache

from bamboo.errors import CoreMisuse
from bamboo.topology.slots import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """`pipelines` (D >= 1) full copies of the model, each cut into `stages` (P >= 1). With P = 1 a
    pipeline is one node with the whole model, and its slot is its own neighbour."""

    pipelines: int
    stages: int

    def __post_init__(self) -> None:
        if self.pipelines < 1 or self.stages < 1:
            raise ValueError(
                f"a grid needs D >= 1 and P >= 1, not {self.pipelines} x {self.stages}"
            )

    @property
    def size(self) -> int:
        return self.pipelines * self.stages

    def slots(self) -> tuple[Slot, ...]:
        """All slots, pipeline by pipeline, stage by stage."""
        return _slots(self.pipelines, self.stages)

    def number(self, slot: Slot) -> int:
        """The index of `slot` in `slots()`. Raises CoreMisuse for a slot of another grid."""
        if not (0 <= slot.pipeline < self.pipelines and 0 <= slot.stage < self.stages):
            grid = f"{self.pipelines} x {self.stages}"
            raise CoreMisuse(f"slot {slot} is none of the grid {grid}")
        return slot.pipeline * self.stages + slot.stage

    def pipeline(self, pipeline: int) -> tuple[Slot, ...]:
        """The slots of one pipeline, in stage order."""
        return self.slots()[pipeline * self.stages : (pipeline + 1) * self.stages]

    def column(self, stage: int) -> tuple[Slot, ...]:
        """The slots that hold the same stage, in pipeline order."""
        return self.slots()[stage :: self.stages]

    def protector(self, slot: Slot) -> Slot:
        """The slot whose owner keeps the replica of `slot`: its predecessor, cyclically. Raises
        CoreMisuse as `number` does.

        (Thorpe et al., Bamboo, NSDI 2023: each node carries the next stage's layers too.)
        """
        return self.slots()[self.before(self.number(slot))]

    def protected(self, slot: Slot) -> Slot:
        """The slot whose replica the owner of `slot` keeps: its successor, cyclically. Raises
        CoreMisuse as `number` does."""
        return self.slots()[self.after(self.number(slot))]

    def before(self, number: int) -> int:
        """The number of the protector of the slot of that number."""
        return number - 1 if number % self.stages else number + self.stages - 1

    def after(self, number: int) -> int:
        """The number of the slot that the slot of that number protects."""
        return number + 1 if (number + 1) % self.stages else number + 1 - self.stages


@lru_cache(maxsize=256)
def _slots(pipelines: int, stages: int) -> tuple[Slot, ...]:
    return tuple(Slot(pipeline=d, stage=p) for d in range(pipelines) for p in range(stages))
