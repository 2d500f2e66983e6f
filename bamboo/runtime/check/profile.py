"""`python -m bamboo.runtime.check.profile`: measures every layer of a job on this machine.

Standard input: one JSON object with `job`, a resolved job as JSON text, and the fields of `Asked`.
Standard output: one JSON object with `profile`, as JSON text; or {"error": line} and exit code 2
when the job cannot be measured here. Progress goes to standard error.

Rule: it measures with a worker's threads and torch's strict mode, repeats as often as the time
allows, and takes medians. One layer is in memory at a time, so that a model larger than the machine
can be measured. A layer that the same function makes as an earlier one, for an input of the same
shape, is not run again.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bamboo.config.load import job_from_json
from bamboo.config.resolve import batch_shape, semantics, shape_facts
from bamboo.config.tree import ClusterConfig, JobConfig
from bamboo.data.dataset import load_data
from bamboo.errors import InputError, NoDevice
from bamboo.models import BadBoundary, Tensors, build_model, build_shell
from bamboo.models.build import USER_ERRORS
from bamboo.planner.layers.facts import FLOAT_BYTES, LayerFacts
from bamboo.planner.profiles.profiled import LayerProfile, Profile
from bamboo.quantities import size
from bamboo.runtime.check.bench import LEAST_REPEATS, MOST_REPEATS, Bench
from bamboo.runtime.check.one_layer import SMALLER, is_full, kind_of
from bamboo.runtime.check.parameters import with_ties
from bamboo.runtime.check.stdout_answer import one_answer, tell_progress
from bamboo.runtime.device.host_memory import free_bytes
from bamboo.runtime.device.staging import data_at, place_of
from bamboo.runtime.device.work import device_kind
from bamboo.runtime.optim.optimizer import optimizer_of
from bamboo.runtime.optim.state import layout_of
from bamboo.runtime.step.numerics import prepare
from bamboo.runtime.step.stage import Stage
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Placement, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be measured, and what only the asker knows."""

    device: str
    """`cpu` or `cuda`."""
    limit_s: float
    machine: str
    seen: str
    """The day, as YYYY-MM-DD."""


