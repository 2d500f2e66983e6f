"""Workloads for tests of the planner: small figures, written down by hand."""

from bamboo.planner.layers.facts import LayerFacts
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.risks.zones import Stakes
from bamboo.topology.virtual_nodes import BatchShape

F_S, B_S = 0.02, 0.04


def workload(
    *,
    layers: int = 8,
    virtual_nodes: int = 2,
    microbatches: int = 4,
    microbatch: int = 2,
    parameters: int = 1000,
    bytes_per_s: float = 0.0,
    forward_s: float = F_S,
    backward_s: float = B_S,
) -> WorkloadFigures:
    """Equal layers, but for their bytes: the later, the larger."""
    return WorkloadFigures(
        name="test",
        source="given",
        layers=tuple(
            LayerFacts(
                name=f"layer {number}",
                parameters=parameters + number,
                moment_bytes=8 * (parameters + number),
                forward_flops=1.0,
                output_bytes=64 * microbatch,
                activation_bytes=256 * microbatch,
            )
            for number in range(layers)
        ),
        forward_s=(forward_s,) * layers,
        backward_s=(backward_s,) * layers,
        shape=BatchShape(virtual_nodes=virtual_nodes, microbatches=microbatches),
        batch=virtual_nodes * microbatches * microbatch,
        bytes_per_s=bytes_per_s,
    )


def stakes(*, preemptible: bool = True, checkpoint_every: int | None = 100) -> Stakes:
    """Two zones, the first the cheaper."""
    return Stakes(
        zone_usd_per_hour={"a": 0.5, "b": 0.6},
        preemptible=preemptible,
        steps=1000,
        checkpoint_every=checkpoint_every,
    )
