"""The calm reference: ordinary training up to rounding, and one result whatever the mapping."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bamboo.config.tree import JobConfig
from bamboo.data.dataset import load_data
from bamboo.models import build_layer, build_model, named_parameters, run_layers
from bamboo.runtime.check.reference import CalmRun
from bamboo.runtime.optim.optimizer import Optimizer
from bamboo.runtime.step.numerics import prepare
from bamboo.topology.reduction import TreeSum, subtrees
from bamboo.topology.virtual_nodes import blocks
from tests.jobs import tiny_job


def _calm(job: JobConfig) -> CalmRun:
    prepare(job.cluster)
    return CalmRun(job, build_model(job), load_data(job))


def _train(job: JobConfig) -> tuple[list[float], dict[str, Tensor]]:
    calm = _calm(job)
    losses = [calm.step() for _ in range(job.train.steps)]
    return losses, calm.tensors()


def _equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _ordinary(job: JobConfig, *, tied: bool) -> list[float]:
    """Full batches, torch's own optimizer, clipping and mean loss; really shared weights."""
    workload, data = build_model(job), load_data(job)
    layers = [(i, build_layer(workload, i, job.train.seed)) for i in range(len(workload.layers))]
    if tied:
        layers[-1][1].vocabulary.weight = layers[0][1].tokens.weight  # type: ignore[union-attr, assignment]
    params = list({id(p): p for _, p in named_parameters(layers)}.values())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in params if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        foreach=False,
    )
    rate = Optimizer(job.train).learning_rate
    losses = []
    for step in range(job.train.steps):
        parts = [data.microbatch(step, m) for m in range(job.train.batch // job.train.microbatch)]
        inputs, targets = (torch.cat([t for (t,) in side]) for side in zip(*parts, strict=True))
        (logits,) = run_layers(layers, (inputs,), seed=1, step=step, microbatch=0)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(params, job.train.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("virtual_nodes", [1, 2, 4])
def test_losses_agree_with_ordinary_full_batch_training(
    tmp_path: Path, virtual_nodes: int, tied: bool
) -> None:
    job = tiny_job(
        tmp_path,
        [
            "model.dropout=0",
            "train.steps=12",
            f"train.virtual_nodes={virtual_nodes}",
            f"model.tied={str(tied).lower()}",
        ],
    )
    losses, _ = _train(job)
    assert losses == pytest.approx(_ordinary(job, tied=tied), rel=0, abs=1e-5)
    assert losses[-1] < losses[0] - 0.1


def test_twice_gives_the_same_bits_and_another_seed_others(tmp_path: Path) -> None:
    one, other = (_train(tiny_job(tmp_path)) for _ in range(2))
    assert one[0] == other[0]
    assert _equal(one[1], other[1])
    assert _train(tiny_job(tmp_path, ["train.seed=2"]))[0] != one[0]


def test_placement_changes_nothing(tmp_path: Path) -> None:
    plain = _train(tiny_job(tmp_path, ["train.virtual_nodes=4"]))
    placed = _train(
        tiny_job(
            tmp_path,
            ["train.virtual_nodes=4", "cluster.pipelines=3", "cluster.stages=4"],
        )
    )
    assert plain[0] == placed[0]
    assert _equal(plain[1], placed[1])


def test_tied_copies_stay_equal(tmp_path: Path) -> None:
    _, tensors = _train(tiny_job(tmp_path, ["model.tied=true"]))
    for kind in ("param", "exp_avg", "exp_avg_sq"):
        assert torch.equal(
            tensors[f"{kind}/0.tokens.weight"], tensors[f"{kind}/3.vocabulary.weight"]
        )


def test_every_parameter_and_moment_is_named_and_moved(tmp_path: Path) -> None:
    job = tiny_job(tmp_path)
    calm = _calm(job)
    start = {name: t.clone() for name, t in calm.tensors().items()}
    calm.step()
    end = calm.tensors()
    assert {name.split("/")[0] for name in end} == {"param", "exp_avg", "exp_avg_sq"}
    assert len(end) == 3 * len(list(named_parameters(calm.layers)))
    assert all(not torch.equal(start[name], end[name]) for name in end)


def _virtual_node_gradients(job: JobConfig) -> list[list[Tensor]]:
    calm = _calm(job)
    leaves = []
    for node in range(job.train.virtual_nodes):
        for parameter in calm._params:
            parameter.grad = None
        for microbatch in calm._shape.microbatches_of(range(node, node + 1)):
            calm._run(microbatch)
        leaves.append([p.grad for p in calm._params if p.grad is not None])
    return leaves


def _add(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    return [a + b for a, b in zip(left, right, strict=True)]


def _reduce(leaves: Sequence[list[Tensor]], pipelines: int) -> list[Tensor]:
    """Each pipeline adds its own block; its partial sums meet in one tree, last pipeline first."""
    n = len(leaves)
    whole: TreeSum[list[Tensor]] = TreeSum(n, _add)
    for block in reversed(blocks(n, pipelines)):
        own: TreeSum[list[Tensor]] = TreeSum(n, _add)
        for leaf in block:
            own.push(leaf, leaf + 1, leaves[leaf])
        assert tuple(own.partials) == subtrees(block.start, block.stop, n)
        for (lo, hi), partial in own.partials.items():
            whole.push(lo, hi, partial)
    assert whole.root is not None
    return whole.root


def test_reduced_gradients_do_not_depend_on_who_holds_which_virtual_node(tmp_path: Path) -> None:
    overrides = ["train.virtual_nodes=7", "train.batch=14"]
    leaves = _virtual_node_gradients(tiny_job(tmp_path, overrides))
    expected = _reduce(leaves, 1)
    for pipelines in range(2, 8):
        found = _reduce(leaves, pipelines)
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True)), pipelines
    naive = leaves[0]
    for leaf in leaves[1:]:
        naive = _add(naive, leaf)
    assert not all(torch.equal(a, b) for a, b in zip(expected, naive, strict=True))


@pytest.mark.parametrize("cut", [[0, 1, 2, 3], [0, 2], [0, 3]])
def test_gradients_do_not_depend_on_the_cut(tmp_path: Path, cut: list[int]) -> None:
    job = tiny_job(tmp_path)
    calm = _calm(job)
    calm._run(0)
    expected = [p.grad for p in calm._params]
    workload, ((x,), (targets,)) = build_model(job), load_data(job).microbatch(0, 0)
    layers = [(i, build_layer(workload, i, job.train.seed)) for i in range(4)]
    ends: list[tuple[Tensor, Tensor]] = []
    for lo, hi in zip(cut, [*cut[1:], 4], strict=True):
        if lo:
            # Received memory may start anywhere, not at an aligned place as torch's own does.
            room = torch.empty(x.numel() + 1)[1:].view_as(x)
            x = room.copy_(x.detach()).requires_grad_()
        (y,) = run_layers(layers[lo:hi], (x,), seed=1, step=0, microbatch=0)
        ends.append((x, y))
        x = y
    loss = workload.loss(x, targets) / (job.train.batch * job.model.context)
    loss.backward(inputs=[p for _, p in named_parameters(layers[cut[-1] :])] + [ends[-1][0]])  # type: ignore[no-untyped-call]
    for (_, y), (below, _) in zip(reversed(ends[:-1]), reversed(ends[1:]), strict=True):
        assert below.grad is not None
        y.backward(below.grad)  # type: ignore[no-untyped-call]
    found = [p.grad for _, p in named_parameters(layers)]
    assert all(
        a is not None and b is not None and torch.equal(a, b)
        for a, b in zip(expected, found, strict=True)
    )


def test_reported_loss_is_the_mean_over_tokens(tmp_path: Path) -> None:
    losses, _ = _train(tiny_job(tmp_path, ["train.steps=1"]))
    assert losses[0] == pytest.approx(math.log(256), rel=0.02)
