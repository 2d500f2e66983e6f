"""How many redundant forwards fit which wait of a stage in mode `gap`, predicted by a dry run.

On the virtual device the durations are its figures. On a CPU the stages' durations are not known
before the first step; there the dry run assumes equal stages and a backward of twice a forward, in
which case the answer depends on this ratio alone.
"""

from bamboo.config.resolve import batch_shape
from bamboo.config.tree import JobConfig
from bamboo.ids import NodeId
from bamboo.schedule.figures import gap_budgets
from bamboo.schedule.layout import Costs, Layout
from bamboo.schedule.one_f_one_b import one_f_one_b
from bamboo.topology.assignment import Assignment
from bamboo.topology.strategy import stage_modes
from bamboo.topology.virtual_nodes import blocks


def gap_budget_of(job: JobConfig, assignment: Assignment, node: NodeId) -> dict[int, int]:
    """Cursor of the node's owned slot -> redundant forwards of the slot that it shadows."""
    shadowed, grid = assignment.shadowed_by(node), assignment.grid
    modes = stage_modes(job.cluster.redundancy, grid.stages)
    if len(shadowed) != 1 or modes[shadowed[0].stage] != "gap":
        return {}
    batch = batch_shape(job)
    programs = tuple(
        one_f_one_b(grid.stages, len(batch.microbatches_of(block)))
        for block in blocks(batch.virtual_nodes, grid.pipelines)
    )
    virtual = job.cluster.device == "virtual"
    forward = job.cluster.virtual_forward_ms if virtual else (1.0,)
    backward = job.cluster.virtual_backward_ms if virtual else (2.0,)
    costs = Costs.of(
        grid.stages,
        forward_s=tuple(f / 1e3 for f in forward),
        backward_s=tuple(b / 1e3 for b in backward),
    )
    layout = Layout(assignment=assignment, programs=programs, mode="gap")
    return dict(gap_budgets(layout, costs).get(shadowed[0], {}))
