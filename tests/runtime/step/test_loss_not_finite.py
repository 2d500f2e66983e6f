"""A loss that is not finite stops the step even where every gradient is finite."""

import math

import torch

from bamboo.ids import NodeId
from bamboo.runtime.step.exchange import Exchange
from bamboo.runtime.step.exchange_plan import ExchangePlan
from bamboo.runtime.wire.messages import Mailbox
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from bamboo.topology.virtual_nodes import blocks
from testbed.simulated import SimulatedTransport, Wires

ME = NodeId("n0")
GRID = Grid(pipelines=1, stages=2)


def total_square(loss: float) -> float:
    """What the last stage takes for the squared norm, its own gradient being finite."""
    mailbox = Mailbox(SimulatedTransport(Wires(), ME), ME)
    mailbox.assign(Assignment(grid=GRID, owners=(ME, ME), shadows=(None, None)))
    plans = [
        ExchangePlan(
            slot=slot,
            grid=GRID,
            leaves=1,
            blocks=blocks(1, 1),
            shapes=(torch.Size([2]),),
            names=(f"{slot.stage}.weight",),
            counts_in_norm=(True,),
            ties=(),
        )
        for slot in (Slot(pipeline=0, stage=0), Slot(pipeline=0, stage=1))
    ]
    first, last = (Exchange(plan, step=0) for plan in plans)
    last.losses.update({0: loss})
    for exchange in (first, last):
        exchange.add_leaf(0, [torch.ones(2)])
        exchange.advance(mailbox)
    return first.total_square(mailbox)


def test_a_finite_loss_leaves_the_norm_alone() -> None:
    assert total_square(1.5) == 4.0


def test_an_infinite_loss_makes_the_norm_not_finite() -> None:
    assert not math.isfinite(total_square(math.inf))
