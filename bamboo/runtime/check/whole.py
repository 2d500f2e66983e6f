"""The whole model in one process, for the preflight: what each layer does, compared with layers
that are built alone in another process, and how long each takes.

Rule: all layers are built in order before any of them runs, as the reference does it. Each runs on
its own, as though a stage began and ended there, so every difference has a layer's name.
"""

import statistics
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bamboo.config.resolve import batch_shape
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import Dataset
from bamboo.errors import InputError
from bamboo.models import Gradients, Tensors, Workload, as_leaves
from bamboo.models.build import USER_ERRORS
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
    idle_s,
    kind_of,
    later,
    remedy_of,
    same,
)
from bamboo.runtime.check.stdout_answer import tell_progress
from bamboo.runtime.device.staging import data_at, place_of
from bamboo.runtime.device.time_limit import TookTooLong
from bamboo.runtime.step.optimizer import CLIP_FACTOR, AdamW, end_step
from bamboo.user_code.traces import line_of

REPEATS = 8
"""The least number of repeats in which layers that are alike are timed."""
MOST_REPEATS, REPEATS_S = 100, 0.05
"""The most repeats, and the time for them: a layer that counts its calls may show only then."""
LOOKS = 4
"""The most layers that are built alone, of those that the same function makes."""
UPDATES = 3
"""How often the end of a step is timed, for one of the layers that are alike."""
LATER_STEP = 1
"""The step of the second microbatch, which is the last microbatch of that step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The times of one layer, in ms."""

    forward_ms: float
    backward_ms: float
    optimizer_ms: float


class Whole:
    """All layers in one process, built in order before any of them runs, as the reference does."""

    def __init__(self, job: JobConfig, workload: Workload, data: Dataset) -> None:
        self._job = job
        self._workload = workload
        place = place_of(job.cluster)
        self.data = data_at(data, place)
        """The job's data where the layers run."""
        self._done = 0
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
        """Forward and backward of one microbatch, layer by layer; the results must be finite."""
        passes, targets = self._forward(step, microbatch, checked=True)
        loss, gradients = self._loss(passes[-1].output, targets, step)
        check_finite(self._job.file, loss, gradients)
        for one, run in zip(reversed(self.layers), reversed(passes), strict=True):
            gradients = one.backward(run, gradients)
            run.gradients = {}
        return passes

    def _loss(self, output: Tensors, targets: Tensors, step: int) -> tuple[float, Gradients]:
        count = self.data.count(step)
        return loss_gradient(self._job.file, self._workload, output, targets, count)

    def _forward(
        self, step: int, microbatch: int, *, checked: bool = False
    ) -> tuple[list[Pass], Tensors]:
        x, targets = self.data.microbatch(step, microbatch)
        passes: list[Pass] = []
        for one in self.layers:
            passes.append(one.forward(x, step, microbatch, checked=checked))
            x = as_leaves(passes[-1].output)
            self._tell()
        return passes, targets

    # ------------------------------------------------------------------ against layers built alone

    def compare(self, alone: Alone, first: Sequence[Pass]) -> None:
        """Run a microbatch of a later step, with other parameters, and compare each layer with one
        that begins there. Then do the same with its input of the `first` passes: a layer that has
        kept what it made of that input still gives what the old parameters made."""
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
            )
            gradients = one.backward(run, gradients)
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
            alike[id(factory)].append(index)
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

    # ------------------------------------------------------------------ times

    def time(self, first: Sequence[Pass]) -> list[Times]:
        """The times of every layer, with its input of the `first` passes."""
        alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for index, one in enumerate(first):
            kind = (id(self._workload.layers[index]), *kind_of(one.input))
            alike[kind].append(index)
        out: dict[int, Times] = {}
        for indices in alike.values():
            times = self._time_one(indices[len(indices) // 2], first)
            for index in indices:
                out[index] = times
                self._tell()
        return [out[index] for index in range(len(self.layers))]

    def _time_one(self, index: int, first: Sequence[Pass]) -> Times:
        one, begun = self.layers[index], first[index]
        runs: list[Pass] = []
        end_s = time.thread_time() + REPEATS_S
        while len(runs) < REPEATS or (len(runs) < MOST_REPEATS and time.thread_time() < end_s):
            run = one.forward(begun.input, 0, 0)
            one.backward(run, begun.given)
            self._check_repeats(one, run, runs)
            if runs:
                run.gradients = {}
                run.output = run.input = run.given = ()
            runs.append(run)
        return Times(
            forward_ms=statistics.median(run.forward_ms for run in runs),
            backward_ms=statistics.median(run.backward_ms for run in runs),
            optimizer_ms=self._update_ms(one, runs[0]),
        )

    def _check_repeats(self, one: OneLayer, run: Pass, before: Sequence[Pass]) -> None:
        """A layer that keeps something between calls may show it only after several calls."""
        if not before:
            return
        found, then = ((*one.output, *one.gradients.values()) for one in (run, before[0]))
        if not same(found, then):
            raise one.place.refuse(
                f"gives another output or gradient when it runs the same microbatch for the "
                f"{len(before) + 1}th time",
                "keep nothing from call to call",
            )

    def _update_ms(self, one: OneLayer, run: Pass) -> float:
        """Time the end of a step, on copies, because the layer must stay as it is."""
        params = {n: p.detach().clone() for n, p in one.layer.named_parameters() if p.requires_grad}
        grads = [run.gradients[name] for name in params]
        optimizer = AdamW(self._job.train)
        kept = optimizer.new_state(params)
        clip_factor = CLIP_FACTOR if self._job.train.clip_norm > 0 else 1.0
        seconds = []
        for _ in range(UPDATES):
            begin_s = idle_s(run.input[0])
            end_step(optimizer, [*params.values()], grads, kept, clip_factor=clip_factor)
            seconds.append(idle_s(run.input[0]) - begin_s)
        return 1e3 * statistics.median(seconds)

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
        """Report progress: each layer runs twice, is checked and is timed."""
        self._done += 1
        tell_progress(self._done, 4 * len(self.layers))
