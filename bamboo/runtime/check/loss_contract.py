"""What a model's loss must be: one finite float32 number, the sum over all that the data
counts.

Rule: a run divides the sum over a whole step by the step's count. A loss that is already a mean
would train with gradients that depend on how a batch is cut.
"""

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from bamboo.errors import InputError
from bamboo.models import Gradients, Tensors, Workload, as_leaves, measured, unpacked
from bamboo.models.build import USER_ERRORS
from bamboo.models.running import OUT_OF_PLACE
from bamboo.models.workload import Loss
from bamboo.runtime.check.one_layer import leaves_of, same
from bamboo.runtime.device.global_settings import changed, settings
from bamboo.user_code.traces import placed_line_of

MOST_REPEATS, REPEATS_S = 100, 0.2
"""How often the loss is asked at most, and within which processor time, which a busy machine does
not shorten: a loss that counts its calls may show only then."""
MOST_METRICS = 64
"""Names; with thousands of them a step takes seconds to tell what it measured."""
_END_WITH = {
    True: "end with a value for each token of the vocabulary",
    False: "end with what the loss takes, and give it the targets of the data",
}
"""Of a text, and of other data."""
ROUNDING = 1e-3
"""Relative to the losses: two orders of the same float32 sum differ by less."""


def loss_gradient(
    file: str, workload: Workload, output: Tensors, targets: Tensors, count: int
) -> tuple[float, Gradients]:
    """The loss of the last layer's output, and the gradients of that output by the loss divided by
    `count`, that of the step. Raises InputError."""
    leaves, before = as_leaves(output), settings()
    outputs = tuple(leaf.clone() for leaf in leaves)  # in a stage they are no leaves either
    given = _Given(outputs, targets)
    try:
        loss: object = workload.loss(unpacked(outputs), unpacked(targets))
    except USER_ERRORS as error:
        raise _refuse(
            file,
            workload,
            output,
            f"that the loss cannot take: {placed_line_of(error)}",
            _END_WITH[workload.data is None],
        ) from error
    found = changed(before)
    if found is not None:
        raise InputError(f"{file}: the loss {found[0]}; {found[1]}")
    given.check(file, "loss")
    if not isinstance(loss, Tensor) or loss.dtype != torch.float32 or loss.dim() != 0:
        said = (
            f"a tensor of shape {tuple(loss.shape)} and type {loss.dtype}"
            if isinstance(loss, Tensor)
            else f"{loss!r}, which is no tensor"
        )
        raise InputError(
            f"{file}: the loss at the start is {said}; return a torch.float32 tensor of shape (), "
            "the sum over all that the data counts"
        )
    _check_leaves(file, loss, leaves)
    try:
        (loss / count).backward()  # type: ignore[no-untyped-call]
    except USER_ERRORS as error:
        raise InputError(
            f"{file}: the loss fails in its backward: {placed_line_of(error)}"
        ) from error
    return loss.item(), tuple(leaf.grad for leaf in leaves)


class _Given:
    """Outputs and targets, which neither the loss nor the metrics may write into: they may lie in
    the memory of a message that is kept, and the metrics are to see what the loss saw."""

    def __init__(self, outputs: Tensors, targets: Tensors) -> None:
        self._parts = {"outputs": outputs, "targets": targets}
        self._versions = {name: [t._version for t in part] for name, part in self._parts.items()}
        self._copies = {name: _copied(part) for name, part in self._parts.items()}

    def check(self, file: str, what: str) -> None:
        """Raise InputError where they are not as they were."""
        for name, part in self._parts.items():
            if [t._version for t in part] != self._versions[name] or not same(
                part, self._copies[name]
            ):
                raise InputError(
                    f"{file}: the {name} are written into by the {what}; {OUT_OF_PLACE}"
                )


def check_finite(file: str, loss: float, gradients: Gradients) -> None:
    """Raises InputError when training could not begin."""
    finite = all(bool(torch.isfinite(g).all()) for g in gradients if g is not None)
    if not torch.isfinite(torch.tensor(loss)) or not finite:
        what = (
            f"loss at the start is {loss}"
            if finite
            else (f"loss at the start is {loss}, with a gradient that is not finite")
        )
        raise InputError(f"{file}: the {what}; it must be one finite float32 number")


