"""One layer on its own, as though a stage began and ended there: what it is, and what it does with
one microbatch.

Rule: what a layer must keep to is checked here and refused by the layer's name, in the same way in
the process that runs the whole model and in the one that builds a layer alone.
"""

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from bamboo.errors import InputError
from bamboo.models import (
    BadBoundary,
    BatchNorms,
    Gradients,
    Tensors,
    build_layer,
    run_back,
    run_layers,
)
from bamboo.models.build import USER_ERRORS, remedy_of_file
from bamboo.models.running import OUT_OF_PLACE, as_leaves
from bamboo.models.untrained import is_batch_norm
from bamboo.models.workload import Workload
from bamboo.runtime.check.writes import Writes
from bamboo.runtime.device.global_settings import changed, settings
from bamboo.runtime.device.time_limit import TookTooLong
from bamboo.runtime.step.factors import Record
from bamboo.runtime.wire.frames import SENDABLE
from bamboo.user_code.traces import placed_line_of

CPU_IS_FULL = "DefaultCPUAllocator"
"""The part of torch that reports that the memory is used up."""
SMALLER = "take a smaller train.microbatch or layer, or a machine with more memory"
ITS_INPUT = "its input"
"""Takes the place of a parameter's name for the gradient of the layer's input; the number of the
tensor follows where there are several."""
DRAW_IN_PLACE = (
    "draw them in the layer's own function, from the default generators of torch, random and "
    "numpy, and read no clock, address, environment or other layer"
)
TRAINED = (torch.float32,)
"""The types that a trained parameter may have."""
FROZEN = (torch.float32, torch.bfloat16)
WRITES_INPUT = ("writes into its input", OUT_OF_PLACE)
KEEP_NOTHING = (
    "draw from torch's default generator only (as torch.nn.functional.dropout does), and keep "
    "nothing from call to call, from another layer or from the first parameters"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something is wrong: the job's file and the layer."""

    file: str
    index: int
    name: str = ""
    """The layer's class, once there is one."""
    alone: bool = False
    """Whether the layer is built in a process that has no other layer."""

    def refuse(self, problem: str, remedy: str) -> InputError:
        """The error, in one line."""
        name = f" ({self.name})" if self.name else ""
        how = " alone in another process, as a node that joins does it," if self.alone else ""
        return InputError(f"{self.file}: layer {self.index}{name}{how} {problem}; {remedy}")


@dataclass(slots=True, kw_only=True)
class Pass:
    """The results of one layer and one microbatch."""

    input: Tensors
    output: Tensors
    reached: frozenset[int]
    """The ids of the parameters that the output depends on."""
    saved_bytes: int
    forward_ms: float
    backward_ms: float = 0.0
    given: Gradients = ()
    """The gradients of the output."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """By parameter name; the input's under `ITS_INPUT`."""
    held: "Held | None" = None
    """What must not change between a checked forward and its backward."""
    record: Record | None = None
    """Of the factors of its weights' gradients."""


class OneLayer:
    """A layer that is built, with its place. `build` builds it; the shell of a layer whose
    parameters are known is built by another function. Raises InputError when it cannot be built."""

    def __init__(
        self,
        workload: Workload,
        place: Place,
        *,
        seed: int,
        build: Callable[[Workload, int, int], nn.Module] = build_layer,
        precision: str = "fp32",
    ) -> None:
        self._seed = seed
        self._precision = precision
        self._on_text = workload.data is None and place.index == 0
        before = settings()
        try:
            self.layer = build(workload, place.index, seed)
        except InputError as error:
            raise InputError(f"{place.file}: {error}") from error
        except USER_ERRORS as error:
            raise place.refuse(
                f"cannot be built: {placed_line_of(error)}", remedy_of(error)
            ) from error
        self.place = replace(place, name=type(self.layer).__name__)
        self._norms = BatchNorms([(place.index, self.layer)])
        self._check_settings(before)

    # ------------------------------------------------------------------ what it is

    def initial(self) -> dict[str, int]:
        """A checksum of each parameter and buffer, including buffers that are not saved."""
        return {name: checksum(value) for name, value in named_tensors(self.layer)}

    def check(self) -> None:
        """Raises InputError when the layer cannot be trained or taken over."""
        memory: dict[int, str] = {}
        for name, parameter in self.layer.named_parameters():
            types = TRAINED if parameter.requires_grad else FROZEN
            found = [str(parameter.dtype)] if parameter.dtype not in types else []
            found += [f"on {parameter.device}"] if parameter.device.type != "cpu" else []
            if found:
                raise self.place.refuse(
                    f"has a {'trained' if parameter.requires_grad else 'frozen'} parameter {name!r}"
                    f" that is not {' or '.join(map(str, types))} on the CPU ({', '.join(found)})",
                    "make it so, or register it as a buffer",
                )
            where = parameter.untyped_storage().data_ptr()
            if parameter.numel() and memory.setdefault(where, name) != name:
                raise self.place.refuse(
                    f"has two parameters in the same memory, {memory[where]!r} and {name!r}",
                    "make one nn.Parameter and take its parts in forward",
                )
        self._check_batch_norms()
        for name, tensor in _kept_aside(self.layer):
            if tensor.untyped_storage().data_ptr() in memory:
                raise self.place.refuse(
                    f"keeps {name!r}, which lies in the memory of its parameter "
                    f"{memory[tensor.untyped_storage().data_ptr()]!r}: on a node that takes over "
                    "it would be that of the initial values",
                    "take it from the parameter in forward",
                )

    def _check_batch_norms(self) -> None:
        for name, module in self.layer.named_modules():
            if isinstance(module, nn.SyncBatchNorm):
                raise self.place.refuse(
                    f"has a SyncBatchNorm {name!r}, whose statistics would depend on which nodes "
                    "there are",
                    "take torch.nn.BatchNorm2d or another of its kind: a microbatch is normalised "
                    "by its own statistics, wherever it runs",
                )
            if not is_batch_norm(module):
                continue
            if module.momentum is None:
                raise self.place.refuse(
                    f"has a batch norm {name!r} with momentum=None, whose running statistics "
                    "weigh all steps alike",
                    "give it a momentum, such as 0.1",
                )
            if module.running_mean is not None and module.running_mean.dtype != torch.float32:
                raise self.place.refuse(
                    f"has a batch norm {name!r} with running statistics in "
                    f"{module.running_mean.dtype}",
                    "keep a batch norm in float32",
                )

    # ------------------------------------------------------------------ what it does

    def forward(
        self,
        x: Tensors,
        step: int,
        microbatch: int,
        *,
        checked: bool = False,
    ) -> Pass:
        """Run the layer on one microbatch. Those tensors of the input collect a gradient that
        require one. `checked`: check here and after the backward that nothing changed which must
        not."""
        x = tuple(t.detach().clone().requires_grad_(t.requires_grad) for t in x)
        before, held = settings(), Held(self.layer, x) if checked else None
        own = {tensor.untyped_storage().data_ptr() for _, tensor in named_tensors(self.layer)}
        saved: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        writes = Writes(self._watched(x)) if checked else None
        self._norms.begin()
        begin_s = idle_s(x[0])
        try:
            with (
                torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
                writes or nullcontext(),
            ):
                y = run_layers(
                    [(self.place.index, self.layer)],
                    x,
                    seed=self._seed,
                    step=step,
                    microbatch=microbatch,
                    precision=self._precision,
                )
            self._norms.taken()
        except BadBoundary as error:
            raise self.place.refuse(error.problem, error.remedy) from error
        except USER_ERRORS as error:
            raise self.place.refuse(
                f"fails in its forward: {placed_line_of(error)}",
                f"{remedy_of(error)}; its input is {_described(x, text=self._on_text)}",
            ) from error
        forward_ms = (idle_s(x[0]) - begin_s) * 1000
        self._check_settings(before)
        reached = self._check_output(x, y)
        self._check_kept(held)
        if writes is not None and writes.name:
            raise self.place.refuse(*self._written(writes.name))
        return Pass(
            input=x,
            output=y,
            reached=reached,
            saved_bytes=sum(saved.values()),
            forward_ms=forward_ms,
            held=held,
        )

    def backward(self, run: Pass, gradients: Gradients) -> Gradients:
        """Run back from the gradients of the output. Returns those of the input."""
        self.layer.zero_grad(set_to_none=True)
        run.given = gradients
        before = settings()
        begin_s = idle_s(run.input[0])
        try:
            run_back(run.output, gradients)
        except USER_ERRORS as error:
            raise self.place.refuse(
                f"fails in its backward: {placed_line_of(error)}", remedy_of(error)
            ) from error
        run.backward_ms = (idle_s(run.input[0]) - begin_s) * 1000
        run.output = as_leaves(run.output)  # This frees the graph.
        self._check_settings(before)
        self._check_kept(run.held)
        run.held = None
        for name, parameter in self.layer.named_parameters():
            if parameter.requires_grad:
                run.gradients[name] = self._gradient(name, parameter, run.reached)
        found = tuple(leaf.grad for leaf in run.input)
        if all(gradient is None for gradient in found) and any(
            leaf.requires_grad for leaf in run.input
        ):
            raise self.place.refuse(
                "passes no gradient to its input", "let its output depend on it"
            )
        for place, gradient in enumerate(found):
            if gradient is not None:
                name = ITS_INPUT if len(found) == 1 else f"{ITS_INPUT} {place}"
                run.gradients[name] = gradient
        return found

    def _gradient(self, name: str, parameter: Tensor, reached: frozenset[int]) -> Tensor:
        grad = parameter.grad
        if grad is None and id(parameter) in reached:
            return torch.zeros_like(parameter)  # nothing uses what it is for
        if grad is None:
            raise self.place.refuse(
                f"has a parameter {name!r} that takes no part in its output", "remove it"
            )
        if grad.layout != torch.strided:
            raise self.place.refuse(
                f"gives a sparse gradient of {name!r}, which cannot be added up and sent",
                "take a dense one, as nn.Embedding(..., sparse=False) does",
            )
        return grad

    def _check_settings(self, before: Mapping[str, object]) -> None:
        found = changed(before)
        if found is not None:
            raise self.place.refuse(*found)

    def _check_output(self, x: Tensors, y: Tensors) -> frozenset[int]:
        """Returns the ids of the parameters that the output depends on."""
        trains = any(t.requires_grad for t in (*x, *self.layer.parameters()))
        if trains and not any(t.requires_grad for t in y):
            raise self.place.refuse(
                "returns nothing in floating numbers that depends on what is trained",
                "return one such tensor",
            )
        for t in y:
            if t.dtype not in SENDABLE:
                raise self.place.refuse(
                    f"returns {t.dtype}, which is not sent between nodes",
                    f"return one of {', '.join(map(str, SENDABLE))}",
                )
        own = {id(parameter) for parameter in self.layer.parameters()}
        known = own.union(map(id, x))
        found = list(leaves_of(y))
        for leaf in found:
            if id(leaf) not in known:
                raise self.place.refuse(
                    f"trains with a tensor of shape {tuple(leaf.shape)} that is none of its own "
                    "parameters: on a node without whatever has it, it would be another one",
                    "register it in this layer; where two layers share it, give each its own and "
                    "name both in Workload.tied",
                )
        return frozenset(own.intersection(map(id, found)))

    def _watched(self, x: Tensors) -> Iterator[tuple[str, Tensor]]:
        """What a forward may read and not write."""
        yield from named_tensors(self.layer)
        yield from _kept_aside(self.layer)
        yield from ((ITS_INPUT, t) for t in x)

    def _written(self, name: str) -> tuple[str, str]:
        if name == ITS_INPUT:
            return WRITES_INPUT
        if name in dict(named_tensors(self.layer)):
            return _changes(name, parameter=name in dict(self.layer.named_parameters()))
        return f"writes into its {name!r}, which it keeps from call to call", KEEP_NOTHING

    def _check_kept(self, held: "Held | None") -> None:
        found = None if held is None else held.difference(self.layer)
        if found is not None:
            raise self.place.refuse(*found)


class Held:
    """What must be the same after a layer has run."""

    def __init__(self, layer: nn.Module, x: Tensors) -> None:
        self._x = x
        self._given = tuple(t.detach().clone() for t in x)
        self._modes = {name: module.training for name, module in layer.named_modules()}
        self._trained = {name: (p, p.requires_grad) for name, p in layer.named_parameters()}
        self._values = {name: value.detach().clone() for name, value in named_tensors(layer)}

    def difference(self, layer: nn.Module) -> tuple[str, str] | None:
        """(problem, remedy) of the first thing that has changed."""
        if not same(self._x, self._given):
            return WRITES_INPUT
        trained = {name: (p, p.requires_grad) for name, p in layer.named_parameters()}
        for name in {**self._trained, **trained}:
            now, before = trained.get(name), self._trained.get(name)
            if now is None or before is None or now[0] is not before[0] or now[1] != before[1]:
                return (
                    f"makes, replaces or freezes its parameter {name!r} while it runs",
                    "make all parameters in __init__ and train them in every step",
                )
        values = dict(named_tensors(layer))
        for name in {**self._values, **values}:
            value, given = values.get(name), self._values.get(name)
            if value is None or given is None or not same((value,), (given,)):
                return _changes(name, parameter=name in self._trained)
        modes = {name: module.training for name, module in layer.named_modules()}
        for name in sorted(modes.keys() & self._modes.keys()):
            if modes[name] != self._modes[name]:
                return (
                    f"changes to {'train' if modes[name] else 'eval'} mode while it runs"
                    + (f" (its part {name!r})" if name else ""),
                    "leave the mode as it is; a part that stays in eval mode sets it in train()",
                )
        return None


def _changes(name: str, *, parameter: bool) -> tuple[str, str]:
    """(problem, remedy) of a layer that changes a tensor of its own."""
    if parameter:
        return (
            f"changes its parameter {name!r} while it runs (max_norm does)",
            "compute what is wanted from it out of place, in every forward",
        )
    return (
        f"changes its buffer {name!r} while it runs",
        "keep nothing from call to call; of all buffers only the running statistics of torch's own "
        "batch norms may change",
    )


def named_tensors(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, then buffers, including those that are not saved."""
    yield from layer.named_parameters()
    yield from layer.named_buffers()


def _kept_aside(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Buffers, and tensors that are plain attributes."""
    yield from layer.named_buffers()
    for prefix, module in layer.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                yield f"{prefix}.{name}" if prefix else name, value


def leaves_of(tensors: Tensors) -> Iterator[Tensor]:
    """The leaves in which the graph of these tensors collects gradients."""
    found = {id(y): y for y in tensors if y.grad_fn is None and y.requires_grad}
    seen, waiting = set(), [y.grad_fn for y in tensors if y.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            found[id(leaf)] = leaf
        elif node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions if following is not None]
    yield from found.values()


def later(value: Tensor) -> Tensor:
    """What a parameter might be after some steps: a new tensor, a few per cent from `value`, with
    the same sign, and nowhere 0. It is computed element by element, so every process gets the same
    bits."""
    width = value.shape[-1] if value.dim() else 1
    factor = 1.0 + 0.01 * (torch.arange(width, device=value.device) % 7 - 3.5)
    moved = value.detach() * factor.reshape(() if not value.dim() else (width,))
    return torch.where(moved == 0.0, 1e-3, moved)


def same(some: Tensors, others: Tensors) -> bool:
    """Equal shapes, types and bytes: unlike with ==, NaN is equal to itself."""
    return len(some) == len(others) and all(
        (a.shape, a.dtype, a.layout) == (b.shape, b.dtype, b.layout)
        and _bytes_of(a).equal(_bytes_of(b))
        for a, b in zip(some, others, strict=True)
    )


def kind_of(tensors: Tensors) -> tuple[tuple[object, ...], ...]:
    """What a layer costs depends on this of its input, and on none of its numbers."""
    return tuple((tuple(t.shape), t.dtype, t.requires_grad) for t in tensors)


def checksum(*tensors: Tensor) -> int:
    """A checksum of shapes, types and bytes."""
    found = 0
    for tensor in tensors:
        about = f"{tuple(tensor.shape)} {tensor.dtype}".encode()
        found = zlib.crc32(_bytes_of(tensor).cpu().numpy().data, zlib.crc32(about, found))
    return found


def checksums(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, int]:
    """A checksum of each tensor, by name."""
    return {name: checksum(tensor) for name, tensor in tensors}


def idle_s(on: Tensor) -> float:
    """The time once the device of this tensor has nothing to do."""
    if on.is_cuda:
        torch.cuda.synchronize(on.device)
    return time.perf_counter()


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _described(x: Tensors, *, text: bool) -> str:
    """`torch.int64 (2, 16), the tokens of a text, as the model has no data of its own`."""
    each = " and ".join(f"{t.dtype} {tuple(t.shape)}" for t in x)
    return each + (", the tokens of a text, as the model has no data of its own" if text else "")


def remedy_of(error: BaseException) -> str:
    """What to do about the error."""
    said = str(error)
    if is_full(error):
        return SMALLER
    if isinstance(error, TookTooLong):
        return "wait for nothing in it, or take a smaller model or train.microbatch"
    if "in-place operation" in said or "inplace operation" in said:
        return OUT_OF_PLACE
    if "deepcopy" in said:
        return "list a function that makes the layer in the place of the layer"
    if "Cannot re-initialize CUDA in forked" in said:
        return "use no GPU while the file is read; layers are put on it later"
    if "does not have a deterministic implementation" in said:
        return "take an operation with a fixed order of sums"
    if "forward() missing" in said and "positional argument" in said:
        return "a layer gets what the layer before returns as one argument, a tuple where it is one"
    if "must be Tensor, not tuple" in said or "'tuple' object has no attribute" in said:
        return "unpack the tuple that the layer before returns, or return one tensor there"
    if "<lambda>() missing" in said:
        return "list layers, or functions without arguments that make one; make a module of it"
    if "without overflow" in said and "BFloat16" in said:
        return (
            "take a number that bfloat16 holds, as -1e4 for a mask: a trace keeps that of "
            'torch.finfo as it is for float32; or train.precision = "fp32"'
        )
    return remedy_of_file(error) or "correct it"


def is_full(error: BaseException) -> bool:
    """Whether the memory of the host or of the GPU is used up."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or CPU_IS_FULL in str(error)
