"""How long an evaluation takes: forwards alone, which fill the pipeline once and then follow each
other at the pace of its slowest stage.

Rule: it counts with the step time, as its share of each step between two evaluations. What the
decision on it takes, and what nodes do meanwhile for others, is left out.
"""

from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.topology.grid import Grid
from bamboo.topology.virtual_nodes import blocks_of, evaluated_by


def evaluation_s(
    work: WorkloadFigures, cut: tuple[int, ...], grid: Grid, shares: tuple[int, ...]
) -> float:
    """Seconds of an evaluation with a node for every slot; `shares`: virtual nodes of each
    pipeline. 0 where there is none."""
    if not work.shape.evaluated:
        return 0.0
    forward_s = work.sums(work.forward_s, cut)
    sent_s = [0.0] * grid.stages
    for stage, layer in enumerate(cut[1:-1]):
        size = work.layers[layer - 1].output_bytes
        sent_s[stage] = work.latency_s + (size / work.bytes_per_s if work.bytes_per_s else 0.0)
    slowest_s = max([*forward_s, *(sent - work.latency_s for sent in sent_s if sent)])
    total, virtual_nodes = work.shape.evaluated, sum(shares)
    most = max(len(evaluated_by(block, virtual_nodes, total)) for block in blocks_of(shares))
    calm_s = sum(forward_s) + sum(sent_s) + (most - 1) * slowest_s
    if not work.cores:
        return calm_s
    # Nodes that share cores take turns.
    return max(calm_s, total * sum(forward_s) * work.core_share / work.cores)