def check_sum(
    file: str, workload: Workload, output: Tensors, targets: Tensors, samples: int
) -> None:
    """Two halves of a microbatch of so many samples must add up to the whole; a single sample is
    taken twice, and must add up to both. Raises InputError; does nothing where outputs and targets
    cannot be told apart by sample."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        whole = _of(workload.loss, output, targets, 1)
        end_s, asked = time.thread_time() + REPEATS_S, 1
        while asked < 3 or (asked < MOST_REPEATS and time.thread_time() < end_s):
            asked += 1
            again = _of(workload.loss, output, targets, asked)
            if whole is None or whole != again:
                raise InputError(
                    f"{file}: the loss draws, or depends on how often it was asked: it is {whole} "
                    f"and, when asked {asked} times, {again} for the same output and targets; "
                    "compute it from these two alone, and draw in the last layer"
                )
        assert whole is not None
        sums = list(_sums(workload.loss, output, targets, samples, whole))
    if not sums or any(abs(a - b) <= ROUNDING * (abs(a) + abs(b) + 1e-30) for a, b in sums):
        return
    parts, together = sums[0]
    raise InputError(
        f"{file}: the loss of two halves of a microbatch adds up to {parts:g}, that of the whole "
        f"is {together:g}: it is no sum over what is counted; sum it, as with reduction='sum' for "
        f"'mean'{_spread_over(output, targets)}"
    )


def _spread_over(output: Tensors, targets: Tensors) -> str:
    """What else may be wrong where torch would spread one over the other: (B, 1) and (B,) make
    (B, B)."""
    if len(output) > 1 or len(targets) > 1 or not targets[0].is_floating_point():
        return ""
    shapes = tuple(output[0].shape), tuple(targets[0].shape)
    if shapes[0] == shapes[1]:
        return ""
    return f"; or give output and targets, {shapes[0]} and {shapes[1]}, the same shape"


def check_metrics(file: str, workload: Workload, output: Tensors, targets: Tensors) -> None:
    """Raises InputError where the metrics fail, are no numbers by name, have too many names or one
    that cannot be shown, change what they are given or a setting of the process, or differ when
    they are asked again."""
    given = _Given(output, targets)
    before = settings()
    found = []
    try:
        for seed in (1, 2):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                found.append(measured(workload, output, targets))
    except USER_ERRORS as error:
        raise InputError(
            f"{file}: the metrics fail: {placed_line_of(error)}; return {{name: (sum, count)}}, "
            "each a number or a tensor of one"
        ) from error
    given.check(file, "metrics")
    setting = changed(before)
    if setting is not None:
        raise InputError(f"{file}: its metrics function {setting[0]}; {setting[1]}")
    first, again = found
    if len(first) > MOST_METRICS:
        raise InputError(
            f"{file}: the metrics have {len(first):,} names, and every step shows each of them; "
            f"return at most {MOST_METRICS}"
        )
    for name in first:
        if not name.strip() or not name.isprintable():
            raise InputError(
                f"{file}: a metric is named {name!r}, which a line of a step cannot show; name it "
                "with characters that can be printed"
            )
    for name in {**first, **again}:
        if name not in first or name not in again or not same((first[name],), (again[name],)):
            raise InputError(
                f"{file}: the metric {name!r} differs when it is asked again for the same outputs "
                "and targets; compute it from these two alone"
            )


def check_largest(
    file: str, workload: Workload, output: Tensors, targets: Tensors, largest: int
) -> None:
    """The loss must take the largest token of the data, which this microbatch may not contain."""
    with torch.no_grad():
        try:
            workload.loss(unpacked(_copied(output)), torch.full_like(targets[0], largest))
        except USER_ERRORS as error:
            raise _refuse(
                file,
                workload,
                output,
                f"with which the loss cannot take {largest}, the largest token of the data: "
                f"{placed_line_of(error)}",
                _END_WITH[True],
            ) from error


def _sums(
    loss: Loss, output: Tensors, targets: Tensors, samples: int, whole: float
) -> Iterator[tuple[float, float]]:
    """(sum of the parts' losses, loss of the whole) for each dimension of the output that may be
    the one of the samples. There are none where a target has another first dimension."""
    if not targets or any(t.dim() == 0 or t.shape[0] != samples for t in targets):
        return
    half = samples // 2
    for dim in range(min(t.dim() for t in output)):
        if any(t.shape[dim] % samples or not t.shape[dim] for t in output):
            continue
        if half:
            cut = [t.tensor_split([t.shape[dim] // samples * half], dim) for t in output]
            cut_targets = [t.tensor_split([half]) for t in targets]
            parts = [
                _of(loss, tuple(t[n] for t in cut), tuple(t[n] for t in cut_targets), 1)
                for n in range(2)
            ]
            together: float | None = whole
        else:
            parts = [whole, whole]
            twice = tuple(torch.cat([t] * 2, dim) for t in output)
            together = _of(loss, twice, tuple(torch.cat([t] * 2) for t in targets), 1)
        if together is not None and parts[0] is not None and parts[1] is not None:
            yield parts[0] + parts[1], together


def _of(loss: Loss, output: Tensors, targets: Tensors, seed: int) -> float | None:
    """The loss as a number; None where it cannot take this input."""
    torch.manual_seed(seed)
    try:
        return float(loss(unpacked(_copied(output)), unpacked(_copied(targets))))
    except USER_ERRORS:
        return None


def _copied(output: Tensors) -> Tensors:
    return tuple(t.detach().clone() for t in output)


def _check_leaves(file: str, loss: Tensor, leaves: Tensors) -> None:
    found = list(leaves_of((loss,)))
    for other in found:
        if not any(other is leaf for leaf in leaves):
            raise InputError(
                f"{file}: the loss trains with a tensor of shape {tuple(other.shape)} that is no "
                "layer's parameter, so nobody would step it; make it a parameter of the last layer"
            )
    if not found:
        raise InputError(
            f"{file}: the loss does not depend on the output of the last layer; nothing would be "
            "trained"
        )


def _refuse(
    file: str, workload: Workload, output: Tensors, problem: str, remedy: str
) -> InputError:
    return InputError(
        f"{file}: layer {len(workload.layers) - 1} gives an output of shape "
        f"{' and '.join(str(tuple(t.shape)) for t in output)} "
        f"{problem}; {remedy}"
    )
