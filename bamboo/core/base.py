"""Finds the base of a reconfiguration: the step from which all nodes go on.

Rule: the state before a step is the same bits wherever it lies. So the base is the newest step for
which every layer is found somewhere, on a live node or in a checkpoint.
"""

from dataclasses import dataclass

from bamboo.core.state import Checkpoint, Policy, Reconfiguration, Report, State
from bamboo.ids import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A step from which all nodes can go on."""

    step: int
    checkpoint: bool
    total_square: float | None


def find_base(state: State, policy: Policy) -> Base | None:
    """Find the newest step for which every layer is there; None if there is no such step."""
    reconfiguration = state.reconfiguration
    assert reconfiguration is not None, "asked only while a reconfiguration is under way"
    live = reconfiguration.intact or state.redundancy != "off"
    holdings = [h for r in reconfiguration.reports for h in r.holdings] if live else []
    norms = {n.step: n.total_square for r in reconfiguration.reports for n in r.norms}
    kept = {checkpoint.step for checkpoint in checkpoints_of(state, policy)}
    for step in sorted({h.step for h in holdings} | {h.reach for h in holdings} | kept)[::-1]:
        norm = norms.get(step - 1)
        layers: set[int] = set()
        for h in holdings:
            if h.step == step or (h.reach == step and norm is not None):
                layers.update(range(h.first, h.stop))
        if len(layers) == policy.cuts[0][-1]:
            return Base(step=step, checkpoint=False, total_square=norm)
        if step in kept:
            return Base(step=step, checkpoint=True, total_square=norm)
    return None


def checkpoints_of(state: State, policy: Policy) -> tuple[Checkpoint, ...]:
    """The complete checkpoints. A run that writes checkpoints can also begin again from step 0."""
    start = (Checkpoint(step=0, era=0),) if policy.checkpoint_every > 0 else ()
    return (*start, *state.checkpoints)


def held_at(report: Report, base: int, total_square: float | None) -> frozenset[int]:
    """The layers that a node holds, or can reach, as they are before step `base`."""
    return frozenset(
        layer
        for h in report.holdings
        if h.step == base or (h.reach == base and total_square is not None)
        for layer in range(h.first, h.stop)
    )


def holders(reconfiguration: Reconfiguration) -> dict[int, tuple[NodeId, ...]]:
    """For each layer, the nodes that can send it as it is at the base."""
    out: dict[int, tuple[NodeId, ...]] = {}
    assert reconfiguration.base is not None, "a base is decided before anything is sent"
    for report in reconfiguration.reports:
        for layer in held_at(report, reconfiguration.base, reconfiguration.total_square):
            out[layer] = (*out.get(layer, ()), report.node)
    return out
