"""What a calm step sends between nodes, by kind of message, and links that are as slow as GPT-2
XL's.

Rule: pure. The formula follows from the protocol (bamboo/runtime/README.md), not from the code that
sends. `redundancy_overhead` compares the counted bytes with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bamboo.planner.layers.facts import FLOAT_BYTES
from bamboo.planner.layers.memory import partials_at_end
from bamboo.planner.profiles.gpus import GpuTable
from bamboo.planner.profiles.shaped import gpt_profile
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import BARE_MODES
from bamboo.topology.virtual_nodes import blocks

TENSOR_KINDS = ("act", "grad", "partial", "shard", "ship")
XL_STAGES = 12
XL_MICROBATCHES = 2 * XL_STAGES
"""Two for each stage, of one sequence each, like the benchmark's eight for its four stages."""


def wire_bytes(
    grid: Grid,
    *,
    mode: str,
    virtual_nodes: int,
    microbatches: int,
    boundary_bytes: int,
    gradient_bytes: Sequence[int],
    back_bytes: int | None = None,
) -> dict[str, float]:
    """Bytes of tensors that all nodes send in a calm step, by kind of message.

    `microbatches`: of each pipeline; `boundary_bytes`: a microbatch's output of a stage, the same
    for all; `gradient_bytes`: of each stage's parameters; `back_bytes`: of the gradients of an
    output, None: as many as the output's. With D pipelines of P stages:

    - `act`, `grad`: an output, and back its gradients, over each of D (P - 1) boundaries for each
      microbatch; in mode `full` these go to the shadow too, unless that node sends them.
    - `partial`: a pipeline with k partial sums sends k shards of 1/D to each of D - 1 others.
    - `shard`: each pipeline sends its sum of 1/D to each of D - 1 others.
    - `ship`: the reduced gradient once to each stage's shadow; parameters and moments never.
    """
    pipelines, stages = grid.pipelines, grid.stages
    crossings = pipelines * (stages - 1) * microbatches
    returned = boundary_bytes if back_bytes is None else back_bytes
    # The shadow of stage p - 1 is the owner of p - 2, cyclically: of two stages the sender itself.
    twice = mode == "full" and stages > 2
    partials = sum(partials_at_end(b, virtual_nodes) for b in blocks(virtual_nodes, pipelines))
    others = (pipelines - 1) / pipelines
    whole = sum(gradient_bytes)
    return {
        "act": float(crossings * boundary_bytes),
        "grad": float(crossings * returned * (2 if twice else 1)),
        "partial": partials * others * whole,
        "shard": pipelines * others * whole,
        "ship": 0.0 if mode in BARE_MODES else float(pipelines * whole),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    """How long a link takes for what training sends, divided by how long a stage computes."""

    boundary: float
    """A boundary tensor, divided by the forward of a microbatch."""
    ship: float
    """A stage's gradient, divided by a step's forwards and backwards with their bubbles."""


def slowness(
    *,
    gbps: float,
    boundary_bytes: float,
    gradient_bytes: float,
    forward_s: float,
    backward_s: float,
    stages: int,
    microbatches: int,
) -> Slowness:
    """Of a link between equal stages in 1F1B, a step being M + P - 1 forwards and backwards."""
    bytes_per_s = gbps * 1e9 / 8
    step_s = (microbatches + stages - 1) * (forward_s + backward_s)
    return Slowness(
        boundary=boundary_bytes / bytes_per_s / forward_s,
        ship=gradient_bytes / bytes_per_s / step_s,
    )


def xl_slowness(gbps: float, gpus: GpuTable, *, gpu: str = "V100") -> Slowness:
    """GPT-2 XL (48 blocks of width 1600, context 1024, vocabulary 50257) over 12 stages, fp32, one
    sequence a microbatch, 24 of them.

    Derivation. A boundary tensor has 1024 x 1600 x 4 = 6.55 MB. The model has 1.64 G parameters
    (its head is not tied here), so a stage ships 1.64e9 / 12 x 4 = 545 MB. A stage's forward is a
    twelfth of the layers' as `bamboo profile --gpu` models them on the GPU (roofline of published
    figures), its backward likewise; on a V100 that is some 30 and 60 ms. So at 2.5 Gbps a boundary
    takes 21 ms and the gradient 1.75 s beside a step of about 3 s.
    """
    profile = gpt_profile(
        job="GPT-2 XL",
        layers=48,
        width=1600,
        heads=25,
        context=1024,
        vocabulary=50257,
        microbatch=1,
        dropout=0.1,
    )
    modelled = gpus.modelled(profile, gpus.find(gpu))
    layers = modelled.layers
    return slowness(
        gbps=gbps,
        boundary_bytes=layers[1].output_bytes,
        gradient_bytes=FLOAT_BYTES * sum(layer.parameters for layer in layers) / XL_STAGES,
        forward_s=sum(layer.forward_s for layer in layers) / XL_STAGES,
        backward_s=sum(layer.backward_s for layer in layers) / XL_STAGES,
        stages=XL_STAGES,
        microbatches=XL_MICROBATCHES,
    )


def as_slow_gbps(boundary: float, *, boundary_bytes: float, forward_s: float) -> float:
    """The speed of a link on which a boundary tensor takes so many forwards."""
    return 8 * boundary_bytes / (boundary * forward_s) / 1e9
