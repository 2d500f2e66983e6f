"""Facts of a model's layers, which are all that the planner knows of a model.

Rule: a workload gives one LayerFacts per layer; nothing else here assumes a transformer. For the
built-in GPT the facts come from its shape, so that a plan needs neither torch nor the weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod

from bamboo.planner.layers.kept import DEFAULT, Shape, kept_scalars
from bamboo.planner.layers.synced import ParameterFacts, gpt_synced

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
    statistics: int = 0
    """Scalars of the running statistics of batch norms, which are buffers; what a step sees of them
    is added and sent as gradients are."""
    spared_flops: float = 0.0
    """What a backward does not compute, because it is the gradient of what is frozen."""
    host_moments: bool = False
    """Whether the moments of its replica lie in the host's memory."""
    apart: bool = False
    """Whether its device has a memory of its own, and the stash lies in the host's."""
    synced: tuple[ParameterFacts, ...] = ()
    """Its parameters; empty: they are not known, and all go whole."""

    @property
    def state_bytes(self) -> int:
        """Its parameters, what the optimizer keeps of them, and what is frozen."""
        return FLOAT_BYTES * self.parameters + self.moment_bytes + self.frozen_bytes

    @property
    def gradient_bytes(self) -> int:
        """What is added and sent in each step."""
        return FLOAT_BYTES * (self.parameters + self.statistics)

    @property
    def replica_bytes(self) -> int:
        """What a replica holds: the state, and the gradient that comes in."""
        return self.gradient_bytes + self.state_bytes - self.moved_bytes

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
        return 3.0 * self.forward_flops - self.spared_flops

    @property
    def goes_back(self) -> bool:
        """Whether it has a backward: something is trained in it or before it."""
        return self.spared_flops < 2.0 * self.forward_flops or not self.forward_flops


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
    frozen: Sequence[str] = (),
    tied: bool = False,
    batch: int = 0,
) -> tuple[LayerFacts, ...]:
    """Facts of the built-in GPT: embedding, `layers` blocks, head. `frozen`: patterns of the global
    names of parameters that are not trained. `tied`: the head has the embedding's weight.

    `microbatch` and `batch` (of a step; 0: one microbatch) count sequences. Attention is counted
    over the full square of positions, as is usual (Chowdhery et al., PaLM, 2022). Activations per
    token of width C: a block holds its input, two normed inputs, q, k and v, the attention's
    output, the second residual, twice 4C around the activation function, and one mask a dropout;
    the head its input, the normed input and the log probabilities.

    In bf16 autograd holds what goes into and comes out of products, and masks, in bf16. Beside it
    each microbatch holds a cast of each weight of a product, because autocast keeps none for the
    next one, and the inputs of norms in fp32, as a GPU casts them (a CPU norms in bf16 and holds
    those in 2 bytes).
    """
    tokens = microbatch * context
    mask = 1 if dropout > 0 else 0
    state_bytes, logits_bytes = tokens * width * FLOAT_BYTES, tokens * vocabulary * FLOAT_BYTES
    boundary_bytes = tokens * width * BOUNDARY_BYTES[precision]
    low = precision == "bf16"
    weight_bytes = BOUNDARY_BYTES[precision] if low else 0
    # The input of the first norm is then a copy, and the layer's own input is held beside it.
    norms_bytes = state_bytes + (boundary_bytes if low else 0)
    block_casts, head_casts = 12 * width * width * weight_bytes, vocabulary * width * weight_bytes
    block = LayerFacts(
        name="block",
        parameters=0,
        moment_bytes=0,
        forward_flops=float(tokens * (24 * width * width + 4 * context * width)),
        output_bytes=boundary_bytes,
        activation_bytes=norms_bytes + state_bytes + boundary_bytes * (14 + 2 * mask) + block_casts,
        cast_bytes=block_casts,
    )
    embedding = LayerFacts(
        name="embedding",
        parameters=0,
        moment_bytes=0,
        forward_flops=float(tokens * width),
        output_bytes=boundary_bytes,
        activation_bytes=tokens * TOKEN_BYTES + state_bytes * mask,
    )
    head = LayerFacts(
        name="head",
        parameters=0,
        moment_bytes=0,
        forward_flops=float(2 * tokens * vocabulary * width),
        output_bytes=logits_bytes,
        activation_bytes=norms_bytes + boundary_bytes + logits_bytes + head_casts,
        cast_bytes=head_casts,
    )
    first, own, last = gpt_shapes(width=width, context=context, vocabulary=vocabulary)
    bare = ((embedding, first), *([(block, own)] * layers), (head, last))
    made = _with_training(bare, tokens, optimizer=optimizer, momentum=momentum, frozen=frozen)
    step_tokens, shapes = max(batch, microbatch) * context, [x for _, x in bare]
    return _with_synced(made, shapes, tokens, step_tokens, tied=tied, frozen=frozen)


