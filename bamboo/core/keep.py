"""Finds state that notices leave without a home, which nodes store it, and by when all must stand
still for that.

Rules. (1) A stage has a home while a node that stays holds it, as owner or as shadow, in any
pipeline. (2) A stage without a home is stored by the nodes that live longest, with the load of each
counted. A node is given SLACK times the time that its bytes take, and MARGIN_S. (3) Where a notice
is too short for a stage, nothing is tried; the plan says so too. All of it are functions of their
arguments alone.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from bamboo.core.rounds import Base, held_at, holders
from bamboo.core.state import Checkpoint, Keep, Part, Policy, Reconfiguration, State
from bamboo.ids import NodeId
from bamboo.quantities import size

SLACK = 1.5
MARGIN_S = 1.0

_Holders = Mapping[int, Sequence[NodeId]]
"""For each layer, the nodes that hold it; where all else is equal, the first one is preferred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which node would store which layers, and by when all must stand still."""

    parts: tuple[Part, ...]
    by_s: float
    """The store's time at which all must stand still; infinite if no node that stores is taken."""
    latest_s: float
    """After this time it is in vain, even if everything went as fast as it can."""


def needed_s(count: float, policy: Policy) -> float:
    """The time from when all stand still until one node has stored so many bytes, with a margin."""
    return SLACK * _written_s(count, policy) + MARGIN_S


def largest_stage(policy: Policy, cut: Sequence[int]) -> int:
    """The bytes of the state of the largest stage of a cut."""
    return max(sum(policy.layer_bytes[first:stop]) for first, stop in pairwise(cut))


def fits_notice(policy: Policy, cut: Sequence[int]) -> bool:
    """Whether a notice is long enough to store every stage of a cut."""
    return policy.keeps and needed_s(largest_stage(policy, cut), policy) <= policy.notice_s


def unfit_words(policy: Policy, cut: Sequence[int]) -> str:
    """Why nothing is stored where a notice is too short, as the end of a sentence."""
    rate, stage = size(policy.store_bytes_per_s), size(largest_stage(policy, cut))
    return f"a notice of {policy.notice_s:g} s is too short for {stage} a stage at {rate} a second"


def held_by(state: State, policy: Policy) -> dict[int, list[NodeId]]:
    """For each layer, the live nodes that hold it: owners, then shadows. While a new layout is
    being built: the nodes that held it when all stopped, and those that have all of their new
    layers."""
    assignment = state.assignment
    reconfiguration = state.reconfiguration
    live = state.roll.live
    out: dict[int, list[NodeId]] = {layer: [] for layer in range(len(policy.layer_bytes))}
    if reconfiguration is not None and reconfiguration.base is not None:
        for layer, nodes in holders(reconfiguration).items():
            out[layer] += [node for node in nodes if node in live]
    if assignment is None:
        return out
    laid_out = reconfiguration is not None and reconfiguration.base is not None
    built = (
        {one.node for one in reconfiguration.rebuilt}
        if reconfiguration is not None and laid_out
        else None
    )
    cut = cut_of(state, policy)
    pairs = zip(assignment.grid.slots(), assignment.owners, assignment.shadows, strict=True)
    ranked = [(slot.stage, owner, shadow) for slot, owner, shadow in pairs]
    for place in (1, 2):
        for row in ranked:
            stage, node = row[0], row[place]
            if node is None or node not in live or (built is not None and node not in built):
                continue
            for layer in range(cut[stage], cut[stage + 1]):
                if node not in out[layer]:
                    out[layer].append(node)
    return out


def cut_of(state: State, policy: Policy) -> tuple[int, ...]:
    """The present cut: the first layer of each stage, then the layer count."""
    return state.cut or policy.cut_for(state.grid.stages)


def homeless(held: _Holders, state: State) -> frozenset[int]:
    """The layers that some node holds, and no node that stays."""
    usable = state.roll.usable
    return frozenset(layer for layer, nodes in held.items() if nodes and usable.isdisjoint(nodes))


