"""The end of training on a node: it stores the final state of its stages, then reports it.

Rule: the report covers all that the node owns, and is repeated when the node owns something else.
It is repeated when the node has caught up with what it took over: a store that had lost
the run may receive it before the node has reported again that it has caught up, and would then
treat it as too early.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from torch import Tensor

from bamboo.core.events import NodeFinished
from bamboo.core.state import State
from bamboo.ids import NodeId
from bamboo.runtime.step.executor import Executor
from bamboo.runtime.wire.outbox import Outbox
from bamboo.topology.slots import Slot

KeepStage: TypeAlias = Callable[[int, Mapping[str, Tensor], int, Collection[str]], object]
"""(stage, its tensors by name, completed steps, names of those that never change) -> the stage is
stored."""


class Finish:
    """What one node has reported of its end. `keep` stores a stage's final state, or is None."""

    def __init__(
        self,
        *,
        me: NodeId,
        executor: Executor,
        outbox: Outbox,
        keep: KeepStage | None,
    ) -> None:
        self._me = me
        self._executor = executor
        self._outbox = outbox
        self._keep = keep
        self._said: tuple[Slot, ...] = ()
        self._behind = False
        """Whether the run waits for this node to catch up."""

    @property
    def said(self) -> bool:
        """Whether the report covers all that the node owns now."""
        return bool(self._executor.owned) and self._said == tuple(self._executor.owned)

    def take_back(self) -> None:
        """Make the node report again, because it owns something else now."""
        self._said = ()

    def read(self, state: State) -> None:
        """Note a decision that was read."""
        behind = any(failover.successor == self._me for failover in state.failovers)
        if self._behind and not behind and self.said and self._me not in state.finished:
            self._outbox.event(NodeFinished(node=self._me, step=self._executor.last_step))
        self._behind = behind

    def say(self) -> None:
        """Store the stages of pipeline 0 that the node owns, then report it."""
        step = self._executor.last_step + 1
        for slot, run in self._executor.owned.items():
            if slot.pipeline == 0 and self._keep is not None:
                self._keep(slot.stage, run.tensors(), step, run.stage.untrained.constant)
        self._said = tuple(self._executor.owned)
        self._outbox.event(NodeFinished(node=self._me, step=self._executor.last_step))
