"""A Workload is held against its contract before anything is made of it."""

from pathlib import Path

import pytest
import torch
from torch import nn

from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.models import TiedParameter, Workload, build_layer, build_model
from bamboo.models.contract import MOST_USES, flaw_of
from bamboo.models.gpt import token_loss
from tests.jobs import tiny_job
from tests.runtime.step import tied_layers

FACTORIES = tuple([lambda: nn.Linear(3, 3)] * 4)


def _tie(owner: tuple[object, object], user: tuple[object, object]) -> TiedParameter:
    return TiedParameter(  # type: ignore[arg-type]
        owner_layer=owner[0], owner_name=owner[1], user_layer=user[0], user_name=user[1]
    )


def _workload(*ties: TiedParameter) -> Workload:
    return Workload(layers=FACTORIES, loss=token_loss, tied=ties)


W = "weight"
TIES = {
    "a chain": (
        [_tie((1, W), (2, W)), _tie((2, W), (3, W))],
        "tied: 3.weight to 2.weight, but 2.weight is itself tied to 1.weight",
        "name 1.weight as the owner",
    ),
    "a chain, told backwards": (
        [_tie((2, W), (3, W)), _tie((1, W), (2, W))],
        "tied: 3.weight to 2.weight, but 2.weight is itself tied to 1.weight",
        "no chains",
    ),
    "a ring": ([_tie((1, W), (2, W)), _tie((2, W), (1, W))], "is itself tied to", "as the owner"),
    "the same tie twice": (
        [_tie((1, W), (2, W)), _tie((1, W), (2, W))],
        "2.weight is tied to 1.weight already",
        "tie each parameter once",
    ),
    "two owners": (
        [_tie((0, W), (2, W)), _tie((1, W), (2, W))],
        "tied: 2.weight to 1.weight, but 2.weight is tied to 0.weight already",
        "the same owner",
    ),
    "itself": ([_tie((1, W), (1, W))], "ties a parameter to itself", "leave it out"),
    "two uses in one layer": (
        [_tie((0, W), (2, W)), _tie((0, W), (2, "other"))],
        "tied: 2.other to 0.weight, but layer 2 has a use of it already, 'weight'",
        "give one nn.Parameter both names",
    ),
    "a use beside the owner": (
        [_tie((0, W), (0, "other"))],
        "layer 0 has a use of it already",
        "give one nn.Parameter both names",
    ),
    "a layer past the end": ([_tie((0, W), (4, W))], "names layer 4", "the number of a layer"),
    "a layer from the end": ([_tie((0, W), (-1, W))], "names layer -1", "the number of a layer"),
    "a layer that is no number": ([_tie((True, W), (1, W))], "names layer True", "the number"),
    "a name that is no text": ([_tie((0, None), (1, W))], "parameter None", "the name"),
}


@pytest.mark.parametrize("case", TIES)
def test_ties_that_no_stage_could_keep_are_refused_by_name(case: str) -> None:
    ties, problem, remedy = TIES[case]
    flaw = flaw_of(_workload(*ties))
    assert flaw is not None
    assert problem in flaw[0]
    assert remedy in flaw[1]


def test_more_uses_than_messages_have_numbers_for() -> None:
    for uses, good in ((MOST_USES, True), (MOST_USES + 1, False)):
        workload = Workload(
            layers=FACTORIES[:1] * uses,
            loss=token_loss,
            tied=tuple(_tie((0, W), (user, W)) for user in range(1, uses)),
        )
        assert (flaw_of(workload) is None) is good


@pytest.mark.parametrize(
    ("of", "problem"),
    [
        ({"layers": ()}, "layers is ()"),
        ({"layers": 3}, "layers is 3"),
        ({"layers": nn.ModuleList([nn.Linear(2, 2)])}, "layers is ModuleList"),
        ({"layers": (FACTORIES[0], "Linear")}, "layers[1] is 'Linear'"),
        ({"loss": None}, "loss is None"),
        ({"loss": nn.MSELoss}, "loss is <class "),
        ({"optimizer": "adam"}, "optimizer is 'adam'"),
        ({"optimizer": torch.optim.SGD}, "optimizer is <class "),
        ({"schedule": "linear"}, "schedule is 'linear'"),
        ({"plain": 1}, "plain is 1"),
        ({"tied": ((0, W, 1, W),)}, "tied is ((0, 'weight', 1, 'weight'),)"),
        ({"tied": None}, "tied is None"),
        ({"frozen": "0.*"}, "frozen is '0.*'"),
        ({"frozen": (0,)}, "frozen is (0,)"),
    ],
)
def test_parts_of_another_kind_are_refused(of: dict[str, object], problem: str) -> None:
    flaw = flaw_of(Workload(**({"layers": FACTORIES, "loss": token_loss} | of)))  # type: ignore[arg-type]
    assert flaw is not None
    assert flaw[0].startswith(problem)


def test_good_ones_pass() -> None:
    assert flaw_of(_workload()) is None
    assert flaw_of(_workload(_tie((3, W), (0, W)), _tie((3, W), (1, W)))) is None
    assert flaw_of(tied_layers.build(JobConfig())) is None
    listed = Workload(layers=list(FACTORIES), loss=token_loss)
    assert flaw_of(listed) is None


def test_a_user_s_spec_is_refused_where_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "from bamboo.models import Workload, TiedParameter\n"
        "def build(job):\n"
        "    f = lambda: nn.Linear(3, 3)\n"
        "    t = [TiedParameter(owner_layer=a, owner_name='weight', user_layer=a + 1,\n"
        "                       user_name='weight') for a in (0, 1)]\n"
        "    return Workload(layers=(f, f, f), loss=sum, tied=tuple(t))\n",
        encoding="utf-8",
    )
    with pytest.raises(InputError, match=r"2\.weight to 1\.weight, but 1\.weight is itself tied"):
        build_model(tiny_job(tmp_path, ["model.model=mine.py:build"]))


def test_a_layer_whose_shapes_follow_from_its_input_is_refused() -> None:
    workload = Workload(layers=(*FACTORIES, lambda: nn.LazyLinear(3)), loss=token_loss)
    with pytest.raises(InputError, match=r"layer 4 \(LazyLinear\) has a tensor 'weight' whose"):
        build_layer(workload, 4, 1)
