"""What the built-in GPT's layers have a device do, by formula: held against what is counted."""

from dataclasses import astuple, replace
from pathlib import Path

import pytest

from bamboo.config.tree import Group
from bamboo.planner.profiles.shaped import gpt_profile
from bamboo.runtime.check.profile import Asked, Profiler
from tests.jobs import tiny_job

ASKED = Asked(device="cpu", limit_s=60.0, machine="here", seen="2026-11-21")


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("width", "context", "vocabulary"), [(64, 16, 256), (32, 64, 1024)])
def test_the_formulas_are_what_is_counted(
    tmp_path: Path, dropout: float, width: int, context: int, vocabulary: int
) -> None:
    shape = {"width": width, "context": context, "vocabulary": vocabulary, "dropout": dropout}
    job = tiny_job(tmp_path, [f"model.{key}={value}" for key, value in shape.items()])
    counted = Profiler(job, ASKED, tell=lambda _done, _of_all: None).profile()
    formula = gpt_profile(
        job=counted.job, layers=2, heads=2, microbatch=job.train.microbatch, **shape
    )
    assert len(formula.layers) == len(counted.layers) == 4
    for by_formula, measured in zip(formula.layers, counted.layers, strict=True):
        assert by_formula.name == measured.name
        assert by_formula.parameters == measured.parameters
        assert by_formula.output_bytes == measured.output_bytes or by_formula.name == "Head"
        assert by_formula.activation_bytes == pytest.approx(measured.activation_bytes, rel=0.05)
        plain, there = ({x.name: x for x in one.synced} for one in (by_formula, measured))
        assert {n: (x.shape, x.rows_k) for n, x in plain.items()} == {
            n: (x.shape, x.rows_k) for n, x in there.items()
        }
        assert all(there[n].density <= x.density for n, x in plain.items())
        for kind in ("forward", "backward", "optimizer"):
            ours, theirs = getattr(by_formula, kind), getattr(measured, kind)
            assert astuple(ours) == pytest.approx(astuple(theirs), rel=0.02), (ours, theirs)


@pytest.mark.parametrize(
    "frozen",
    [("*.norm*", "1.qkv.*"), ("0.*", "1.*"), ("2.expand.weight", "3.vocabulary.weight")],
    ids=["parts", "the first layers", "matrices"],
)
def test_what_is_frozen_is_counted_apart(tmp_path: Path, frozen: tuple[str, ...]) -> None:
    job = tiny_job(tmp_path, ["model.dropout=0.0", "model.width=64"])
    groups = tuple(Group(match=pattern, frozen=True) for pattern in frozen)
    job = replace(job, train=replace(job.train, group=groups))
    counted = Profiler(job, ASKED, tell=lambda _done, _of_all: None).profile()
    model, train = job.model, job.train
    formula = gpt_profile(
        job=counted.job,
        layers=model.layers,
        width=model.width,
        heads=model.heads,
        context=model.context,
        vocabulary=model.vocabulary,
        microbatch=train.microbatch,
        dropout=0.0,
        frozen=frozen,
    )
    for ours, theirs in zip(formula.layers, counted.layers, strict=True):
        same = ("parameters", "moment_bytes", "frozen_bytes", "input_gradient_bytes")
        assert [getattr(ours, x) for x in same] == [getattr(theirs, x) for x in same]
        assert ours.backward.product_flops == theirs.backward.product_flops
        assert ours.backward.product_bytes >= theirs.backward.product_bytes
        assert ours.activation_bytes >= 0.95 * theirs.activation_bytes
    by_formula, measured = (
        sum(layer.optimizer.other_bytes for layer in found.layers) for found in (formula, counted)
    )
    assert by_formula == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_casts_of_bf16_are_counted_as_kernels(tmp_path: Path, dropout: float) -> None:
    job = tiny_job(tmp_path, [f"model.dropout={dropout}", "train.precision=bf16"])
    counted = Profiler(job, ASKED, tell=lambda _done, _of_all: None).profile()
    model = job.model
    formula = gpt_profile(
        job=counted.job,
        layers=model.layers,
        width=model.width,
        heads=model.heads,
        context=model.context,
        vocabulary=model.vocabulary,
        microbatch=job.train.microbatch,
        dropout=dropout,
        precision="bf16",
    )
    for ours, theirs in zip(formula.layers, counted.layers, strict=True):
        assert ours.forward.kernels == theirs.forward.kernels
        assert ours.backward.kernels == theirs.backward.kernels
