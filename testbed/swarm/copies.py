"""What a node holds of the model's state, by its own account.

Rule: a copy belongs to one slot, in its state before `step`. It changes only by taking that step. A
node that stops keeps what it had, until all nodes continue in a new layout.
"""

from dataclasses import dataclass, field

from bamboo.core.state import Holding, Norm
from bamboo.topology.slots import Slot


@dataclass(slots=True)
class Copy:
    """The state of one slot on this node, as owner, shadow, or future shadow."""

    slot: Slot
    first: int
    stop: int
    step: int
    begun: bool = False
    """Whether this owner computes the step."""
    exchanged: bool = False
    """Whether it has its whole gradient, and has sent its squares."""
    joining: bool = False
    born: int = 0
    """The step before which it was made; it has taken all steps since."""
    hit: int | None = None
    """For a successor that has not caught up: the step in which the owner was lost."""
    version: int = 0
    """Likewise, the step before which the replica stood."""
    evaluated: int = 0
    """The step before which this owner was last through with an evaluation."""
    told: int = 0
    """Likewise, and has reported it."""

    def take(self) -> None:
        """The step is done."""
        self.step += 1
        self.begun = self.exchanged = False


@dataclass(slots=True)
class Kept:
    """What a stopped node holds, for other nodes to fetch."""

    stopped: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(first, stop, step, reach)."""
    norms: set[int] = field(default_factory=set)
    fetched: set[tuple[int, int]] = field(default_factory=set)
    """(step, layer)."""

    def take(self, copy: Copy, *, owner: bool, safe_step: int) -> None:
        """Keep a copy that no longer changes."""
        reach = copy.step + 1 if owner and copy.exchanged else copy.step
        self.stopped.append((copy.first, copy.stop, copy.step, reach))
        self.norms |= {s for s in (copy.step - 1, copy.step - 2) if s >= max(copy.born, safe_step)}

    def holdings(self) -> tuple[Holding, ...]:
        """The holdings, as the node reports them."""
        out = [Holding(first=a, stop=b, step=s, reach=r) for a, b, s, r in self.stopped]
        known = {(s, layer) for a, b, s, _ in self.stopped for layer in range(a, b)}
        out += [
            Holding(first=layer, stop=layer + 1, step=step, reach=step)
            for step, layer in sorted(self.fetched - known)
        ]
        return tuple(out)

    def known_norms(self) -> tuple[Norm, ...]:
        """The norms, as the node reports them."""
        return tuple(Norm(step=s, total_square=1.0) for s in sorted(self.norms))

    def reach_to(self, base: int) -> None:
        """Take the step for which only the norm was missing."""
        self.stopped = [(a, b, base if r == base else s, r) for a, b, s, r in self.stopped]

    def layers_at(self, step: int) -> set[int]:
        """The layers that are here in their state before `step`."""
        here = {layer for a, b, s, _ in self.stopped if s == step for layer in range(a, b)}
        return here | {layer for at, layer in self.fetched if at == step}

    def clear(self) -> None:
        """All nodes continue."""
        self.stopped, self.norms, self.fetched = [], set(), set()
