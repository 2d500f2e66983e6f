"""The profile of the built-in GPT from its shape alone: without torch, weights or a run.

Rule: the work equals what `bamboo.runtime.device.work` counts when such a layer runs on a CPU, as
formulas that a test compares with it. There are no times until a GPU is modelled
(`bamboo.planner.profiles.gpus`). So a model that does not fit on this machine can be priced.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bamboo.planner.layers.facts import FLOAT_BYTES, TOKEN_BYTES, LayerFacts, gpt_facts
from bamboo.planner.layers.kept import DEFAULT
from bamboo.planner.profiles.profiled import LayerProfile, Profile, Work

SOURCE = "of the model's shape"
UPDATE_BYTES = 24
"""Bytes of each parameter per step: clipping, and an optimizer that keeps nothing, which reads
parameter and gradient and writes the parameter; what is kept is read and written besides."""
SQUARES_BYTES = 44
"""Bytes for the norm, per number whose square is added in float64: a parameter outside matrices, or
the norm of a matrix's row."""
ATTENTION_BACK = 2.5
"""Products of the backward over those of the forward, which it repeats once."""
CASTS = {"fp32": (0, 0, 0), "bf16": (1, 8, 2)}
"""Kernels that autocast adds to the forward of embedding, block and head, and again to each
backward."""


