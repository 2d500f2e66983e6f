"""Groups, optimizers and schedules of a user's own: what they must keep to, each refused in a line
that names its key."""

from pathlib import Path

import pytest
import torch

from bamboo.config.check import check_inputs
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.models import build_layer, build_model, named_parameters
from bamboo.runtime.check.optimizer_contract import check_training
from bamboo.runtime.optim.optimizer import optimizer_of
from bamboo.user_code.guard import unguarded
from tests.jobs import tiny_job, with_code

HEAD = """
import torch
class Mine:
    def state(self, shape): return {"total": shape}
    def step(self, params, grads, states, *, lr, weight_decay, step):
        for p, g, s in zip(params, grads, states):
            s["total"].add_(g)
            p.add_(s["total"], alpha=-lr)
"""
GOOD = HEAD + "def make(train): return Mine()\ndef rate(step, steps, train): return 0.5 ** step\n"
OWN = ("train.optimizer=mine.py:make", "train.schedule=mine.py:rate")


def check(job: JobConfig) -> None:
    workload = build_model(job)
    layers = [(i, build_layer(workload, i, 1)) for i in range(len(workload.layers))]
    check_training(job, workload, {name: p.shape for name, p in named_parameters(layers)})


def job_with(folder: Path, source: str, *overrides: str) -> JobConfig:
    (folder / "mine.py").write_text(source, encoding="utf-8")
    return tiny_job(folder, list(overrides))


def test_one_that_keeps_to_it_passes_and_is_used(tmp_path: Path) -> None:
    job = job_with(tmp_path, GOOD, *OWN)
    check(job)
    optimizer = optimizer_of(job.train, build_model(job))
    params = {"0.a": torch.ones(2), "0.b": torch.ones(3, 2)}
    state = optimizer.new_state(params)
    assert {x: list(own) for x, own in state.tensors.items()} == {
        "0.a": ["total"],
        "0.b": ["total"],
    }
    for step in range(2):
        grads = [torch.ones_like(p) for p in params.values()]
        optimizer.step(list(params.values()), grads, state, step=step, clip_factor=1.0)
    assert params["0.a"].tolist() == [1.0 - 1.0 - 0.5 * 2.0] * 2


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (
            "n = sum(g.abs().sum() for g in grads)\n"
            "        for p, g in zip(params, grads): p.add_(g / n, alpha=-lr)",
            "another value when it is stepped by itself",
        ),
        (
            "for p, g in zip(params, grads):\n"
            "            self.seen = getattr(self, 'seen', 0) + 1\n"
            "            p.add_(g, alpha=-lr / self.seen)",
            "another value when it is stepped by itself",
        ),
        (
            "for s in states: s['total'].add_(torch.rand(s['total'].shape))",
            "another total when it is stepped by itself",
        ),
        (
            "self.kept = getattr(self, 'kept', {})\n"
            "        for p, g in zip(params, grads):\n"
            "            kept = self.kept.setdefault(id(p), torch.zeros_like(p))\n"
            "            p.add_(kept.add_(g), alpha=-lr)",
            "another value when it is stepped by itself, in another order, in other tensors",
        ),
        (
            "for g, s in zip(grads, states): s['total'] = s['total'] + g",
            "puts another tensor in the place of total of a parameter of shape",
        ),
        (
            "for p, g in zip(params, grads): p.data = p - lr * g",
            "puts another tensor in the place of the value of a parameter of shape",
        ),
        ("raise KeyError('none')", r"fails: .*mine\.py, line \d+.*KeyError"),
    ],
    ids=["others", "its own state", "chance", "by object", "state", "value", "failure"],
)
def test_a_step_that_depends_on_more_is_refused(tmp_path: Path, step: str, says: str) -> None:
    source = (
        HEAD.partition("        for p")[0] + f"        {step}\ndef make(train): return Mine()\n"
    )
    with pytest.raises(InputError, match=rf"train\.optimizer = 'mine\.py:make'.*{says}"):
        check(job_with(tmp_path, source, OWN[0]))


@pytest.mark.parametrize(
    "kept", ["{'param': shape}", "{'a/b': shape}", "[shape]", "{'x': 'y'}", "{'x': (-1,)}", "None"]
)
def test_what_it_keeps_has_names_and_shapes(tmp_path: Path, kept: str) -> None:
    source = HEAD.replace('{"total": shape}', kept) + "def make(train): return Mine()\n"
    with pytest.raises(InputError, match=r"says that it keeps .* of a parameter of shape"):
        check(job_with(tmp_path, source, OWN[0]))