def divide(held: _Holders, state: State, policy: Policy) -> Plan | None:
    """Decide which node stores which layers, so that all can train on as long as possible; None if
    a layer has no holder."""
    if any(not nodes for nodes in held.values()):
        return None
    loads: dict[NodeId, int] = {}
    taken: dict[NodeId, list[int]] = {}

    def left_s(node: NodeId, more: int) -> float:
        return deadline_s(state, node) - SLACK * _written_s(loads.get(node, 0) + more, policy)

    units = _units(held, cut_of(state, policy))
    for unit in sorted(units, key=lambda unit: (-_bytes(unit, policy), unit)):
        count = _bytes(unit, policy)
        nodes = held[unit[0]]
        best = max(nodes, key=lambda n: (left_s(n, count), -loads.get(n, 0), -nodes.index(n)))
        loads[best] = loads.get(best, 0) + count
        taken.setdefault(best, []).extend(unit)
    parts = tuple(Part(node=n, layers=tuple(sorted(layers))) for n, layers in sorted(taken.items()))
    return Plan(
        parts=parts,
        by_s=min(deadline_s(state, n) - needed_s(load, policy) for n, load in loads.items()),
        latest_s=min(deadline_s(state, n) - _written_s(load, policy) for n, load in loads.items()),
    )


def deadline_s(state: State, node: NodeId) -> float:
    """The store's time at which a node will be taken; infinite if it has no notice."""
    found = state.node(node)
    said = None if found is None else found.notice_deadline_s
    return math.inf if said is None else said


def begin_keep(
    state: State, reconfiguration: Reconfiguration, base: Base, policy: Policy, *, era: int
) -> Keep | None:
    """What the nodes that have stopped should store of the state before the base; None if nothing
    must be stored, or no node can."""
    held = _held_at(reconfiguration, state.roll.live, base.step, base.total_square, policy)
    plan = divide(held, state, policy) if homeless(held, state) else None
    if plan is None:
        return None
    return Keep(step=base.step, era=era, total_square=base.total_square, parts=plan.parts)


def without(state: State, node: NodeId, policy: Policy) -> Keep | None:
    """Give what `node` has yet to store to other nodes, since it is lost or cannot store it; None
    if no other node holds that."""
    reconfiguration = state.reconfiguration
    assert reconfiguration is not None, "asked only while a reconfiguration is under way"
    keep = reconfiguration.keep
    assert keep is not None, "asked only while anything is being stored"
    unable = (*keep.unable, node)
    others = state.roll.live.difference(unable)
    held = _held_at(reconfiguration, others, keep.step, keep.total_square, policy)
    parts = list(keep.parts)
    for number, part in enumerate(parts):
        if part.node != node or number in keep.stored:
            continue
        able = [n for n in sorted(others) if all(n in held[layer] for layer in part.layers)]
        if not able:
            return None
        best = max(able, key=lambda n: deadline_s(state, n))
        parts[number] = replace(part, node=best)
    return replace(keep, parts=tuple(parts), unable=unable)


def left_words(keep: Keep) -> str:
    """Words for how much of it is stored."""
    return f"{len(keep.stored)} of {len(keep.parts)} parts of step {keep.step} are stored"


def shards_of(state: State, era: int) -> int:
    """How many shards a checkpoint has that is completed in `era`."""
    keep = None if state.reconfiguration is None else state.reconfiguration.keep
    return state.grid.stages if keep is None or keep.era != era else len(keep.parts)


def is_kept(checkpoints: Iterable[Checkpoint], step: int) -> bool:
    """Whether there is a complete checkpoint of the state before `step`."""
    return any(made.step == step for made in checkpoints)


def committer(state: State, keep: Keep) -> NodeId | None:
    """The node that should write the manifest: the one that lives longest, of the live nodes that
    have not failed at it; if all have failed, of all live nodes."""
    live = state.roll.live
    able = live.difference(keep.unable) or live
    return max(sorted(able), key=lambda node: deadline_s(state, node), default=None)


def _held_at(
    reconfiguration: Reconfiguration,
    live: Collection[NodeId],
    step: int,
    total_square: float | None,
    policy: Policy,
) -> dict[int, list[NodeId]]:
    out: dict[int, list[NodeId]] = {layer: [] for layer in range(len(policy.layer_bytes))}
    for report in sorted(reconfiguration.reports, key=lambda report: report.node):
        if report.node in live:
            for layer in held_at(report, step, total_square):
                out[layer].append(report.node)
    return out


def _units(held: _Holders, cut: Sequence[int]) -> list[tuple[int, ...]]:
    """Group consecutive layers of one stage that the same nodes hold."""
    out: list[list[int]] = []
    for layer in sorted(held):
        if out and layer not in cut and held[out[-1][0]] == held[layer]:
            out[-1].append(layer)
        else:
            out.append([layer])
    return [tuple(unit) for unit in out]


def _bytes(layers: Iterable[int], policy: Policy) -> int:
    return sum(policy.layer_bytes[layer] for layer in layers)


def _written_s(count: float, policy: Policy) -> float:
    return count / policy.store_bytes_per_s if policy.store_bytes_per_s else 0.0
