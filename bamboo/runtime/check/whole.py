"""The whole model in one process, for the preflight: what each layer does, compared with layers
that are built alone in another process.

Rule: all layers are built in order before any of them runs, as the reference does it. Each runs on
its own, as though a stage began and ended there, so every difference has a layer's name.
"""

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

import torch

from bamboo.config.resolve import batch_shape
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import Dataset
from bamboo.errors import InputError
from bamboo.models import Gradients, Tensors, Workload, as_leaves, run_layers
from bamboo.models.build import USER_ERRORS
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.runtime.check.alone import Alone, Found, Look
from bamboo.runtime.check.loss_contract import check_finite, check_largest, loss_gradient
from bamboo.runtime.check.one_layer import (
    DRAW_IN_PLACE,
    KEEP_NOTHING,
    OneLayer,
    Pass,
    Place,
    checksum,
    checksums,
    later,
    remedy_of,
)
from bamboo.runtime.check.parameters import Parameters, with_ties
from bamboo.runtime.check.stdout_answer import tell_progress
from bamboo.runtime.check.timing import Times, Timing
from bamboo.runtime.device.staging import data_at, place_of
from bamboo.runtime.device.time_limit import TookTooLong
from bamboo.runtime.step.factors import Recorder
from bamboo.user_code.traces import line_of

LOOKS = 4
"""The most layers that are built alone, of those that the same function makes."""
ROUNDING = 1e-4
"""Of the largest value: how far a cut model may be from the whole one."""
LATER_STEP = 1
"""The step of the second microbatch, which is the last microbatch of that step."""


