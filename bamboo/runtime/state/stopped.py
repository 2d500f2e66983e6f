"""What a node holds once it has stopped: the runs of its slots, and layers that were sent to it.

Rule: what a node held when it stopped stays as it is until all nodes go on: another node may ask
for it, this node may have to store it, and another round may begin.
"""

from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from bamboo.core.state import Holding, Keep, Norm
from bamboo.ids import NodeId
from bamboo.ports import MessageKey
from bamboo.runtime.optim.state import Layout
from bamboo.runtime.state.restore import Vault
from bamboo.runtime.step.executor import Executor
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.wire.messages import Mailbox


class Stopped:
    """The stopped state of one node. Belongs to the trainer's thread."""

    def __init__(self, *, me: NodeId, mailbox: Mailbox, executor: Executor) -> None:
        self._me = me
        self._mailbox = mailbox
        self._executor = executor
        self._runs: list[SlotRun] = []
        self.held: dict[tuple[int, int], Mapping[str, Tensor]] = {}
        """By (step, layer): layers that were prefetched, sent since, or read."""
        self._views: dict[tuple[int, int], Mapping[str, Tensor]] = {}
        """By (step, layer): tensors of runs that have stopped."""
        self._kept: set[tuple[int, int]] = set()
        """Era and number of each part that was given to be stored."""

    def take(self, runs: Iterable[SlotRun]) -> None:
        """Add runs that have stopped."""
        for run in runs:
            run.recovery = None
            self._runs.append(run)

    def clear(self) -> None:
        """Drop everything: all nodes go on."""
        self._runs = []
        self.held = {}
        self._views = {}
        self._kept.clear()

    def holdings(self) -> tuple[Holding, ...]:
        """What this node holds, as it reports it."""
        out = []
        for run in self._runs:
            first, last = run.stage.layers[0][0], run.stage.layers[-1][0]
            reach = run.step + 1 if run.owner and run.exchanged else run.step
            out.append(Holding(first=first, stop=last + 1, step=run.step, reach=reach))
        known = {(h.step, layer) for h in out for layer in range(h.first, h.stop)}
        for step, layer in sorted(self.held.keys() - known):
            out.append(Holding(first=layer, stop=layer + 1, step=step, reach=step))
        return tuple(out)

    def norms(self) -> tuple[Norm, ...]:
        """The gradient norms of the steps that are known here."""
        norms = {s: done.total_square for run in self._runs for s, done in run.history.items()}
        return tuple(Norm(step=s, total_square=x) for s, x in sorted(norms.items()))

    def reach(self, base: int, total_square: float | None) -> None:
        """Take the step that lacked only the norm of the whole model, or waited for shadows."""
        self._executor.operations.shadows_first.end()
        if total_square is None:
            return
        for run in self._runs:
            if run.owner and run.exchanged and run.step == base - 1:
                key = MessageKey(kind="norm", to=run.slot, source=run.slot, step=run.step)
                self._mailbox.post_to(self._me, key, (), {"total_square": total_square})
                self._executor.operations.perform(run, run.head)

    def keep(self, keep: Keep, vault: Vault, layout_of: Callable[[Iterable[int]], Layout]) -> None:
        """Have this node's parts stored, each of them once. `layout_of`: of layers of which there
        is no run here."""
        for number, part in enumerate(keep.parts):
            if part.node != self._me or (keep.era, number) in self._kept:
                continue
            self._kept.add((keep.era, number))
            self.reach(keep.step, keep.total_square)
            states = (self.state_of(keep.step, layer) for layer in part.layers)
            tensors = {name: tensor for state in states for name, tensor in state.items()}
            known = {layer for run in self._runs for layer, _ in run.stage.layers}
            constant = layout_of(layer for layer in part.layers if layer not in known).constant
            constant = constant.union(*(run.stage.untrained.constant for run in self._runs))
            vault.keep(keep.step, keep.era, number, tensors, constant & tensors.keys())

    def layers_at(self, base: int) -> set[int]:
        """The layers that are here as they are before `base`."""
        here = {layer for step, layer in self.held if step == base}
        for run in self._runs:
            if run.step == base:
                here.update(index for index, _ in run.stage.layers)
        return here

    def state_of(self, base: int, layer: int) -> Mapping[str, Tensor]:
        """A layer's parameters and moments, by name, in the order in which they are sent."""
        found = self.held.get((base, layer), self._views.get((base, layer)))
        if found is None:
            run = next(
                r
                for r in self._runs
                if r.step == base and any(index == layer for index, _ in r.stage.layers)
            )
            found = self._views[(base, layer)] = run.tensors_of(layer)
        return found
