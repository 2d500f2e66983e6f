"""The process that builds layers alone, as a node that joins does, so that the preflight can
compare them with the whole model.

    preflight                          server                      checking process, a fork
    fork, before all else   ------->   waits
    {"job": ..., "folder"}  ------->   forks            ------->   reads the run's code
    {"layer": 2, ...}, x, ...  --------------------------------->  forks, and the fork builds layer
                               <---------------------------------  2, runs it and answers

Rule: a layer that is built here has seen nothing of the whole model: no other layer, no earlier
step, other addresses, none of the shell's own variables. It is given its parameters as a node that
takes over gets them, and the first microbatch that it ever runs is one of a later step. A fork of
this process shares the modules that are imported, so it starts in milliseconds. The server has one
thread and has not read the user's file; the fork server of workers is the same in both.
"""

import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from bamboo.config.load import job_from_json, job_to_json
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import load_data
from bamboo.data.evaluation import load_eval
from bamboo.errors import BambooError, InputError
from bamboo.models import Gradients, Tensors, Workload, build_model, build_shell, put_parameters
from bamboo.models.build import USER_ERRORS
from bamboo.ports import Buffer
from bamboo.runtime.check.eval_contract import check_facts, own_facts
from bamboo.runtime.check.loss_contract import loss_gradient
from bamboo.runtime.check.one_layer import (
    DRAW_IN_PLACE,
    OneLayer,
    Place,
    checksum,
    checksums,
    later,
    same,
)
from bamboo.runtime.check.other_times import move_clock
from bamboo.runtime.device.staging import data_at, place_of
from bamboo.runtime.device.time_limit import arm
from bamboo.runtime.step.numerics import prepare
from bamboo.runtime.wire.frames import to_buffer, to_tensor
from bamboo.user_code.traces import placed_line_of

_PR_SET_PDEATHSIG = 1
_KEPT_VARIABLES = (
    *("PATH", "HOME", "USER", "LANG", "LC_", "TZ", "TMPDIR", "LD_", "DYLD_", "XDG_", "SSL_"),
    *("PYTHON", "VIRTUAL_ENV", "CONDA", "HF_", "TORCH", "CUDA", "NVIDIA", "OMP_", "MKL_", "KMP_"),
    *("AWS_", "BAMBOO_", "HTTP_", "HTTPS_", "NO_PROXY", "http_", "https_", "no_proxy"),
)
"""Prefixes of the variables that say where things lie, on a node as here."""
EARLY_S = 10.0
"""Before the asker's limit, so that the asker learns which layer does not end."""
LATER_S = 97_531.7
ELSEWHERE = "in another process, as on a node that joins"
FORK_LATER_S = 3_613.3
"""A node joins a day later, and it runs long after it has read the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A request to check one layer: its microbatch; the gradients of its output, or for the last
    layer the targets of the loss; and its input of the first microbatch of all."""

    index: int
    step: int
    microbatch: int
    input: Tensors
    given: Gradients
    first: Tensors
    is_last: bool
    count: int
    """What the data counts for the whole step."""
    data: str
    """Number and digest of the samples, in words."""
    evaluation: Mapping[str, str]
    """What evaluations are of: see `own_facts`; {} for all layers but the last."""


_NUMBERS = ("index", "step", "microbatch", "is_last", "count", "data", "evaluation")
_GROUPS = ("input", "given", "first")
"""The parts of a `Look` that are tensors, in the order in which their bytes are sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a check: checksums of what the layer was and computed, by name."""

    initial: Mapping[str, int]
    first_output: int
    """The output of the first microbatch with the parameters of the later one."""
    output: int
    loss: str
    """In hexadecimal; "" for all layers but the last."""
    gradients: Mapping[str, int]


class Alone:
    """The server as its asker sees it. It checks one layer at a time."""

    def __init__(self, connection: Connection, pid: int = 0) -> None:
        self._connection = connection
        self._pid = pid
        self._asked = 0
        self._begun = False

    @classmethod
    def fork(cls) -> "Alone":
        """Start a server. The caller has one thread and has not read any of the user's code yet."""
        ours, theirs = Pipe()
        pid = os.fork()
        if not pid:
            ours.close()
            _die_with_parent()
            serve(theirs)
        theirs.close()
        return cls(ours, pid)

    def begin(self, job: JobConfig, *, folder: Path) -> None:
        """Check layers of this job from now on; `folder`: an empty folder to work in."""
        self._send({"job": job_to_json(job), "folder": str(folder)})
        self._begun = True

    def ask(self, look: Look) -> None:
        """Request the check of a layer; call `answer` once for each request."""
        about = {name: getattr(look, name) for name in _NUMBERS}
        groups = {name: getattr(look, name) for name in _GROUPS}
        shapes, buffers = {}, []
        for name, tensors in groups.items():
            there = [None if t is None else to_buffer(t) for t in tensors]
            shapes[name] = [
                None if t is None or b is None else [b.dtype, b.shape, t.requires_grad]
                for t, b in zip(tensors, there, strict=True)
            ]
            buffers += [buffer for buffer in there if buffer is not None]
        self._send(about | shapes)
        with self._connected():
            for buffer in buffers:
                self._connection.send_bytes(bytes(buffer.data))
        self._asked += 1

    @property
    def busy(self) -> bool:
        """Whether an answer is still to come."""
        return self._asked > 0

    @property
    def has_answered(self) -> bool:
        """Whether `answer` would return at once."""
        return self._connection.poll()

    def answer(self) -> Found:
        """The result of the check. Raises InputError with what is wrong with the layer."""
        with self._connected():
            body = json.loads(self._connection.recv_bytes())
        self._asked -= 1
        if "error" in body:
            raise InputError(str(body["error"]))
        return Found(**body)

    def end(self) -> None:
        """End the checks of this job; the server waits for another one."""
        while self._asked:
            with contextlib.suppress(InputError):
                self.answer()
        if self._begun:
            self._send({})
        self._begun = False

    def close(self) -> None:
        """End the server."""
        self._connection.close()
        if self._pid:
            os.waitpid(self._pid, 0)

    def _send(self, body: Mapping[str, object]) -> None:
        with self._connected():
            self._connection.send_bytes(json.dumps(body).encode())

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            raise BambooError(
                "the process that builds layers alone ended without an answer; perhaps memory ran "
                "out: take a smaller model, or a machine with more"
            ) from error


