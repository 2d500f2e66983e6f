"""What each node of a plan holds, and how it spends a calm step.

Rule: layers and replicas are those of the plan's assignment, bytes those of its memory report and
times those of a dry run; this file computes nothing a second way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from bamboo.ids import NodeId
from bamboo.planner.layers.memory import StageBytes
from bamboo.planner.plans.plan import Plan
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.step.cost import costs_for, layout_for
from bamboo.planner.step.figures import NodeFigures, node_figures, plan_run
from bamboo.topology.slots import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShare:
    """One node of the grid."""

    slot: Slot
    zone: str
    """Empty: any zone."""
    layers: range
    """Global layer indices."""
    replicas: tuple[Slot, ...]
    """Slots whose replicas it keeps."""
    bytes: StageBytes
    """The most that it holds: the bytes of its stage in the pipeline with the most of them."""
    figures: NodeFigures
    """The figures of a calm step."""


def node_shares(plan: Plan, workload: WorkloadFigures) -> tuple[NodeShare, ...]:
    """The share of every node of the grid, pipeline by pipeline."""
    workload = replace(workload, cuts={plan.grid.stages: plan.cut})
    layout = layout_for(plan.grid, shape=workload.shape, mode=plan.mode)
    figures = node_figures(plan_run(layout, costs_for(workload, plan.grid, plan.mode)))
    if plan.expected is not None:
        figures = {node: _until(one, plan.expected.step_s) for node, one in figures.items()}
    stages = [range(first, stop) for first, stop in pairwise(plan.cut)]
    return tuple(
        NodeShare(
            slot=slot,
            zone=zone_of(plan.assignment.owner(slot)),
            layers=stages[slot.stage],
            replicas=plan.assignment.shadowed_by(plan.assignment.owner(slot)),
            bytes=plan.memory[slot.stage],
            figures=figures[layout.assignment.owner(slot)],
        )
        for slot in plan.grid.slots()
    )


def _until(figures: NodeFigures, step_s: float) -> NodeFigures:
    """The figures for a step of `step_s`: a node waits for the rest of it."""
    spent_s = figures.useful_s + figures.redundant_s
    return replace(figures, idle_s=max(0.0, step_s - spent_s))


def tightest(nodes: Sequence[NodeShare]) -> tuple[NodeShare, NodeShare]:
    """The node that holds most, and the one that idles least. In one mode for all stages these two
    limit what redundancy may add. Among equal ones the first is taken."""
    most = max(nodes, key=lambda node: node.bytes.total)
    return most, min(nodes, key=lambda node: node.figures.idle_s)


def zone_of(node: NodeId) -> str:
    """The zone of a node of a plan, which is named after it."""
    return node.rpartition("/")[0]
