"""What a job's own data must be: the same whenever, wherever and after whatever it is asked, with a
count for every step.

Rule: text needs no check, since it is ours.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from bamboo.config.resolve import batch_shape
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import Dataset
from bamboo.errors import InputError
from bamboo.models.build import USER_ERRORS
from bamboo.runtime.check.one_layer import same
from bamboo.runtime.wire.frames import SENDABLE
from bamboo.user_code.traces import placed_line_of

Batch: TypeAlias = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
LOOKED_AT = 32
"""Microbatches among which the smallest and the largest are looked for."""
COUNTS_S = 5.0
"""Time for the counts of steps; a step that is not reached by then is refused when it comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A microbatch as the data gave it."""

    step: int
    index: int
    batch: Batch
    count: int

    @property
    def types(self) -> str:
        """`inputs (torch.float32) and targets (torch.int64)`."""
        inputs, targets = (", ".join(str(t.dtype) for t in part) for part in self.batch)
        return f"inputs ({inputs}) and targets ({targets})"

    @property
    def size_bytes(self) -> int:
        return sum(t.nbytes for part in self.batch for t in part)


def check_data(job: JobConfig, data: Dataset) -> list[int]:
    """Raises InputError where own data fail, differ when they are asked again, or count nothing in
    a step. Returns the microbatches of step 0 by which a model is to be sized."""
    if data.text and data.text.alike:
        return [0]
    try:
        found = [_asked(data, step, index) for step, index in looked_at(job)]
        unlike = _unlike(job, data, found)
        again = [_asked(data, one.step, one.index) for one in found]
        _check_counts(job, data)
    except InputError as error:
        raise InputError(f"{job.file}: {error}") from error
    except USER_ERRORS as error:
        raise InputError(
            f"{job.file}: the data fail: {placed_line_of(error)}; correct "
            f"{job.own.get('data.source', job.model.model).partition(':')[0]}"
        ) from error
    for one, other in zip(found, again, strict=True):
        asked = f"when they are asked again for microbatch {one.index} of step {one.step}"
        for name, here, there in zip(("inputs", "targets"), one.batch, other.batch, strict=True):
            if not same(here, there):
                raise InputError(
                    f"{job.file}: the data give other {name} {asked}; make a sample of its number "
                    "and its key alone, as with torch.Generator().manual_seed(key)"
                )
        if one.count != other.count:
            raise InputError(
                f"{job.file}: the data count {one.count} and {other.count} {asked}; count a sample "
                "by its number and its key alone"
            )
    return unlike


def looked_at(job: JobConfig) -> list[tuple[int, int]]:
    """(Step, microbatch) of the first and the last microbatch of a run."""
    return [(0, 0), (job.train.steps - 1, batch_shape(job).total - 1)]


def _unlike(job: JobConfig, data: Dataset, found: Sequence[_Asked]) -> list[int]:
    """The first microbatch, then those with the least and the most counts, and bytes, if others
    have them. All must be of the same types, as those that were `found` already."""
    of_step = (_asked(data, 0, index) for index in range(min(batch_shape(job).total, LOOKED_AT)))
    looked = list(of_step)
    for one in (*looked, *found):
        if one.types != looked[0].types:
            raise InputError(
                f"the data give {looked[0].types} in microbatch 0 of step 0 and {one.types} in "
                f"microbatch {one.index} of step {one.step}; give as many tensors of the same "
                "types in each"
            )
    unsent = [t.dtype for part in looked[0].batch for t in part if t.dtype not in SENDABLE]
    if unsent:
        raise InputError(
            f"the data give {unsent[0]}, which is not sent between nodes; give one of "
            f"{', '.join(map(str, SENDABLE))}"
        )
    counts, sizes = [one.count for one in looked], [one.size_bytes for one in looked]
    ends = {those.index(end(those)) for those in (counts, sizes) for end in (min, max)}
    return [0, *sorted(ends - {0})]


def _asked(data: Dataset, step: int, index: int) -> _Asked:
    """A microbatch, each time with other numbers to be drawn by chance."""
    torch.seed()
    random.seed()
    np.random.seed()
    batch = data.microbatch(step, index)
    return _Asked(step=step, index=index, batch=batch, count=data.count_of(step, index))


def _check_counts(job: JobConfig, data: Dataset) -> None:
    end_s = time.monotonic() + COUNTS_S
    for step in range(job.train.steps):
        data.count(step)
        if not callable(getattr(data.data, "count", None)) or time.monotonic() > end_s:
            return