class Whole:
    """All layers in one process, built in order before any of them runs, as the reference does."""

    def __init__(
        self, job: JobConfig, workload: Workload, data: Dataset, *, looked_at: int = 1
    ) -> None:
        """`looked_at`: how many microbatches will be run and timed."""
        self._job = job
        self._workload = workload
        place = place_of(job.cluster)
        self._described = data.described
        self.data = data_at(data, place)
        """The job's data where the layers run."""
        self._done = 0
        # Of each layer: each microbatch is run and timed, one more is run, and it is compared.
        self._steps = (2 * looked_at + 2) * len(workload.layers)
        self._types: dict[int, list[torch.dtype]] = {}
        self.layers: list[OneLayer] = []
        for index in range(len(workload.layers)):
            one = OneLayer(
                workload,
                Place(file=job.file, index=index),
                seed=job.train.seed,
                precision=job.train.precision,
            )
            one.check()
            self.layers.append(one)
        self._check_apart()
        self._initial = [one.initial() for one in self.layers]
        self._recorders = [Recorder([(one.place.index, one.layer)]) for one in self.layers]
        self._parameters = [
            Parameters(one.place.index, one.layer, recorder)
            for one, recorder in zip(self.layers, self._recorders, strict=True)
        ]
        for one in self.layers:
            try:
                one.layer.to(place)
            except torch.OutOfMemoryError as error:
                words = f"does not fit beside the layers before it: {line_of(error)}"
                raise one.place.refuse(words, remedy_of(error)) from error

    def _check_apart(self) -> None:
        """Each stage has its own parameters, so layers can share a parameter only by a tie."""
        places: dict[int, tuple[int, str]] = {}
        for index, one in enumerate(self.layers):
            for name, parameter in one.layer.named_parameters():
                where = parameter.untyped_storage().data_ptr()
                owner, owner_name = places.setdefault(where, (index, name))
                if where and owner != index:
                    raise one.place.refuse(
                        f"shares its parameter {name!r} with layer {owner} "
                        f"({self.layers[owner].place.name}), where it is {owner_name!r}",
                        "make one in each layer, and name both in Workload.tied where they are to "
                        "stay equal",
                    )

    def run(self, step: int, microbatch: int) -> list[Pass]:
        """Forward and backward of one microbatch, layer by layer; the results must be finite. The
        first one is compared with the whole model that the layers were cut out of."""
        if not self._types:
            inputs = self.data.microbatch(0, microbatch)[0]
            _check_uncut(self._job, self._workload, self.layers, inputs, microbatch)
        passes, targets = self._forward(step, microbatch, checked=True)
        loss, gradients = self._loss(passes[-1].output, targets, step)
        check_finite(self._job.file, loss, gradients)
        for one, run in zip(reversed(self.layers), reversed(passes), strict=True):
            recorder, looks = self._recorders[one.place.index], self._parameters[one.place.index]
            with recorder.backward(run.record):
                gradients = one.backward(run, gradients)
            looks.took(run.record)
            run.gradients = {}
            run.record = None
        return passes

    def _loss(self, output: Tensors, targets: Tensors, step: int) -> tuple[float, Gradients]:
        count = self.data.count(step)
        return loss_gradient(self._job.file, self._workload, output, targets, count)

    def _forward(
        self, step: int, microbatch: int, *, checked: bool = False
    ) -> tuple[list[Pass], Tensors]:
        x, targets = self.data.microbatch(step, microbatch)
        passes: list[Pass] = []
        for one, recorder, looks in zip(
            self.layers, self._recorders, self._parameters, strict=True
        ):
            if checked:
                looks.begin()
            with recorder.forward() as record:
                passes.append(one.forward(x, step, microbatch, checked=checked))
            passes[-1].record = record
            x = as_leaves(passes[-1].output)
            self._check_types(one.place, x, microbatch)
            self._tell()
        return passes, targets

    def _check_types(self, place: Place, output: Tensors, microbatch: int) -> None:
        """What crosses a boundary is of the same number and types in each microbatch."""
        types = [t.dtype for t in output]
        known = self._types.setdefault(place.index, types)
        if types != known:
            before, now = (", ".join(map(str, x)) for x in (known, types))
            raise place.refuse(
                f"returns ({before}) for one microbatch and ({now}) for microbatch {microbatch}",
                "return as many tensors of the same types for each",
            )

    # ------------------------------------------------------------------ against layers built alone

    def compare(self, alone: Alone, first: Sequence[Pass], evaluation: Mapping[str, str]) -> None:
        """Run a microbatch of a later step, with other parameters, and compare each layer with one
        that begins there. Then do the same with its input of the `first` passes: a layer that has
        kept what it made of that input still gives what the old parameters made. `evaluation`: see
        `own_facts`."""
        for one in self.layers:
            for parameter in one.layer.parameters():
                if parameter.requires_grad:  # in place, as a step changes it
                    parameter.data.copy_(later(parameter))
        microbatch = batch_shape(self._job).total - 1
        passes, targets = self._forward(LATER_STEP, microbatch)
        loss, gradients = self._loss(passes[-1].output, targets, LATER_STEP)
        chosen = self._chosen()
        waiting: deque[tuple[Look, Found]] = deque()
        for one, run in zip(reversed(self.layers), reversed(passes), strict=True):
            index, is_last = one.place.index, one is self.layers[-1]
            look = Look(
                index=index,
                step=LATER_STEP,
                microbatch=microbatch,
                input=run.input,
                given=targets if is_last else gradients,
                first=first[index].input,
                is_last=is_last,
                count=self.data.count(LATER_STEP),
                data=self._described,
                evaluation=evaluation if is_last else {},
            )
            gradients = one.backward(run, gradients)
            self._parameters[index].saw()
            if index not in chosen:
                self._tell()
                continue
            here = Found(
                initial=self._initial[index],
                first_output=checksum(*one.forward(look.first, 0, 0).output),
                output=checksum(*run.output),
                loss=loss.hex() if is_last else "",
                gradients=checksums(run.gradients.items()),
            )
            run.gradients = {}
            waiting.append((look, here))
            self._pump(alone, waiting, wait=False)
        self._pump(alone, waiting, wait=True)

    def _chosen(self) -> frozenset[int]:
        """The layers that are built alone: all of them, except where a function makes many, of
        which the first, the last and some between are built."""
        alike: dict[int, list[int]] = defaultdict(list)
        for index, factory in enumerate(self._workload.layers):
            alike[getattr(factory, "alike", id(factory))].append(index)
        out: set[int] = set()
        for indices in alike.values():
            last, count = len(indices) - 1, min(LOOKS, len(indices))
            out |= {indices[round(i * last / max(count - 1, 1))] for i in range(count)}
        return frozenset(out)

    def _pump(self, alone: Alone, waiting: "deque[tuple[Look, Found]]", *, wait: bool) -> None:
        """Request the check of the next layer whenever the one before is answered. `waiting` begins
        with the layer that is being checked, if any is."""
        while waiting:
            if alone.busy:
                if not wait and not alone.has_answered:
                    return
                look, here = waiting.popleft()
                place = self.layers[look.index].place
                try:
                    found = alone.answer()
                except TookTooLong as error:
                    raise place.refuse(
                        f"does not end when it is built alone in another process: {error}",
                        "wait for nothing in it, or take a smaller model or train.microbatch",
                    ) from error
                self._compare(place, here, found)
                self._tell()
            if waiting:
                alone.ask(waiting[0][0])

    def _compare(self, place: Place, here: Found, there: Found) -> None:
        elsewhere = "when it is built alone in another process, as a node that joins does it"
        if sorted(here.initial) == sorted(there.initial) and [*here.initial] != [*there.initial]:
            raise place.refuse(
                f"has its parameters and buffers in another order {elsewhere}",
                "make them in an order that is written down, as a set's is not",
            )
        for name in {**here.initial, **there.initial}:
            if here.initial.get(name) != there.initial.get(name):
                raise place.refuse(
                    f"has other initial values of {name!r} {elsewhere}",
                    DRAW_IN_PLACE,
                )
        if (here.output, here.first_output) != (there.output, there.first_output):
            raise place.refuse(f"gives another output {elsewhere}", KEEP_NOTHING)
        if here.loss != there.loss:
            raise InputError(
                f"{self._job.file}: the loss gives another value {elsewhere}; compute it from the "
                "output and the targets alone"
            )
        for name in {**here.gradients, **there.gradients}:
            if here.gradients.get(name) != there.gradients.get(name):
                raise place.refuse(f"gives another gradient of {name!r} {elsewhere}", KEEP_NOTHING)

    def parameters(self) -> list[tuple[ParameterFacts, ...]]:
        """What was found of the parameters of each layer."""
        microbatches = batch_shape(self._job).total
        found = [looks.facts(microbatches) for looks in self._parameters]
        return with_ties(found, self._workload.tied)

    def time(self, passes: Sequence[Pass]) -> list[Times]:
        """The times of every layer, with its input of these passes."""
        return Timing(self._job, self._workload, self.layers, self._tell).of(passes)

    # ------------------------------------------------------------------ the data

    def check_largest_token(self, output: Tensors, largest: int) -> None:
        """Model and loss must take every token of the data, not only those of two microbatches.
        This comes last, because no other process makes such a call."""
        (tokens,), targets = self.data.microbatch(0, 0)
        first = self.layers[0]
        try:
            with torch.no_grad():
                first.layer(torch.full_like(tokens, largest))
        except USER_ERRORS as error:
            raise first.place.refuse(
                f"cannot take {largest}, the largest token of the data: {line_of(error)}",
                "make it for every token of model.vocabulary",
            ) from error
        check_largest(self._job.file, self._workload, output, targets, largest)

    def _tell(self) -> None:
        self._done += 1
        tell_progress(self._done, self._steps)


def _check_uncut(
    job: JobConfig, workload: Workload, ones: Sequence[OneLayer], inputs: Tensors, microbatch: int
) -> None:
    """Layers that were cut out of a whole model compute what that does, up to the rounding of other
    kernels: here of one sample, without dropout. Raises InputError where they do not."""
    uncut = workload.uncut
    if uncut is None:
        return
    inputs = tuple(t[:1] for t in inputs)
    layers = [one.layer.eval() for one in ones]
    with torch.no_grad():
        there = uncut(layers, inputs)
        numbered = [(one.place.index, one.layer) for one in ones]
        (here,) = run_layers(numbered, inputs, seed=job.train.seed, step=0, microbatch=microbatch)
    for layer in layers:
        layer.train()
    scale = float(there.abs().max())
    off = float((here - there).abs().max()) if here.shape == there.shape else math.inf
    if not off <= ROUNDING * scale:
        raise InputError(
            f"{job.file}: {job.model.model} gives {off:.3g} away from its whole model (largest "
            f"value {scale:.3g}) when it is cut into layers; take another family"
        )
