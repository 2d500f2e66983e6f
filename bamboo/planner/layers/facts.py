"""Facts of a model's layers, which are all that the planner knows of a model.

Rule: a workload gives one LayerFacts per layer; nothing else here assumes a transformer. For the
built-in GPT the facts come from its shape, so that a plan needs neither torch nor the weights.
"""

from dataclasses import dataclass
from functools import partial

from bamboo.planner.layers.kept import DEFAULT, kept_scalars

FLOAT_BYTES = 4
BOUNDARY_BYTES = {"fp32": FLOAT_BYTES, "bf16": 2}
"""Bytes of a number of a boundary tensor, by `train.precision`."""
TOKEN_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """One layer, for one microbatch."""

    name: str
    parameters: int
    """Trained scalars, including its copy of a tied parameter."""
    moment_bytes: int
    """What the optimizer keeps of its parameters."""
    forward_flops: float
    """Multiplications and additions of one forward; a backward counts twice as many."""
    output_bytes: int
    """The tensors for the next layer."""
    activation_bytes: int
    """Tensors that autograd holds between forward and backward, the layer's input included."""
    cast_bytes: int = 0
    """Of these, weights that autocast has cast: as many however few samples there are."""
    input_bytes: int | None = None
    """Its input, where it keeps that alone and is computed again in its backward; None: it is
    not."""
    back_bytes: int | None = None
    """The gradients of its output, from the next layer, which are fewer bytes where the output has
    masks or tensors that nothing trains; None: as many bytes as the output."""
    frozen_bytes: int = 0
    """Of frozen parameters and buffers: held, and sent with the state, and nothing else."""
    host_moments: bool = False
    """Whether the moments of its replica lie in the host's memory."""
    apart: bool = False
    """Whether its device has a memory of its own, and the stash lies in the host's."""

    @property
    def state_bytes(self) -> int:
        """Its parameters, what the optimizer keeps of them, and what is frozen."""
        return FLOAT_BYTES * self.parameters + self.moment_bytes + self.frozen_bytes

    @property
    def replica_bytes(self) -> int:
        """What a replica holds: the state, and the gradient that comes in."""
        return FLOAT_BYTES * self.parameters + self.state_bytes - self.moved_bytes

    @property
    def moved_bytes(self) -> int:
        """The part of a replica that lies in the host's memory."""
        return self.moment_bytes if self.host_moments else 0

    @property
    def returned_bytes(self) -> int:
        """What the next layer sends back."""
        return self.output_bytes if self.back_bytes is None else self.back_bytes

    @property
    def stashed_bytes(self) -> int:
        """What the device's memory holds of an output in a stash."""
        return 0 if self.apart else self.output_bytes

    @property
    def stashed_back_bytes(self) -> int:
        """The same of what the next layer sends back."""
        return 0 if self.apart else self.returned_bytes

    @property
    def held_bytes(self) -> int:
        """What stays from forward to backward."""
        return self.activation_bytes if self.input_bytes is None else self.input_bytes

    @property
    def again_bytes(self) -> int:
        """What is held beside that during its backward alone."""
        return max(0, self.activation_bytes - self.held_bytes)

    @property
    def cost(self) -> float:
        """Forward and backward of one microbatch, in flops: what `partition` balances."""
        return 3.0 * self.forward_flops


def gpt_facts(
    *,
    layers: int,
    width: int,
    context: int,
    vocabulary: int,
    microbatch: int,
    dropout: float,
    precision: str = "fp32",
    optimizer: str = DEFAULT,
    momentum: bool = False,
) -> tuple[LayerFacts, ...]:
    """Facts of the built-in GPT: embedding, `layers` blocks, head.

    `microbatch` counts sequences. Attention is counted over the full square of positions, as is
    usual (Chowdhery et al., PaLM, 2022). Activations per token of width C: a block holds its input,
    two normed inputs, q, k and v, the attention's output, the second residual, twice 4C around the
    activation function, and one mask a dropout; the head its input, the normed input and the log
    probabilities.

    In bf16 autograd holds what goes into and comes out of products, and masks, in bf16. Beside it
    each microbatch holds a cast of each weight of a product, because autocast keeps none for the
    next one, and the inputs of norms in fp32, as a GPU casts them (a CPU norms in bf16 and holds
    those in 2 bytes).
    """
    tokens = microbatch * context
    mask = 1 if dropout > 0 else 0
    state_bytes = tokens * width * FLOAT_BYTES
    boundary_bytes = tokens * width * BOUNDARY_BYTES[precision]
    low = precision == "bf16"
    weight_bytes = BOUNDARY_BYTES[precision] if low else 0
    # The input of the first norm is then a copy, and the layer's own input is held beside it.
    norms_bytes = state_bytes + (boundary_bytes if low else 0)
    block_casts, head_casts = 12 * width * width * weight_bytes, vocabulary * width * weight_bytes

    moments = partial(_moment_bytes, optimizer, momentum=momentum)
    inner, table = (4 * width,), (vocabulary, width)
    block = LayerFacts(
        name="block",
        parameters=12 * width * width + 13 * width,
        moment_bytes=moments(
            *((3 * width, width), (width, width), (4 * width, width), (width, 4 * width)),
            *((3 * width,), inner, *[(width,)] * 6),
        ),
        forward_flops=float(tokens * (24 * width * width + 4 * context * width)),
        output_bytes=boundary_bytes,
        activation_bytes=norms_bytes + state_bytes + boundary_bytes * (14 + 2 * mask) + block_casts,
        cast_bytes=block_casts,
    )
    embedding = LayerFacts(
        name="embedding",
        parameters=(vocabulary + context) * width,
        moment_bytes=moments(table, (context, width)),
        forward_flops=float(tokens * width),
        output_bytes=boundary_bytes,
        activation_bytes=tokens * TOKEN_BYTES + state_bytes * mask,
    )
    head = LayerFacts(
        name="head",
        parameters=vocabulary * width + 2 * width,
        moment_bytes=moments(table, (width,), (width,)),
        forward_flops=float(2 * tokens * vocabulary * width),
        output_bytes=tokens * vocabulary * FLOAT_BYTES,
        activation_bytes=norms_bytes
        + boundary_bytes
        + tokens * vocabulary * FLOAT_BYTES
        + head_casts,
        cast_bytes=head_casts,
    )
    return (embedding, *([block] * layers), head)


def _moment_bytes(optimizer: str, *shapes: tuple[int, ...], momentum: bool) -> int:
    """What an optimizer keeps of parameters of these shapes."""
    kept = (kept_scalars(optimizer, shape, momentum=momentum) for shape in shapes)
    return FLOAT_BYTES * sum(kept)
