"""What a job's own data must be: the same whenever, wherever and after whatever it is asked, with a
count for every step.

Rule: text needs no check, since it is ours.
"""

import random
import time
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bamboo.config.resolve import batch_shape
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import Dataset
from bamboo.errors import InputError
from bamboo.models.build import USER_ERRORS
from bamboo.runtime.check.one_layer import same
from bamboo.user_code.traces import placed_line_of

Batch: TypeAlias = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
LOOKED_AT = 32
"""Microbatches among which the smallest and the largest are looked for."""
COUNTS_S = 5.0
"""Time for the counts of steps; a step that is not reached by then is refused when it comes."""


def check_data(job: JobConfig, data: Dataset) -> list[int]:
    """Raises InputError where own data fail, differ when they are asked again, or count nothing in
    a step. Returns the microbatches of step 0 by which a model is to be sized."""
    if data.text:
        return [0]  # all are alike
    try:
        found = [*_asked(job, data)]
        again = [*_asked(job, data)]
        _check_counts(job, data)
        unlike = _unlike(job, data)
    except InputError as error:
        raise InputError(f"{job.file}: {error}") from error
    except USER_ERRORS as error:
        raise InputError(
            f"{job.file}: the data fail: {placed_line_of(error)}; correct {job.model.own_file}"
        ) from error
    kinds = [[[t.dtype for t in part] for part in batch] for _, _, batch in found]
    if kinds[0] != kinds[1]:
        raise InputError(
            f"{job.file}: the data give {kinds[0]} in the first microbatch and {kinds[1]} in the "
            "last; give as many tensors of the same types in each"
        )
    for (step, index, one), (_, _, other) in zip(found, again, strict=True):
        for name, here, there in zip(("inputs", "targets"), one, other, strict=True):
            if len(here) != len(there) or not same(here, there):
                raise InputError(
                    f"{job.file}: the data give other {name} when they are asked again for "
                    f"microbatch {index} of step {step}; make a sample of its number and its key "
                    "alone, as with torch.Generator().manual_seed(key)"
                )
    return unlike


def _unlike(job: JobConfig, data: Dataset) -> list[int]:
    """The first microbatch, then those with the least and the most counts, and bytes, if others
    have them."""
    counts, sizes = [], []
    for index in range(min(batch_shape(job).total, LOOKED_AT)):
        inputs, targets = _checked(data.microbatch(0, index))
        counts.append(data.count_of(0, index))
        sizes.append(sum(t.nbytes for t in (*inputs, *targets)))
    ends = {found.index(end(found)) for found in (counts, sizes) for end in (min, max)}
    return [0, *sorted(ends - {0})]


def _asked(job: JobConfig, data: Dataset) -> Iterator[tuple[int, int, Batch]]:
    """Two microbatches, each with other numbers to be drawn by chance."""
    for step, index in ((0, 0), (job.train.steps - 1, batch_shape(job).total - 1)):
        torch.seed()
        random.seed()
        np.random.seed()
        yield step, index, _checked(data.microbatch(step, index))


def _check_counts(job: JobConfig, data: Dataset) -> None:
    end_s = time.monotonic() + COUNTS_S
    for step in range(job.train.steps):
        data.count(step)
        if not callable(getattr(data.data, "count", None)) or time.monotonic() > end_s:
            return


def _checked(found: Any) -> Batch:
    """What the data gave, if it is (inputs, targets) of tensors. Raises InputError."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise InputError(f"the data's batch gives {_kind(found)}; return (inputs, targets)")
    for name, part in zip(("inputs", "targets"), found, strict=True):
        if not isinstance(part, tuple) or not all(isinstance(t, Tensor) for t in part):
            raise InputError(
                f"the data's batch gives {name} that are {_kind(part)}; return a tuple of tensors"
            )
    if not found[0]:
        raise InputError("the data's batch gives no inputs; return at least one tensor")
    return found


def _kind(found: object) -> str:
    return (
        f"{type(found).__name__} of {len(found)}"
        if isinstance(found, tuple)
        else repr(type(found).__name__)
    )
