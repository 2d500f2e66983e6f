"""The reduced gradient as an owner ships it to its shadow, and as the shadow reads it.

    dense      the whole sum
    rows       its rows with a bit set
    factors    those of all microbatches of the step, which the shadow multiplies and adds

Rule: the shadow gets the owner's bits, whatever was sent. A message says what it carries, so an
owner that lacks the factors of other pipelines, as after it copied a whole gradient, ships the sum.
"""

from typing import Any

import torch
from torch import Tensor

from bamboo.runtime.step import factors
from bamboo.runtime.step.bucket_sums import added
from bamboo.runtime.step.exchange import Exchange
from bamboo.runtime.step.exchange_plan import ExchangePlan
from bamboo.runtime.step.rows import packed, unpacked
from bamboo.runtime.wire.messages import Message
from bamboo.topology.reduction import TreeSum
from bamboo.topology.sync import FACTORS

COUNT = "sums"
"""The key in the meta: how many tensors come before those of factors."""


def shipped(exchange: Exchange) -> tuple[list[Tensor], dict[str, Any]]:
    """The tensors of the message with a whole gradient, and what its meta says of them."""
    plan, own = exchange.plan, exchange.shared.factors
    leaves = range(plan.leaves)
    recorded = {
        position: [one for v in leaves for one in own[position, v]]
        for position, tensor in enumerate(plan.tensors)
        if tensor.entry.ship == FACTORS and all((position, v) in own for v in leaves)
    }
    sums = [position for position in range(len(plan.tensors)) if position not in recorded]
    tensors, how = packed(
        [exchange.gradient[position] for position in sums],
        [plan.ship_widths[position] for position in sums],
    )
    if not recorded:
        return tensors, how
    more, of = factors.packed({plan.names[p]: found for p, found in recorded.items()})
    return [*tensors, *more], how | {COUNT: len(tensors), FACTORS: of}


def gradient_shipped(
    plan: ExchangePlan, message: Message, place: torch.device = factors.CPU
) -> list[Tensor]:
    """The gradient that such a message carries, on the device on which its tensors lie, `place`.
    Raises ValueError where it does not fit the plan."""
    shapes = dict(zip(plan.names, plan.shapes, strict=True))
    said = message.meta.get(FACTORS, {})
    count = int(message.meta.get(COUNT, len(message.tensors)))
    tensors, more = message.tensors[:count], message.tensors[count:]
    products = factors.unpacked(more, said, {n: shapes[n] for n in said if n in shapes})
    sums = unpacked(tensors, message.meta)
    if len(sums) + len(products) != len(shapes):
        raise ValueError(f"{len(sums)} sums and {len(products)} products of {len(shapes)} tensors")
    left = iter(sums)
    out = []
    for name, shape in shapes.items():
        if name not in products:
            out.append(next(left).reshape(shape))
            continue
        tree: TreeSum[list[Tensor]] = TreeSum(plan.leaves, added)
        for v, recorded in enumerate(factors.by_virtual_node(products[name], plan.leaves)):
            tree.push(v, v + 1, [factors.summed(recorded, shape, place)])
        assert tree.root is not None, "every virtual node was added"
        out += tree.root
    return out