def gpt_profile(
    *,
    job: str,
    layers: int,
    width: int,
    heads: int,
    context: int,
    vocabulary: int,
    microbatch: int,
    dropout: float,
    threads: int = 1,
    precision: str = "fp32",
    optimizer: str = DEFAULT,
    momentum: bool = False,
    frozen: Sequence[str] = (),
) -> Profile:
    """The profile of embedding, blocks and head, with `microbatch` sequences; all times are 0. The
    work is counted in fp32, and what layers send, and the kernels, in `precision`."""
    facts = gpt_facts(
        layers=layers,
        width=width,
        context=context,
        vocabulary=vocabulary,
        microbatch=microbatch,
        dropout=dropout,
        precision=precision,
        optimizer=optimizer,
        momentum=momentum,
        frozen=frozen,
    )
    tokens, drops = microbatch * context, dropout > 0
    size = _Size(
        tokens=tokens, width=width, heads=heads, context=context, table=vocabulary, drops=drops
    )
    casts = CASTS[precision]
    found = (
        _with_casts(_embedding(facts[0], size), casts[0]),
        *(_with_casts(_block(one, size), casts[1]) for one in facts[1:-1]),
        _with_casts(_head(facts[-1], size), casts[2]),
    )
    returned = (0, *(one.returned_bytes for one in facts[:-1]))
    return Profile(
        job=job,
        source=SOURCE,
        modelled=True,
        device="none",
        machine="",
        torch="",
        threads=threads,
        microbatch=microbatch,
        context=context,
        load=0.0,
        seen="",
        limit_s=0.0,
        layers=tuple(
            replace(one, input_gradient_bytes=back)
            for one, back in zip(found, returned, strict=True)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    tokens: int
    """Tokens of a microbatch."""
    width: int
    heads: int
    context: int
    table: int
    """Size of the vocabulary."""
    drops: bool

    @property
    def state(self) -> int:
        """Bytes that go from layer to layer."""
        return FLOAT_BYTES * self.tokens * self.width


def _embedding(facts: LayerFacts, size: _Size) -> LayerProfile:
    tokens = size.tokens
    state = size.state
    drops = size.drops
    positions_bytes = FLOAT_BYTES * size.context * size.width
    table_bytes = FLOAT_BYTES * size.table * size.width
    trained_bytes = min(table_bytes, FLOAT_BYTES * facts.parameters)
    masked = 7 * state if drops else 0
    forward = min(table_bytes, state) + 3 * state + positions_bytes + TOKEN_BYTES * tokens + masked
    backward = 3 * state + 4 * positions_bytes + 4 * trained_bytes + TOKEN_BYTES * tokens
    backward += 3 * state if drops else 0
    return _layer(
        facts,
        name="Embedding",
        index=0,
        forward=_moved(forward, 5 if drops else 2),
        backward=_moved(backward, 6 if drops else 5),
        rows=size.table + size.context,
        vectors=0,
        kernels=13,
    )


def _block(facts: LayerFacts, size: _Size) -> LayerProfile:
    tokens = size.tokens
    width = size.width
    state = size.state
    drops = size.drops
    linear_flops = 24.0 * tokens * width * width
    attention_flops = 4.0 * tokens * size.context * width
    weights, biases = 12 * width * width * FLOAT_BYTES, 9 * width * FLOAT_BYTES
    sums = tokens * size.heads * FLOAT_BYTES
    return _layer(
        facts,
        name="Block",
        index=1,
        forward=Work(
            product_flops=linear_flops + attention_flops,
            product_bytes=float(weights + biases + 20 * state + sums),
            other_bytes=float((32 if drops else 18) * state + 16 * tokens + 16 * width),
            kernels=16 if drops else 10,
        ),
        backward=Work(
            product_flops=2 * linear_flops + ATTENTION_BACK * attention_flops,
            product_bytes=float(2 * weights + 40 * state + sums),
            other_bytes=float(
                3 * FLOAT_BYTES * facts.parameters
                + (51 if drops else 45) * state
                + 16 * tokens
                + 68 * width
            ),
            kernels=34 if drops else 32,
        ),
        rows=9 * width,
        vectors=13 * width,
        kernels=49,
    )


def _head(facts: LayerFacts, size: _Size) -> LayerProfile:
    """The head, with the loss."""
    tokens = size.tokens
    width = size.width
    state = size.state
    vocabulary = size.table
    logits, weights = tokens * vocabulary * FLOAT_BYTES, width * vocabulary * FLOAT_BYTES
    trained = min(weights, FLOAT_BYTES * facts.parameters)
    flops, moved = 2.0 * tokens * vocabulary * width, float(state + logits + weights)
    return _layer(
        facts,
        name="Head",
        index=2,
        forward=Work(
            product_flops=flops,
            product_bytes=moved,
            other_bytes=float(2 * state + 2 * logits + 79 * tokens + 8 * width),
            kernels=11,
        ),
        backward=Work(
            product_flops=2 * flops,
            product_bytes=2 * moved,
            other_bytes=float(3 * state + 5 * logits + 3 * trained + 16 * tokens + 40 * width),
            kernels=10,
        ),
        rows=vocabulary,
        vectors=2 * size.width,
        kernels=19,
    )


def _with_casts(layer: LayerProfile, casts: int) -> LayerProfile:
    forward = replace(layer.forward, kernels=layer.forward.kernels + casts)
    more = casts if layer.backward.kernels else 0
    backward = replace(layer.backward, kernels=layer.backward.kernels + more)
    return replace(layer, forward=forward, backward=backward)


def _moved(size: int, kernels: int) -> Work:
    """The work of layers without products."""
    return Work(product_flops=0.0, product_bytes=0.0, other_bytes=float(size), kernels=kernels)


def _layer(
    facts: LayerFacts,
    *,
    name: str,
    index: int,
    forward: Work,
    backward: Work,
    rows: int,
    vectors: int,
    kernels: int,
) -> LayerProfile:
    """`rows`: of all its matrices; `vectors`: parameters outside matrices; `kernels`: of the
    optimizer. What is frozen has its part of none of them, and its gradient is not computed."""
    frozen = facts.frozen_bytes // FLOAT_BYTES
    share = facts.parameters / (facts.parameters + frozen)
    rows, vectors, kernels = (round(share * number) for number in (rows, vectors, kernels))
    if not facts.goes_back:
        backward = _moved(0, 0)
    elif frozen and facts.spared_flops:
        backward = replace(
            backward,
            product_flops=backward.product_flops - facts.spared_flops,
            product_bytes=backward.product_bytes - facts.frozen_bytes,
        )
    norms = FLOAT_BYTES * (facts.parameters - vectors + rows)
    squares = norms + SQUARES_BYTES * (rows + vectors)
    return LayerProfile(
        name=name,
        measured_as=index,
        forward_s=0.0,
        backward_s=0.0,
        optimizer_s=0.0,
        scatter=0.0,
        repeats=0,
        parameters=facts.parameters,
        parameter_bytes=FLOAT_BYTES * facts.parameters,
        moment_bytes=facts.moment_bytes,
        output_bytes=facts.output_bytes,
        input_gradient_bytes=0,
        activation_bytes=facts.activation_bytes,
        forward=forward,
        backward=backward,
        frozen_bytes=facts.frozen_bytes,
        synced=facts.synced,
        optimizer=_moved(
            UPDATE_BYTES * facts.parameters + 2 * facts.moment_bytes + squares, kernels
        ),
    )
