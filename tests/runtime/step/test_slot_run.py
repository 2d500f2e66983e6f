"""One slot's run: owner and shadow are the same code, so they have the same bits."""

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bamboo.config.tree import JobConfig
from bamboo.models import Gradients, Tensors
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.step.stage import Pending
from bamboo.schedule.instruction import Instruction
from bamboo.topology.slots import Slot
from bamboo.topology.sync import Sync
from testbed.simulated import builder_of
from tests.runtime.test_interleavings import job

LAST = Slot(pipeline=0, stage=1)
FIRST = Slot(pipeline=0, stage=0)


def build(slot: Slot, settings: JobConfig | None = None, *, owner: bool = True) -> SlotRun:
    return builder_of(settings or job(stages=2)).build(slot, owner=owner)


def inputs(count: int) -> list[Tensors]:
    """What the stage before would send: any numbers do."""
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(1, 4, 8, generator=generator).requires_grad_(),) for _ in range(count)]


def same(one: SlotRun, other: SlotRun) -> bool:
    a, b = one.tensors(), other.tensors()
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def same_tensors(one: Gradients, other: Gradients) -> bool:
    return all(
        a is not None and b is not None and torch.equal(a, b)
        for a, b in zip(one, other, strict=True)
    )


def test_the_program_is_eager_1f1b_then_exchange_then_step() -> None:
    run = build(FIRST)
    kinds = "".join(op.kind for op in run.program)
    assert kinds == "FFF" + "BF" * 5 + "BBB" + "XS"
    assert run.head == Instruction(stage=0, kind="F", microbatch=0)


def test_microbatches_are_those_of_the_pipelines_virtual_nodes() -> None:
    settings = job(stages=2, pipelines=3, virtual_nodes=4)
    found = [tuple(build(Slot(pipeline=d, stage=0), settings).microbatches) for d in range(3)]
    assert sorted(m for block in found for m in block) == list(range(8))
    assert {len(block) for block in found} == {2, 4}


def test_a_replica_copied_beyond_a_change_takes_its_plan_and_no_run_does_for_a_past_step() -> None:
    run = builder_of(job(stages=2)).build(LAST, owner=False, step=5)
    other = run.plan.by(Sync(bucket=0))
    run.change_plan(3, other)
    assert run.exchange.plan is other
    run.next_step()
    with pytest.raises(AssertionError, match="step 6 has begun, and a plan is from 5 on"):
        run.change_plan(5, other)


class HandsOn(nn.Module):
    """A layer that returns one of its parameters, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, 8)

    def forward(self, x: Tensor) -> Tensors:
        return self.table(x), self.table.weight


class Clamps(nn.Module):
    """A layer that writes into a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.table.weight.clamp_(-0.1, 0.1)
        return self.table(x)


class Kept:
    """What a node of a graph keeps beside the tensors that autograd lets go."""


class Keeps(torch.autograd.Function):
    """The tensor itself."""

    kept: list[weakref.ref[Kept]]

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = Kept()
        Keeps.kept.append(weakref.ref(ctx.kept))
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