class Profiler:
    """Measures a resolved job, layer by layer. Raises InputError for a job that cannot be read."""

    def __init__(
        self, job: JobConfig, asked: Asked, *, tell: Callable[[int, int], None] = tell_progress
    ) -> None:
        job = replace(job, cluster=replace(job.cluster, device=asked.device))
        self._job = job
        self._asked = asked
        self._tell = tell
        self._device = _device(asked.device)
        self._kind = "GPU" if self._device.type == "cuda" else "CPU"
        prepare(job.cluster)
        self._workload = build_model(job)
        data = load_data(job, own=self._workload.data)
        self._unit = "" if data.text and data.text.alike else data.unit
        self._data = data_at(data, self._device)
        count = len(self._workload.layers)
        self._strategy = Strategy(
            semantics=semantics(job, data_digest=data.digest, code={"profiled": job.model.model}),
            placement=Placement(
                cut=tuple(range(count + 1)),
                grid=Grid(pipelines=1, stages=count),
                redundancy="off",
            ),
        )
        self._optimizer = optimizer_of(job.train, self._workload)
        self._shaped = shape_facts(job)
        self._deadline_s = time.perf_counter() + asked.limit_s

    def profile(self) -> Profile:
        """Measure all layers. Raises InputError for a layer that fails, does not fit into memory,
        or is not measured within the limit."""
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        factories = list(self._workload.layers)
        layers: list[LayerProfile] = []
        known: dict[tuple[object, ...], tuple[int, Tensors]] = {}
        x = self._data.microbatch(0, 0)[0]
        for index, factory in enumerate(factories):
            ends = (index == 0, index == len(factories) - 1)
            signature = (id(factory), self._frozen_in(index), *kind_of(x), *ends)
            if signature in known:
                like, x = known[signature]
                layer = _as_layer(layers[like], index)
            else:
                kinds = [id(factories[other]) for other in range(len(factories))]
                left = len({*kinds[index:]} - {*kinds[:index]}) or 1
                now_s = time.perf_counter()
                until_s = now_s + (self._deadline_s - now_s) / left
                layer, x = self._layer(index, x, until_s=until_s)
                known[signature] = index, x
            layers.append(layer)
            self._told(index + 1, 0)
        synced = with_ties([layer.synced for layer in layers], self._workload.tied)
        return Profile(
            job=Path(self._job.file).name,
            source=f"measured on this machine's {self._kind}",
            modelled=False,
            device=device_kind(self._device),
            machine=self._asked.machine,
            torch=str(torch.__version__),
            threads=self._job.cluster.threads,
            microbatch=self._job.train.microbatch,
            context=0 if self._unit else self._job.model.context,
            load=load,
            seen=self._asked.seen,
            limit_s=self._asked.limit_s,
            layers=tuple(
                replace(layer, synced=own) for layer, own in zip(layers, synced, strict=True)
            ),
            unit=self._unit,
        )

    def _layer(self, index: int, x: Tensors, *, until_s: float) -> tuple[LayerProfile, Tensors]:
        """Measure one layer; returns its profile and its output."""
        name = ""
        try:
            if self._shaped:
                self._check_room(index, self._shaped[index].name, _least_bytes(self._shaped[index]))
            stage = self._stage(index)
            name = type(stage.layers[0][1]).__name__
            if not self._shaped:
                # It is known only now; its activations are known only once it has run.
                kept = layout_of(stage.layers, self._optimizer.state).kept_bytes
                self._check_room(index, name, stage.parameter_bytes() + kept)
            bench = Bench(
                stage,
                x,
                optimizer=self._optimizer,
                clips=self._job.train.clip_norm > 0,
                accumulates=batch_shape(self._job).microbatches > 1,
            )
            self._measure(bench, index, name, until_s=until_s)
            found = bench.found(index, batch_shape(self._job).total), bench.output
        except InputError:
            raise  # it names the place better
        except USER_ERRORS as error:
            raise self._refused(index, name, error) from error
        del stage, bench
        gc.collect()  # the next layer may need the memory
        return found

    def _frozen_in(self, index: int) -> tuple[str, ...]:
        """What a group of the job freezes in a layer, and not in all that its function makes."""
        if not self._workload.frozen:
            return ()
        layer = build_shell(self._workload, index, self._job.train.seed)
        return tuple(name for name, p in layer.named_parameters() if not p.requires_grad)

    def _stage(self, index: int) -> Stage:
        return Stage(self._workload, self._data, self._strategy, stage=index, place=self._device)

    def _measure(self, bench: Bench, index: int, name: str, *, until_s: float) -> None:
        """Repeat at least LEAST_REPEATS times, and until this layer's share of the time is used."""
        begin_s = time.perf_counter()
        bench.warm_up()
        warm_s = time.perf_counter() - begin_s
        while bench.repeats < MOST_REPEATS:
            now_s = time.perf_counter()
            if bench.repeats >= LEAST_REPEATS and now_s >= until_s:
                return
            if now_s >= self._deadline_s:
                kinds = len(set(self._workload.layers))
                enough_s = self._asked.limit_s + kinds * (LEAST_REPEATS + 2) * warm_s / 2
                raise InputError(
                    f"{self._job.file}: layer {index} ({name}) of {len(self._workload.layers)} was "
                    f"timed {bench.repeats} times when {self._asked.limit_s:g} s were over, and "
                    f"{LEAST_REPEATS} are wanted; give --seconds, perhaps "
                    f"{enough_s:.0f}, or a smaller train.microbatch"
                )
            bench.time_once()
            self._told(index, bench.repeats)

    def _told(self, layers: int, repeats: int) -> None:
        every = MOST_REPEATS
        self._tell(layers * every + repeats, len(self._workload.layers) * every)

    def _check_room(self, index: int, name: str, least_bytes: int) -> None:
        room_bytes = _room_bytes(self._device)
        if least_bytes > room_bytes:
            raise InputError(
                f"{self._job.file}: layer {index} ({name}) needs {size(least_bytes)} to be "
                f"trained alone, and {size(room_bytes)} are free on this machine's "
                f"{self._kind}; {SMALLER}"
            )

    def _refused(self, index: int, name: str, error: BaseException) -> InputError:
        where = f"{self._job.file}: layer {index}{f' ({name})' if name else ''}"
        said = " ".join(str(error).split())
        if is_full(error):
            return InputError(
                f"{where} does not fit into the memory of this machine's {self._kind}; {SMALLER}"
            )
        if isinstance(error, BadBoundary):
            return InputError(f"{where} {error.problem}; {error.remedy}")
        if self._shaped:
            raise error  # our own layer, so not the user's fault
        return InputError(f"{where} fails: {type(error).__name__}: {said}; correct it")


def _as_layer(layer: LayerProfile, index: int) -> LayerProfile:
    """The profile of a layer, for another one that is like it."""
    named = ((one, one.name.partition(".")[2]) for one in layer.synced)
    synced = (replace(one, name=f"{index}.{local}", layer=index) for one, local in named)
    return replace(layer, synced=tuple(synced))


def _device(kind: str) -> torch.device:
    try:
        return place_of(ClusterConfig(device=kind))
    except NoDevice as error:
        remedy = "leave --device out to measure the CPU, or model a GPU with --gpu"
        raise InputError(f"{error.problem}; {remedy}") from error


def _least_bytes(facts: LayerFacts) -> int:
    trained = facts.state_bytes + FLOAT_BYTES * facts.parameters
    return trained + facts.activation_bytes + facts.output_bytes


def _room_bytes(device: torch.device) -> int:
    """Free bytes on the device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_bytes()


def main(_: list[str]) -> int:
    """The command; see the top of the file."""
    with one_answer() as answer:
        try:
            request = json.loads(sys.stdin.read())
            job = job_from_json(request.pop("job"))
            answer({"profile": Profiler(job, Asked(**request)).profile().to_json()})
        except InputError as error:
            answer({"error": str(error)})
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
