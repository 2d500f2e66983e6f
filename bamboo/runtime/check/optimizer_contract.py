"""What groups, an optimizer and a schedule of the user's own must keep to, checked before a launch.

Rule: every node takes the step of a parameter by itself, in any order, and after a loss again on
another node. So what a parameter becomes may depend on itself, its gradient and its state alone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
from torch import Tensor

from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.models import Optimizer, Workload, tied_names
from bamboo.models.build import USER_ERRORS
from bamboo.models.workload import Schedule
from bamboo.runtime.optim.state import BUFFER, PARAM
from bamboo.user_code.traces import placed_line_of

OPTIMIZER, SCHEDULE = "train.optimizer", "train.schedule"
LOOKED_AT = 4
"""Shapes of parameters that are stepped; the smallest ones."""
STEPS = (0, 1, 2)
MOST_RATES = 10_000
ALONE = "compute it from the parameter, its gradient and its state alone, and keep nothing else"
T = TypeVar("T")


def check_training(job: JobConfig, workload: Workload, shapes: Mapping[str, torch.Size]) -> None:
    """Check all that steps the parameters; `shapes` is by their global names, in global order.
    Raises InputError."""
    _check_groups(job, workload, list(shapes))
    if workload.optimizer is not None:
        _check_optimizer(job, workload.optimizer, list(dict.fromkeys(shapes.values())))
    if workload.schedule is not None:
        _check_schedule(job, workload.schedule)


def _check_groups(job: JobConfig, workload: Workload, names: Sequence[str]) -> None:
    group_of: dict[str, int] = {}
    for number, group in enumerate(job.train.group):
        key = f"train.group[{number}].match"
        matched = [name for name in names if fnmatchcase(name, group.match)]
        if not matched:
            remedy = f"name parameters as <layer>.<name>, such as {', '.join(names[:3])}"
            raise _refuse(job, key, group.match, "matches no parameter", remedy)
        for name in matched:
            other = group_of.setdefault(name, number)
            if other != number:
                words = f"matches {name}, as train.group[{other}] does"
                raise _refuse(job, key, group.match, words, "let one of them match it")
    for pattern in workload.frozen:
        if not any(fnmatchcase(name, pattern) for name in names):
            remedy = f"name parameters as <layer>.<name>, such as {', '.join(names[:3])}"
            words = f"its Workload freezes {pattern!r}, which matches no parameter"
            raise _refuse(job, "model.model", job.own["model.model"], words, remedy)
    for user, owner in tied_names(workload).items():
        if group_of.get(user) != group_of.get(owner):
            number = group_of.get(user, group_of.get(owner, 0))
            raise _refuse(
                job,
                f"train.group[{number}].match",
                job.train.group[number].match,
                f"matches one of {owner} and {user}, which are tied",
                "let one group match both, as they stay equal",
            )


def _check_optimizer(job: JobConfig, optimizer: Optimizer, shapes: Sequence[torch.Size]) -> None:
    kept = {shape: _kept(job, optimizer, shape) for shape in shapes}
    small = sorted(shapes, key=lambda shape: shape.numel())[:LOOKED_AT]
    # The same again: two parameters of one shape, so that a mixture of them shows.
    cases = [_Case(shape, kept[shape], seed) for seed, shape in enumerate([*small, *small])]
    together = [case.fresh() for case in cases]
    for step in STEPS:
        _step(job, optimizer, together, cases, step)
    # By itself, and after each step in other tensors, as on a node that was sent them.
    apart = [[case.fresh()] for case in cases]
    for case, copies in reversed(list(zip(cases, apart, strict=True))):
        for step in STEPS:
            _step(job, optimizer, copies[-1:], [case], step)
            param, state = copies[-1]
            copies.append((param.clone(), {kind: one.clone() for kind, one in state.items()}))
    for case, (param, state), (*_, (alone, own)) in zip(cases, together, apart, strict=True):
        differing = [kind for kind in state if not torch.equal(state[kind], own[kind])]
        if not torch.equal(param, alone) or differing:
            what = differing[0] if torch.equal(param, alone) else "value"
            raise _of_optimizer(
                job,
                f"gives a parameter of shape {tuple(case.shape)} another {what} when it is stepped "
                "by itself, in another order, in other tensors or again",
                ALONE,
            )


class _Case:
    """A parameter with its gradients, one for each step."""

    def __init__(self, shape: torch.Size, kept: Mapping[str, torch.Size], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.shape = shape
        self._kept = kept
        self._param = torch.randn(shape, generator=generator)
        self._grads = [torch.randn(shape, generator=generator) for _ in STEPS]

    def fresh(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The parameter and its state before the first step."""
        return self._param.clone(), {kind: torch.zeros(x) for kind, x in self._kept.items()}

    def gradient(self, step: int) -> Tensor:
        """A copy."""
        return self._grads[step].clone()