def serve(connection: Connection) -> NoReturn:
    """The server: one checking process after the other, one for each job, until the asker is
    gone."""
    os.dup2(2, 1)  # standard output is kept for the asker's answer
    while True:
        try:
            asked = json.loads(connection.recv_bytes())
        except EOFError:
            os._exit(0)
        pid = os.fork()
        if not pid:
            _in_fork(partial(_look_at, str(asked["job"]), str(asked["folder"]), connection))
        if os.waitpid(pid, 0)[1]:
            os._exit(1)  # the asker sees the end of the connection


def _look_at(text: str, folder: str, connection: Connection) -> None:
    """The checking process: reads the user's file and answers until no request is left."""
    job = job_from_json(text)
    job = replace(job, code=os.path.abspath(job.code) if job.code else "")
    _differ(folder)
    arm(early_s=EARLY_S)
    prepare(job.cluster)
    # A user's file often asks whether there is a GPU. Asked by NVML, forks can still use it.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    wrong, workload = "", None
    try:
        workload = build_model(job)
    except InputError as error:
        wrong = str(error)
    while True:
        look = _read_look(connection)
        if look is None:
            return
        if workload is None:
            _answer(connection, {"error": wrong})
        elif _threads() > 1:
            # Threads, which the user's file or a large sum may have started, do not survive a fork.
            # Then all layers are checked in this process, in the order of the requests.
            _answer(connection, _found(job, workload, look))
        else:
            _look_in_fork(job, workload, look, connection)


def _look_in_fork(job: JobConfig, workload: Workload, look: Look, connection: Connection) -> None:
    pid = os.fork()
    if not pid:
        move_clock(FORK_LATER_S)
        arm(early_s=EARLY_S)
        _in_fork(lambda: _answer(connection, _found(job, workload, look)))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        place = Place(file=job.file, index=look.index, alone=True)
        error = place.refuse(
            f"ends its process, with status {status}", "let what fails raise an exception"
        )
        _answer(connection, {"error": str(error)})


def _found(job: JobConfig, workload: Workload, look: Look) -> dict[str, Any]:
    try:
        return asdict(look_alone(job, workload, look))
    except InputError as error:
        return {"error": str(error)}


def look_alone(job: JobConfig, workload: Workload, look: Look) -> Found:
    """Build a layer and run it on one microbatch as a node that takes over does: it allocates
    memory for the parameters, is sent those of a later step, and goes on from there. The layer is
    built twice and both are run; otherwise a layer that counts its instances could agree with the
    whole by chance."""
    place, seed = Place(file=job.file, index=look.index, alone=True), job.train.seed
    precision, device = job.train.precision, place_of(job.cluster)
    look = replace(
        look,
        input=tuple(t.to(device) for t in look.input),
        given=tuple(None if t is None else t.to(device) for t in look.given),
        first=tuple(t.to(device) for t in look.first),
    )
    of = "the data"
    try:
        if workload.data is not None:
            _check_data(job, workload, look, device)
        if look.evaluation:
            of = "the data of [eval]"
            evaluated = load_eval(job, workload.data, workload.eval_data)
            facts = own_facts(job, workload, evaluated)
            check_facts(job, look.evaluation, facts, ELSEWHERE, "make both of the contents alone")
    except InputError:
        raise
    except USER_ERRORS as error:
        raise InputError(
            f"{job.file}: {of} fail {ELSEWHERE}: {placed_line_of(error)}; make and open all that "
            "they need when they are made"
        ) from error
    first = OneLayer(workload, place, seed=seed, precision=precision)
    first.check()
    initial = first.initial()
    first.layer.to(device)
    values = {
        name: later(value) if value.requires_grad else value.detach().clone()
        for name, value in first.layer.named_parameters()
    }
    begun = [parameter.data for parameter in first.layer.parameters()]  # else freed and reused
    put_parameters(first.layer, values)
    earlier = first.forward(look.first, 0, 0, checked=True)
    taken = OneLayer(workload, place, seed=seed, build=build_shell, precision=precision)
    _check_apart(taken, [*begun, *values.values()])
    again = initial if workload.plain else taken.initial()
    for name in {**initial, **again}:
        if initial.get(name) != again.get(name):
            raise taken.place.refuse(
                f"has other initial values of {name!r} each time that it is built", DRAW_IN_PLACE
            )
    put_parameters(taken.layer, values)
    taken.layer.to(device)
    run = taken.forward(look.input, look.step, look.microbatch)
    taken.forward(look.first, 0, 0)  # as in a run, where others begin before this one runs back
    loss, gradients = "", look.given
    if look.is_last:
        targets = tuple(t for t in look.given if t is not None)
        value, gradients = loss_gradient(job.file, workload, run.output, targets, look.count)
        loss = value.hex()
    output = checksum(*run.output)
    taken.backward(run, gradients)
    return Found(
        initial=initial,
        first_output=checksum(*earlier.output),
        output=output,
        loss=loss,
        gradients=checksums(run.gradients.items()),
    )