class Vocabulary(nn.Module):
    """A last layer whose graph keeps something."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(8, 256)

    def forward(self, x: Tensor) -> Tensor:
        keeps: Any = Keeps
        return keeps.apply(self.scores(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("owner", [True, False])
def test_a_microbatch_keeps_its_graph_until_its_backward(owner: bool) -> None:
    """On the last stage, too, where the loss hangs on it."""
    Keeps.kept = []
    builder = builder_of(job(stages=2))
    layers = (*builder.workload.layers[:-1], Vocabulary)
    builder.workload = replace(builder.workload, layers=layers, plain=False)
    run = builder.build(LAST, owner=owner)
    for local, x in enumerate(inputs(2)):
        run.forward(local, x)
    run.backward(0, None)
    assert [one() is not None for one in Keeps.kept] == [False, True]


def built_with(first: type[nn.Module]) -> SlotRun:
    """The first of two stages, which is this layer alone."""
    builder = builder_of(job(stages=2))
    layers = (first, *builder.workload.layers[1:])
    cut = (0, 1, len(layers))
    builder.workload = replace(builder.workload, layers=layers, plain=False)
    placement = replace(builder.strategy.placement, cut=cut)
    builder.strategy = replace(builder.strategy, placement=placement)
    return builder.build(FIRST, owner=True)


def test_a_layer_that_writes_into_a_trained_parameter_is_named() -> None:
    run = built_with(Clamps)
    with pytest.raises(ValueError, match=r"a layer changed its param/0\.table\.weight"):
        run.forward(0, run.stage.input_of(0, run.microbatches[0]))


def test_what_is_sent_stays_as_it_is_when_a_parameter_takes_a_step() -> None:
    """A stash is sent again after the step, to a node that takes over."""
    run = built_with(HandsOn)
    _, sent = run.forward(0, run.stage.input_of(0, run.microbatches[0])).output
    (before,) = run.stage.params
    with torch.no_grad():
        before.add_(1)
    assert torch.equal(sent + 1, before)


def test_two_builds_of_a_slot_are_equal_and_share_nothing() -> None:
    one, other = build(LAST), build(LAST, owner=False)
    assert same(one, other)
    with torch.no_grad():
        one.stage.params[0].add_(1)
    assert not same(one, other)


def test_forwards_ahead_give_the_bits_of_forwards_in_order() -> None:
    """A shadow computes all forwards first; the owner takes turns. Gradients are the same."""
    owner, shadow = build(LAST), build(LAST, owner=False)
    xs = inputs(8)
    back_owner, back_shadow = [], []
    for local, x in enumerate(xs):
        owner.forward(local, x)
        back_owner.append(owner.backward(local, None))
    for local, x in enumerate(xs):
        shadow.forward(local, x)
    for local in range(8):
        back_shadow.append(shadow.backward(local, None))
    assert back_owner[0][0] is not None
    assert all(same_tensors(a, b) for a, b in zip(back_owner, back_shadow, strict=True))
    for run in (owner, shadow):
        run.settle_losses()
    assert owner.exchange.losses == shadow.exchange.losses
    (one,), (other,) = (r.exchange.sums[0].partials.values() for r in (owner, shadow))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_another_order_of_backwards_gives_other_bits() -> None:
    """Why the order is fixed: were this equal, the other tests would show nothing."""
    one, other = build(LAST), build(LAST)
    xs = inputs(8)
    for run in (one, other):
        for local, x in enumerate(xs):
            run.forward(local, x)
    for local in range(8):
        one.backward(local, None)
    for local in (0, 2, 1, 4, 3, 6, 5, 7):
        other.backward(local, None)
    (a,), (b,) = (r.exchange.sums[0].partials.values() for r in (one, other))
    assert not all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_each_virtual_node_is_a_leaf_of_its_own() -> None:
    run = build(LAST, job(stages=2, virtual_nodes=2))
    for local, x in enumerate(inputs(8)):
        run.forward(local, x)
        run.backward(local, None)
        if local == 3:
            assert list(run.exchange.sums[0].partials) == [(0, 1)]
            assert all(p.grad is None for p in run.stage.params)
    assert list(run.exchange.sums[0].partials) == [(0, 2)]


@pytest.mark.parametrize("slot", [FIRST, LAST])
def test_the_next_step_starts_afresh(slot: Slot) -> None:
    run = build(slot)
    x = run.stage.input_of(0, 0) if slot == FIRST else inputs(1)[0]
    run.forward(0, x)
    run.cursor = 3
    run.next_step()
    assert (run.step, run.cursor, run.pending, run.backed) == (1, 0, {}, {})
    assert run.exchange.step == 1


def test_graphs_in_flight_are_counted_at_their_peak() -> None:
    run = build(LAST)
    xs = inputs(4)
    for local in range(3):
        run.forward(local, xs[local])
    run.backward(0, None)
    run.forward(3, xs[3])
    assert run.peak_graphs >= 3
    assert run.graph_bytes > 0


def test_only_the_first_microbatch_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it keeps nothing, as a stage without trained parameters does."""
    run, xs = build(LAST), inputs(4)
    measured = []

    def measure(x: Tensors, step: int, microbatch: int, cuts: Sequence[int]) -> tuple[Pending, int]:
        assert not cuts
        measured.append(microbatch)
        return run.stage.forward(x, step, microbatch), 0

    monkeypatch.setattr(run.stage, "measured_forward", measure)
    for local in range(3):
        run.forward(local, xs[local])
    assert len(measured) == 1


def test_what_is_reduced_is_kept_only_where_asked() -> None:
    run = build(LAST)
    run.exchange.gradient = [torch.ones(1)]
    assert run.reduced(2.0, {0: 1.0}, keep=False).gradient == []
    assert run.reduced(2.0, {0: 1.0}, keep=True).gradient == run.exchange.gradient
    assert run.history[0].total_square == 2.0


@pytest.mark.parametrize("keep", [False, True])
def test_a_tied_gradient_alone_does_not_keep_the_others_it_came_with(keep: bool) -> None:
    run = builder_of(job(stages=3, tied=True)).build(FIRST, owner=False)
    sizes = [parameter.numel() for parameter in run.stage.params]
    came = torch.randn(sum(sizes))
    shapes = [parameter.shape for parameter in run.stage.params]
    parts = zip(came.split(sizes), shapes, strict=True)
    run.exchange.gradient = [part.view(shape) for part, shape in parts]
    done = run.reduced(1.0, {}, keep=keep)
    assert len(done.gradient) == (len(sizes) if keep else 0)
    (tied,) = done.tied.values()
    assert torch.equal(tied, run.exchange.gradient[run.stage.names.index("0.tokens.weight")])
    assert (tied.untyped_storage().nbytes() == tied.nbytes) is not keep


@pytest.mark.parametrize("slot", [FIRST, LAST], ids=["first", "last"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layers_that_are_computed_again_give_the_same_bits_and_hold_less(
    slot: Slot, precision: str
) -> None:
    """With dropout, and other work between a forward and its backward, as in any pipeline."""
    settings = job(stages=2)
    model, train = (
        replace(settings.model, dropout=0.3),
        replace(settings.train, precision=precision),
    )
    gradients, held, outputs = [], [], []
    for recompute in ("off", "layer"):
        cluster = replace(settings.cluster, recompute=recompute)
        run = build(slot, replace(settings, model=model, train=train, cluster=cluster))
        given = [None] * 8 if run.stage.is_last else inputs(8)
        xs = [run.stage.input_of(0, m) for m in range(8)] if run.stage.is_first else inputs(8)
        back = []
        for local in range(9):
            if local < 8:
                run.forward(local, xs[local])
            if local > 0:
                back.append(run.backward(local - 1, given[local - 1]))
        outputs.append([y for local in range(8) for y in run.pending[local].output])
        (summed,) = run.exchange.sums[0].partials.values()
        gradients.append([*summed, *(x for gradients in back for x in gradients if x is not None)])
        held.append(run.graph_bytes)
    for plain, again in ((gradients[0], gradients[1]), (outputs[0], outputs[1])):
        assert plain
        assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert held[1] < held[0]