def _with_synced(
    made: Sequence[LayerFacts],
    shapes: Sequence[Mapping[str, Shape]],
    tokens: int,
    step_tokens: int,
    *,
    tied: bool,
    frozen: Sequence[str],
) -> tuple[LayerFacts, ...]:
    """The facts of these layers with those of their parameters."""
    return tuple(
        replace(
            one,
            synced=gpt_synced(
                own,
                index,
                tokens=tokens,
                step_tokens=step_tokens,
                tied=tied,
                frozen=_frozen_in(own, index, frozen),
            ),
        )
        for index, (one, own) in enumerate(zip(made, shapes, strict=True))
    )


def _with_training(
    bare: Sequence[tuple[LayerFacts, Mapping[str, Shape]]],
    tokens: int,
    *,
    optimizer: str,
    momentum: bool,
    frozen: Sequence[str],
) -> tuple[LayerFacts, ...]:
    """The facts of layers with these shapes of parameters, by local name, and what training takes
    of those that `frozen` does not match."""
    made: list[LayerFacts] = []
    for index, (one, shapes) in enumerate(bare):
        still = _frozen_in(shapes, index, frozen)
        trained = [shape for name, shape in shapes.items() if name not in still]
        kept = sum(kept_scalars(optimizer, shape, momentum=momentum) for shape in trained)
        spared, back_bytes = 0.0, None
        if not trained and not any(before.parameters for before in made):
            spared, back_bytes = 2.0 * one.forward_flops, 0
        elif index:
            spared = 2.0 * tokens * sum(prod(x) for x in still.values() if len(x) == 2)
        one = replace(
            one,
            parameters=sum(map(prod, trained)),
            moment_bytes=FLOAT_BYTES * kept,
            frozen_bytes=FLOAT_BYTES * sum(map(prod, still.values())),
            spared_flops=spared,
            back_bytes=back_bytes,
        )
        made.append(one)
    return tuple(made)


def _frozen_in(
    shapes: Mapping[str, Shape], index: int, frozen: Sequence[str]
) -> Mapping[str, Shape]:
    """The shapes of those parameters of a layer that are frozen."""
    return {
        name: shape
        for name, shape in shapes.items()
        if any(fnmatchcase(f"{index}.{name}", pattern) for pattern in frozen)
    }


def gpt_shapes(*, width: int, context: int, vocabulary: int) -> tuple[Mapping[str, Shape], ...]:
    """The shapes of the parameters of the built-in GPT's embedding, block and head, by name."""
    norms = [f"norm_{of}.{kind}" for of in ("attention", "feed") for kind in ("weight", "bias")]
    block: dict[str, Shape] = dict.fromkeys(norms, (width,))
    linears = {"qkv": (3, 1), "project": (1, 1), "expand": (4, 1), "contract": (1, 4)}
    for name, (rows, columns) in linears.items():
        block[f"{name}.weight"] = (rows * width, columns * width)
        block[f"{name}.bias"] = (rows * width,)
    table = (vocabulary, width)
    return (
        {"tokens.weight": table, "positions": (context, width)},
        block,
        {"norm.weight": (width,), "norm.bias": (width,), "vocabulary.weight": table},
    )