def _check_data(job: JobConfig, workload: Workload, look: Look, device: torch.device) -> None:
    """Own data must be the same here: of their contents a node compares the digest alone."""
    found_here = load_data(job, own=workload.data)
    if found_here.described != look.data:
        raise InputError(
            f"{job.file}: the data have {found_here.described} in another process, as on a node "
            f"that joins, and {look.data} here; make both of the contents alone"
        )
    data = data_at(found_here, device)
    inputs, targets = data.microbatch(look.step, look.microbatch)
    for name, concerns, found, there in (
        ("inputs", look.index == 0, inputs, look.input),
        ("targets", look.is_last, targets, look.given),
    ):
        wanted = tuple(t for t in there if t is not None)
        if concerns and (len(found) != len(wanted) or not same(found, wanted)):
            raise InputError(
                f"{job.file}: the data give other {name} in another process, as on a node that "
                f"joins, for microbatch {look.microbatch} of step {look.step}; make a sample of "
                "its number and its key alone"
            )
    if look.is_last and (count := data.count(look.step)) != look.count:
        raise InputError(
            f"{job.file}: the data count {count} for step {look.step} in another process, as on a "
            f"node that joins, and {look.count} here; count a sample by its number and its key "
            "alone"
        )


def _check_apart(taken: OneLayer, others: Sequence[Tensor]) -> None:
    """A node may build a layer twice, as owner and as shadow; each must have its own parameters."""
    memory = {tensor.untyped_storage().data_ptr() for tensor in others if tensor.numel()}
    for name, parameter in taken.layer.named_parameters():
        if parameter.untyped_storage().data_ptr() in memory:
            raise taken.place.refuse(
                f"has the same parameter {name!r} each time that it is built: two that are built "
                "would step it twice, and stages would share it without a word",
                "make it within the function that makes the layer; what two layers share is named "
                "in Workload.tied",
            )


def _differ(folder: str) -> None:
    """Make this process as unlike the asking process as another node is, in all that a model must
    not depend on. Files that it writes by a relative path go into `folder`."""
    for name in [n for n in os.environ if not n.startswith(_KEPT_VARIABLES)]:
        del os.environ[name]
    sys.argv = ["another"]
    os.chdir(folder)
    move_clock(LATER_S)
    random.seed()
    np.random.seed()
    torch.seed()
    _KEPT.extend(bytearray(size) for size in range(16, 4096, 48) for _ in range(3))
    for name in (f"bamboo.runtime._another{i}" for i in range(_MODULES)):
        sys.modules[name] = types.ModuleType(name)


_MODULES = 101
"""How many empty modules are loaded here, so that a model which counts modules is found: a node has
loaded others than a launch. It is more than the asking process may have loaded since this process
was forked, or else the numbers could agree."""
_KEPT: list[bytearray] = []
"""Memory that only takes up room, so that what is allocated next has other addresses."""


def _read_look(connection: Connection) -> Look | None:
    """The next request; None: there is none."""
    body = json.loads(connection.recv_bytes())
    if not body:
        return None
    for name in _GROUPS:
        body[name] = tuple(one and _tensor(connection, *one) for one in body[name])
    return Look(**body)


def _tensor(connection: Connection, dtype: str, shape: Sequence[int], trained: bool) -> Tensor:
    data = memoryview(bytearray(connection.recv_bytes()))
    return to_tensor(Buffer(dtype=dtype, shape=tuple(shape), data=data)).requires_grad_(trained)


def _answer(connection: Connection, body: Mapping[str, object]) -> None:
    connection.send_bytes(json.dumps(body).encode())


def _in_fork(work: Callable[[], None]) -> NoReturn:
    """The whole life of a fork: it never returns into its parent's work."""
    status = 1
    try:
        _die_with_parent()
        work()
        status = 0
    except EOFError:  # the asker is gone
        status = 0
    finally:
        if status:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _threads() -> int:
    """How many threads this process has, including those that Python does not know."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def _die_with_parent() -> None:
    """For Linux; elsewhere the end of the connection has the same effect."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
