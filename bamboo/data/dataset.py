"""What a job trains on, addressed by (step, microbatch): a pure function of the content.

Rule: any node can produce any microbatch, and each sample comes once in each data epoch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from bamboo.config.tree import DataConfig, JobConfig, ModelConfig
from bamboo.data.order import SampleOrder
from bamboo.data.text import Text, named_by, text_of
from bamboo.data.tokens import Documents, TokenFile, Windows
from bamboo.errors import InputError
from bamboo.token_files import DOCUMENTS, FarTokens

Tensors: TypeAlias = tuple[Tensor, ...]
Found: TypeAlias = bytearray | Path | FarTokens
"""Data that were read, or found, elsewhere: a text, a token file, or one in a bucket."""
STEPS_COUNTED = 8
"""The steps whose counts are kept: a loss is divided once for each microbatch of a step."""


class Data(Protocol):
    """A finite set of samples, numbered from 0, the same on every machine. In addition it may have

        count: int, or (index, key) -> int

    what a sample weighs in the loss, as for the labels in it that are not masked; without it each
    sample weighs 1. Order, repetition and the slices of the batch are not its concern.
    """

    @property
    def samples(self) -> int:
        """How many there are."""

    @property
    def digest(self) -> str:
        """What identifies the contents: other contents must have another one."""

    @property
    def unit(self) -> str:
        """What is counted, in the singular: `token`, `image`, `sample`."""

    def batch(
        self, indices: Sequence[int], keys: Sequence[int]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """(inputs, targets) of these samples, on the CPU. A tuple of one is handed to the first
        layer, or to the loss, as that tensor. `keys`: for each sample a number of 63 bits that
        follows from seed, data epoch and sample: all that is drawn for a sample, as for
        augmentation, is drawn from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeOfText:
    """Data that a model makes of the job's own text or tokens, such as words to be found again."""

    make: Callable[[Data], Data]