def test_what_a_model_freezes_or_brings_is_not_lost_to_the_job(tmp_path: Path) -> None:
    model = (
        "from torch import nn\nfrom bamboo.models import Workload\n"
        "def build(job):\n"
        "    return Workload(layers=[nn.Linear(3, 3), nn.Linear(3, 3)], loss=sum,\n"
        "                    frozen=('0.weight',), schedule=lambda step, steps, train: 1.0)\n"
    )
    (tmp_path / "own.py").write_text(model, encoding="utf-8")
    own, frozen = "model.model=own.py:build", "train.group=[{match='1.bias', frozen=true}]"
    workload = build_model(tiny_job(tmp_path, [own, frozen]))
    layers = [(i, build_layer(workload, i, 1)) for i in range(2)]
    fixed = [name for name, p in named_parameters(layers) if not p.requires_grad]
    assert fixed == ["0.weight", "1.bias"]
    with pytest.raises(InputError, match="the model has its own schedule, too; leave out one"):
        build_model(job_with(tmp_path, GOOD, own, OWN[1]))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return float('nan')", "gives nan for step 0; return a finite number"),
        ("return -1.0", "gives -1.0 for step 0"),
        ("return torch.ones(1)", "for step 0; return a finite number"),
        ("seen.append(1); return 1.0 / len(seen)", "when it is asked again; compute it"),
        ("return 1 / 0", "fails: .*ZeroDivisionError"),
    ],
)
def test_a_schedule_gives_one_number_for_a_step(tmp_path: Path, body: str, says: str) -> None:
    source = f"import torch\nseen = []\ndef rate(step, steps, train):\n    {body}\n"
    with pytest.raises(InputError, match=rf"train\.schedule = 'mine\.py:rate'.*{says}"):
        check(job_with(tmp_path, source, OWN[1]))


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ("[{match='9.*'}]", r"group\[0\]\.match = '9\.\*': matches no parameter; .*such as 0\."),
        (
            "[{match='0.*'}, {match='*', frozen=true}]",
            r"group\[1\]\.match = '\*': matches 0\.\S+, as train\.group\[0\] does",
        ),
    ],
)
def test_groups_match_something_and_no_parameter_twice(
    tmp_path: Path, groups: str, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        check(tiny_job(tmp_path, [f"train.group={groups}"]))


def test_a_group_has_all_uses_of_a_tied_parameter_or_none(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, ["model.tied=true", "train.group=[{match='0.*'}]"])
    with pytest.raises(InputError, match=r"matches one of 0\.\S+ and 3\.\S+, which are tied"):
        check(job)


def test_a_group_that_is_frozen_requires_no_gradient(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, ["train.group=[{match='1.*.weight', frozen=true}]"])
    check(job)
    frozen = {
        n for n, p in build_layer(build_model(job), 1, 1).named_parameters() if not p.requires_grad
    }
    assert frozen
    assert all(name.endswith(".weight") for name in frozen)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("optimizer", "adamv", "is not possible; take one of adamw, .*file.py:make"),
        ("optimizer", "mine.txt:make", "names no optimizer; write"),
        ("optimizer", "none_here.py:make", "correct the path"),
        ("schedule", "step", "is not possible; take one of cosine, linear, constant"),
        ("momentum", "0.5", "means nothing to adamw"),
        ("nesterov", "true", "is of sgd with a momentum"),
        ("group", "[{match='a', rate=2}]", r"group\[0\]\.rate.* is unknown"),
        ("group", "[{frozen=true}]", "lacks match"),
        ("group", "[{match='a', learning_rate_factor=0}]", "is not above 0; write frozen"),
        ("group", "[{match='a', weight_decay='none'}]", "is no number; write one, or"),
        ("group", "[{match='a', frozen=true, weight_decay=1}]", "leaves nothing to take steps"),
    ],
)
def test_keys_are_refused_before_anything_is_loaded(
    tmp_path: Path, key: str, value: str, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        check_inputs(job_with(tmp_path, GOOD, f"train.{key}={value}"))


def test_own_files_lie_side_by_side_and_are_loaded_once(tmp_path: Path) -> None:
    (tmp_path / "rates.py").write_text("import mine\ndef rate(step, steps, train): return mine.X\n")
    job = job_with(tmp_path, GOOD + "X = 0.25\n", OWN[0], "train.schedule=rates.py:rate")
    workload = build_model(job)
    assert workload.schedule is not None
    assert workload.schedule(0, 1, job.train) == 0.25
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "rates.py").write_text("def rate(step, steps, train): return 1.0\n")
    with pytest.raises(InputError, match=r"is not beside mine\.py; put it into the same folder"):
        job_with(tmp_path, GOOD, OWN[0], "train.schedule=below/rates.py:rate")


def test_a_run_takes_along_all_files_that_its_keys_name(tmp_path: Path) -> None:
    (tmp_path / "taken_rates.py").write_text(
        "import mine\ndef rate(step, steps, train): return mine.X\n"
    )
    job = job_with(tmp_path, GOOD + "X = 0.25\n", OWN[0], "train.schedule=taken_rates.py:rate")
    run = tmp_path / "run"
    run.mkdir()
    of_run = with_code(job, run)
    for name in ("mine.py", "taken_rates.py"):
        (tmp_path / name).write_text("X = 'edited'\n", encoding="utf-8")
    try:
        workload = build_model(of_run)
        assert workload.optimizer is not None
        assert workload.optimizer.state(torch.Size((2,))) == {"total": (2,)}
        assert workload.schedule is not None
        assert workload.schedule(0, 1, job.train) == 0.25
    finally:
        unguarded()