def _kept(job: JobConfig, optimizer: Optimizer, shape: torch.Size) -> dict[str, torch.Size]:
    first, again = (_asked(job, OPTIMIZER, lambda: optimizer.state(shape)) for _ in range(2))
    said = f"says that it keeps {first!r} of a parameter of shape {tuple(shape)}"
    words = "return {kind: shape}, the same each time, with a word such as exp_avg for each kind"
    try:
        kept = {kind: torch.Size(one) for kind, one in first.items()}
    except (AttributeError, TypeError, ValueError):
        raise _of_optimizer(job, said, words) from None
    odd = [kind for kind in kept if not str(kind).isidentifier() or kind in (PARAM, BUFFER)]
    if odd or first != again or any(n < 0 for one in kept.values() for n in one):
        raise _of_optimizer(job, said, words)
    return kept


def _step(
    job: JobConfig,
    optimizer: Optimizer,
    held: Sequence[tuple[Tensor, dict[str, Tensor]]],
    cases: Sequence[_Case],
    step: int,
) -> None:
    def take() -> None:
        optimizer.step(
            [param for param, _ in held],
            [case.gradient(step) for case in cases],
            [state for _, state in held],
            lr=job.train.learning_rate,
            weight_decay=job.train.weight_decay,
            step=step,
        )

    before = [_lying(*one) for one in held]
    with torch.no_grad():
        _asked(job, OPTIMIZER, take)
    for case, then, one in zip(cases, before, held, strict=True):
        now = _lying(*one)
        if now != then:
            name = next(n for n in {**then, **now} if then.get(n) != now.get(n))
            raise _of_optimizer(
                job,
                f"puts another tensor in the place of {name} of a parameter of shape "
                f"{tuple(case.shape)}",
                "change parameter and state in place, as with copy_",
            )


def _lying(param: Tensor, state: Mapping[str, Tensor]) -> dict[str, tuple[object, ...]]:
    """What each tensor is, and where it lies: all that a step must leave as it is."""
    named = {"the value": param, **state}
    return {name: (id(t), t.data_ptr(), t.shape, t.stride(), t.dtype) for name, t in named.items()}


def _check_schedule(job: JobConfig, schedule: Schedule) -> None:
    train = job.train
    asked = range(0, train.steps, max(1, train.steps // MOST_RATES))

    def rate(step: int) -> Any:
        return _asked(job, SCHEDULE, lambda: schedule(step, train.steps, train))

    rates = {step: rate(step) for step in asked}
    for step, found in rates.items():
        if type(found) not in (int, float) or not math.isfinite(found) or found < 0:
            words = f"gives {found!r} for step {step}"
            raise _of(job, SCHEDULE, words, "return a finite number of at least 0")
    for step in reversed(asked):
        if (again := rate(step)) != rates[step]:
            words = f"gives {rates[step]!r} for step {step}, and {again!r} when it is asked again"
            raise _of(job, SCHEDULE, words, "compute it from step, steps and train alone")


def _asked(job: JobConfig, key: str, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except USER_ERRORS as error:
        raise _of(job, key, f"fails: {placed_line_of(error)}", "correct it") from error


def _of_optimizer(job: JobConfig, problem: str, remedy: str) -> InputError:
    return _of(job, OPTIMIZER, problem, remedy)


def _of(job: JobConfig, key: str, problem: str, remedy: str) -> InputError:
    """Of the user's own code: what the job names, or else the model that it came with."""
    named = key if key in job.own else "model.model"
    return _refuse(job, named, job.own[named], " ".join(problem.split()), remedy)


def _refuse(job: JobConfig, key: str, value: str, problem: str, remedy: str) -> InputError:
    return InputError.at(file=job.file, key=key, value=value, problem=problem, remedy=remedy)