class Dataset:
    """The samples of a job in the order in which its steps use them."""

    def __init__(self, data: Data, *, batch: int, microbatch: int, seed: int) -> None:
        self.data = data
        self.text = data if isinstance(data, Text | Windows | Documents) else None
        """The same, where it is text or tokens."""
        self.samples = data.samples
        self.digest = data.digest
        self.unit = data.unit
        self._microbatches = range(batch // microbatch)
        count: int | Callable[[int, int], int] = getattr(data, "count", 1)
        self._count = count if callable(count) else None
        self._whole = 0 if callable(count) else batch * count
        self._order = SampleOrder(
            samples=self.samples, batch=batch, microbatch=microbatch, seed=seed
        )
        self._counted = lru_cache(STEPS_COUNTED)(self._sum_of)
        # A step that is counted has made them for its microbatches, which cost most of a count.
        self._keys = lru_cache(2 * len(self._microbatches))(self._order.keys_of)

    @property
    def described(self) -> str:
        """`1,438 samples of digest 'abc'`."""
        return f"{self.samples:,} samples of digest {self.digest!r}"

    @property
    def described_tokens(self) -> dict[str, Any]:
        """What is shown of tokens before a launch; {} for other data. Raises DamagedData."""
        return {} if isinstance(self.text, Text | None) else self.text.describe()

    def sample_indices(self, step: int, index: int) -> list[int]:
        """The samples of global microbatch `index` of `step`, steps counted from 0."""
        return self._order.of(step, index)

    def microbatch(self, step: int, index: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """(inputs, targets) of the global microbatch `index` of `step`. Raises InputError where own
        data give anything but two tuples of dense tensors on the CPU."""
        samples = self._order.of(step, index)
        if self.text:  # nothing is drawn for it
            found = self.text.batch(samples, [])
            if not isinstance(self.text, Text) and self.text.is_far:
                self.text.ahead(self._order.of(step + 1, index))
            return found
        return apart(self.data.batch(samples, [*self._keys(step, index)]))

    def count(self, step: int) -> int:
        """What all samples of a step weigh together: its loss is divided by that. Raises InputError
        for a step that weighs nothing, or a weight that is no whole number from 0."""
        return self._whole or self._counted(step)

    def count_of(self, step: int, index: int) -> int:
        """What the samples of one microbatch weigh together. Raises InputError for a weight that is
        no whole number from 0."""
        total, weight_of = 0, self._count
        if weight_of is None:
            return self._whole // len(self._microbatches)
        keys = self._keys(step, index)
        for sample, key in zip(self._order.of(step, index), keys, strict=True):
            weight = weight_of(sample, key)
            if not isinstance(weight, int) or weight < 0:
                raise InputError(
                    f"step {step}: the data counts {weight!r} for sample {sample}; return a "
                    "whole number from 0, as int(...) makes one"
                )
            total += weight
        return total

    def _sum_of(self, step: int) -> int:
        total = sum(self.count_of(step, index) for index in self._microbatches)
        if not total:
            raise InputError(
                f"step {step}: the data counts 0 for all of its samples, and a loss is divided by "
                "that; leave out samples without a label, or take a larger train.batch"
            )
        return total


def apart(found: object) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """What own data gave of a microbatch, in memory of its own: the data may fill theirs again
    while this microbatch is in use, and bits may follow where a tensor lies."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise InputError(f"the data's batch gives {_kind(found)}; return (inputs, targets)")
    for name, part in zip(("inputs", "targets"), found, strict=True):
        if not isinstance(part, tuple) or not all(isinstance(t, Tensor) for t in part):
            raise InputError(
                f"the data's batch gives {name} that are {_kind(part)}; return a tuple of tensors"
            )
        for t in part:
            if t.device.type != "cpu" or t.layout != torch.strided:
                raise InputError(
                    f"the data's batch gives {name} that are {t.layout} on {t.device}; return "
                    "dense tensors on the CPU"
                )
    if not found[0]:
        raise InputError("the data's batch gives no inputs; return at least one tensor")
    inputs, targets = (tuple(map(_copied, part)) for part in found)
    return inputs, targets


def _copied(tensor: Tensor) -> Tensor:
    plain = tensor.detach().as_subclass(Tensor)
    return plain.clone(memory_format=torch.contiguous_format)


def _kind(found: object) -> str:
    return (
        f"a tuple of {len(found)} ({', '.join(type(part).__name__ for part in found)})"
        if isinstance(found, tuple)
        else repr(type(found).__name__)
    )


def check_digest(job: JobConfig, data: Dataset, digest: str) -> None:
    """Raise InputError unless the data has this SHA-256, which the run was made for."""
    if data.digest == digest:
        return
    if data.text is None:
        raise InputError.at(
            file=job.file,
            key="data.source" if "data.source" in job.own else "model.model",
            value=job.own.get("data.source", job.model.model),
            problem=f"its data has the digest {data.digest[:12]}, the run was made for "
            f"{digest[:12]}",
            remedy="make the digest of the contents alone, and give every node the same",
        )
    key, value = named_by(job)
    raise InputError.at(
        file=job.file,
        key=key,
        value=value,
        problem=f"{data.text.size_bytes:,} bytes with digest {data.digest[:12]} are here, the run "
        f"was made for digest {digest[:12]}",
        remedy="give every node the files as they were at launch",
    )


def load_data(
    job: JobConfig,
    brought: Found | None = None,
    *,
    own: Data | MadeOfText | None = None,
) -> Dataset:
    """The data of a job: its workload's `own`, or else the text of [data], which is read and hashed
    well under a second for 16 MB, or its tokens, which are read as they are needed. `brought`: the
    text, if it was read elsewhere already, or the path of its token file on this machine.

    Raises InputError when there is no text, less than one window of it, or a token that the
    model's vocabulary has no row for; and for own data whose attributes are not what `Data` says.
    """
    here = brought
    if here is None and job.data.is_prepared:
        here = Path(job.tokens) if job.tokens else job.named(job.data.path)
    data: Data
    if own is None:
        data = open_data(job, job.data, here)
    elif isinstance(own, MadeOfText):
        data = own.make(open_data(job, job.data, here))
    else:
        data = checked(job, own)
    train = job.train
    return Dataset(data, batch=train.batch, microbatch=train.microbatch, seed=train.seed)


def open_data(
    job: JobConfig,
    data: DataConfig,
    found: Found | None = None,
    *,
    section: str = "data",
) -> Text | Windows | Documents:
    """What a description of data, in this section of the job file, makes of text or of tokens.
    `found`: the token file, by `bamboo.config.prepared.find_tokens`; or the text, if it was read
    already. Raises InputError as `load_data`."""
    if isinstance(found, Path | FarTokens):
        return open_tokens(job, data, found, section=section)
    return text_of(replace(job, data=data), found, section=section)


def open_tokens(
    job: JobConfig, data: DataConfig, path: Path | FarTokens, *, section: str = "data"
) -> Windows | Documents:
    """The samples that a description of data makes of a token file.

    Raises InputError when the file is not there or not prepared, holds no sample, or a token that
    the model's vocabulary has no row for.
    """
    file, context = TokenFile(path), job.model.context
    path = file.path
    largest, vocabulary = file.facts.largest, job.model.vocabulary
    if largest >= vocabulary:
        raise InputError.at(
            file=job.file,
            key="model.vocabulary",
            value=vocabulary,
            problem=f"the tokens of {path.name} go up to {largest}",
            remedy=f"take {file.header.vocabulary}, or leave it out",
        )
    padded = data.documents == "padded"
    if padded and not file.facts.documents:
        raise InputError.at(
            file=job.file,
            key=f"{section}.documents",
            value=data.documents,
            problem=f"{path.name}{DOCUMENTS}, which says where documents begin, is not there",
            remedy="write it and prepare again, or leave the key out",
        )
    found = (Documents if padded else Windows)(file, context=context)
    if found.samples < 1:
        raise InputError.at(
            file=job.file,
            key=f"{section}.path",
            value=data.path,
            problem=f"{file.header.tokens:,} tokens hold no window of context + 1 = {context + 1}",
            remedy="give more text or a smaller model.context",
        )
    return found


def checked(job: JobConfig, data: Data, *, section: str = "data") -> Data:
    """The data itself, where it is what `Data` says and the job says nothing of a text. `section`:
    the one of the job file that they are of."""
    key, value = f"{section}.source", job.own.get(f"{section}.source", "")
    if not value:
        key, value = "model.model", job.model.model
        _refuse_text(job)
    for name, (is_good, wanted) in _ATTRIBUTES.items():
        found = getattr(data, name, 1 if name == "count" else None)
        if is_good(found):
            continue
        remedy = f"make it {wanted}"
        if name == "samples" and hasattr(data, "__len__"):  # a dataset as torch has them
            remedy = "give bamboo.models.data_of(dataset), of a dataset and not of its loader"
        raise InputError.at(
            file=job.file,
            key=key,
            value=value,
            problem=f"its data ({type(data).__name__}) has {name} = {found!r}",
            remedy=remedy,
        )
    return data


def _refuse_text(job: JobConfig) -> None:
    """Raise InputError for a key of a text, where the model brings data of its own."""
    plain = DataConfig()
    of_text: list[tuple[str, object, object]] = [
        (f"data.{f.name}", getattr(job.data, f.name), getattr(plain, f.name)) for f in fields(plain)
    ]
    for key, value, unsaid in (
        *of_text,
        ("model.context", job.model.context, ModelConfig().context),
    ):
        if value != unsaid:
            raise InputError.at(
                file=job.file,
                key=key,
                value=value,
                problem=f"is of a text, and {job.model.model} brings data of its own",
                remedy="leave it out",
            )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value > 0


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


_ATTRIBUTES: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "samples": (_is_count, "a number above 0"),
    "digest": (_is_text, "a text, a hash of the content"),
    "unit": (_is_text, "a word, as 'sample'"),
    "batch": (callable, "a function"),
    "count": (lambda x: callable(x) or _is_count(x), "a number above 0, or a function"),
}
"""Attribute of `Data` -> whether a value of it is good, and what it should be."""
