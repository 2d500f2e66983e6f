"""The end of training on a node: the final state of its stages on disk, then the word that it is.

Rule: it is said for all that the node owns, and said again when it owns something else; and once
more when the node has caught up with what it took over: a store that had lost the run may hear that
it has finished before it hears again that it has caught up, and takes the former for too early.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from torch import Tensor

from bamboo.core.events import NodeFinished
from bamboo.core.state import State
from bamboo.ids import NodeId
from bamboo.runtime.step.executor import Executor
from bamboo.runtime.wire.outbox import Outbox
from bamboo.topology.slots import Slot

KeepStage: TypeAlias = Callable[[int, Mapping[str, Tensor], int], object]
"""Stage, its tensors by name, completed steps."""


class Finish:
    """What one node has said of its end. `keep` writes a stage of the final state; None: nobody
    wants it."""

    def __init__(
        self,
        *,
        me: NodeId,
        executor: Executor,
        outbox: Outbox,
        keep: KeepStage | None,
    ) -> None:
        self._me, self._executor, self._outbox, self._keep = me, executor, outbox, keep
        self._said: tuple[Slot, ...] = ()
        self._behind = False
        """Whether the run waits for this node to catch up."""

    @property
    def said(self) -> bool:
        """Whether it was said for all that the node owns now."""
        return bool(self._executor.owned) and self._said == tuple(self._executor.owned)

    def take_back(self) -> None:
        """The node owns something else now."""
        self._said = ()

    def read(self, state: State) -> None:
        """A decision that was read here."""
        behind = any(failover.successor == self._me for failover in state.failovers)
        if self._behind and not behind and self.said and self._me not in state.finished:
            self._outbox.event(NodeFinished(node=self._me, step=self._executor.last_step))
        self._behind = behind

    def say(self) -> None:
        """Write the stages of pipeline 0 that the node owns, then say so."""
        step = self._executor.last_step + 1
        for slot, run in self._executor.owned.items():
            if slot.pipeline == 0 and self._keep is not None:
                self._keep(slot.stage, run.tensors(), step)
        self._said = tuple(self._executor.owned)
        self._outbox.event(NodeFinished(node=self._me, step=self._executor.last_step))
