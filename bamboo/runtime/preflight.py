"""`python -m bamboo.runtime.preflight`: look at model and data on this machine before any launch.

Job as JSON on standard input, with the argument `data` where the model is to be left alone; on
standard output one JSON object: the profile of every layer, the data's facts and the numerics; or
{"error": line} and exit code 2 when the job cannot be trained.

Rule: what would make bits depend on machines is refused here, by the layer's name. One microbatch
runs twice through every layer, each on its own as though a stage began and ended there; outputs,
gradients and buffers must not differ. Times are medians: layers that the same function makes, for
an input of the same shape, are timed together. Progress goes to standard error.
"""

import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bamboo.config.load import job_from_json
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import Dataset, load_data
from bamboo.data.sources import read_described
from bamboo.errors import InputError
from bamboo.models import ModelSpec, build_layer, build_model, run_back, run_layers
from bamboo.models.build import USER_ERRORS, code_taken_along
from bamboo.runtime.answer import one_answer, tell_progress
from bamboo.runtime.numerics import local_numerics, prepare
from bamboo.runtime.optimizer import CLIP_FACTOR, AdamW, end_step
from bamboo.user_code.recording import recording

SCHEMA_VERSION = 1
REPEATS = 8
"""How often layers that are alike run again after the first pass, together; each of them at least
once, whose bits are compared."""
UPDATES = 3
"""How often the end of a step is timed, for one of those that are alike."""


@dataclass(slots=True, kw_only=True)
class Pass:
    """What one layer did with one microbatch."""

    input: Tensor
    output: Tensor
    saved_bytes: int
    forward_ms: float
    backward_ms: float = 0.0
    optimizer_ms: float = 0.0
    given: Tensor = field(default_factory=lambda: torch.empty(0))
    """Gradient of the output."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """By parameter name, and of the input under "its input"."""


def preflight(job: JobConfig) -> dict[str, Any]:
    """Profile and check a resolved job; see the top of the file for the result.

    Raises InputError for a model that cannot be read, cut, or repeated bit for bit, and for
    missing or empty data.
    """
    prepare(job.cluster)
    text, described = read_described(job)
    data = load_data(job, text)
    with recording() as recorder:
        spec = build_model(job)
        _check_cut(job, spec)
        layers = [_build_twice(job, spec, i) for i in range(len(spec.factories))]
        passes = _run(job, spec, layers, data)
        _repeat_all(job, spec, layers, passes)
        code = code_taken_along(job, recorder)
    return {
        "schema_version": SCHEMA_VERSION,
        "layers": [
            {
                "index": index,
                "name": type(layer).__name__,
                "parameters": sum(p.numel() for p in layer.parameters()),
                "parameter_bytes": _bytes(layer.parameters()),
                "output_bytes": _bytes([passes[index].output]),
                "activation_bytes": passes[index].saved_bytes,
                "forward_ms": passes[index].forward_ms,
                "backward_ms": passes[index].backward_ms,
                "optimizer_ms": passes[index].optimizer_ms,
            }
            for index, layer in enumerate(layers)
        ],
        "tied": [[t.owner_layer, t.owner_name, t.user_layer, t.user_name] for t in spec.tied],
        **_facts(job, data, described),
        **code,
    }


def of_data(job: JobConfig) -> dict[str, Any]:
    """The same of a resolved job's data and numerics alone, without a layer. Raises InputError for
    missing or empty data."""
    prepare(job.cluster)
    text, described = read_described(job)
    return {
        "schema_version": SCHEMA_VERSION,
        "layers": [],
        "tied": [],
        **_facts(job, load_data(job, text), described),
    }


def _facts(job: JobConfig, data: Dataset, described: dict[str, Any]) -> dict[str, Any]:
    return {
        "data": described,
        "data_digest": data.digest,
        "samples": data.samples,
        "unigram_entropy_nats": data.unigram_entropy_nats,
        "numerics": local_numerics(job.cluster),
    }


def _check_cut(job: JobConfig, spec: ModelSpec) -> None:
    """The same as for the built-in model at reading, for a user's, whose layers count only now."""
    count = len(spec.factories)
    for key, value, past in (
        ("cluster.stages", job.cluster.stages, job.cluster.stages > count),
        ("cluster.cut", list(job.cluster.cut), max(job.cluster.cut, default=0) >= count),
    ):
        if past:
            raise InputError.at(
                file=job.file,
                key=key,
                value=value,
                problem=f"goes past the model's {count} layers",
                remedy="take fewer stages or more layers",
            )


def _build_twice(job: JobConfig, spec: ModelSpec, index: int) -> nn.Module:
    try:
        layer, again = (build_layer(spec, index, job.train.seed) for _ in range(2))
    except InputError:
        raise  # names the place better
    except USER_ERRORS as error:
        raise _refuse(job, index, None, f"cannot be built: {_line(error)}", "correct it") from error
    twin = again.state_dict()
    for name, value in layer.state_dict().items():
        if name not in twin or not _same(value, twin[name]):
            raise _refuse(
                job,
                index,
                layer,
                f"has other initial values of {name!r} each time it is built",
                "draw them from torch's default generator only",
            )
    for name, parameter in layer.named_parameters():
        if parameter.dtype != torch.float32 or not parameter.requires_grad:
            raise _refuse(
                job,
                index,
                layer,
                f"has a parameter {name!r} that is frozen or not float32",
                "train it in float32, or register it as a buffer",
            )
    return layer


def _run(job: JobConfig, spec: ModelSpec, layers: list[nn.Module], data: Dataset) -> list[Pass]:
    """Forward and backward of microbatch 0 of step 0, layer by layer."""
    x, targets = data.microbatch(0, 0)
    passes: list[Pass] = []
    for index, layer in enumerate(layers):
        passes.append(_forward(job, index, layer, x))
        x = passes[-1].output.detach()
        tell_progress(index + 1, 2 * len(layers))
    gradient = _loss_gradient(job, spec, x, targets)
    for index in reversed(range(len(layers))):
        gradient = _backward(job, index, layers[index], passes[index], gradient)
    return passes


def _repeat_all(
    job: JobConfig, spec: ModelSpec, layers: list[nn.Module], passes: list[Pass]
) -> None:
    """Run every layer again on the same values: the same bits, and times worth a plan."""
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, one in enumerate(passes):
        kind = (id(spec.factories[index]), tuple(one.input.shape), one.input.dtype)
        alike[kind].append(index)
    done = 0
    for indices in alike.values():
        again: list[Pass] = []
        for index in indices:
            for _ in range(-(-REPEATS // len(indices))):
                again.append(_repeat(job, index, layers[index], passes[index]))
            done += 1
            tell_progress(len(layers) + done, 2 * len(layers))
        update_ms = _update_ms(job, layers[indices[0]], passes[indices[0]])
        for index in indices:
            passes[index].forward_ms = statistics.median(one.forward_ms for one in again)
            passes[index].backward_ms = statistics.median(one.backward_ms for one in again)
            passes[index].optimizer_ms = update_ms


def _repeat(job: JobConfig, index: int, layer: nn.Module, one: Pass) -> Pass:
    """Run a layer again, compare, and keep of it the times alone."""
    again = _forward(job, index, layer, one.input)
    _backward(job, index, layer, again, one.given)
    _compare(job, index, layer, one, again)
    empty = torch.empty(0)
    return Pass(
        input=empty,
        output=empty,
        saved_bytes=0,
        forward_ms=again.forward_ms,
        backward_ms=again.backward_ms,
    )


def _update_ms(job: JobConfig, layer: nn.Module, one: Pass) -> float:
    """The end of a step, once: on copies, for the layer is to stay as it was built."""
    params = [parameter.detach().clone() for parameter in layer.parameters()]
    grads = [one.gradients[name] for name, _ in layer.named_parameters()]
    optimizer = AdamW(job.train)
    moments = optimizer.new_state(params)
    clip_factor = CLIP_FACTOR if job.train.clip_norm > 0 else 1.0
    seconds = []
    for _ in range(UPDATES):
        begin_s = time.perf_counter()
        end_step(optimizer, params, grads, moments, clip_factor=clip_factor)
        seconds.append(time.perf_counter() - begin_s)
    return 1e3 * statistics.median(seconds)


def _forward(job: JobConfig, index: int, layer: nn.Module, x: Tensor) -> Pass:
    x = x.detach().clone()
    x.requires_grad_(x.is_floating_point())
    given = x.detach().clone()
    buffers = {name: value.detach().clone() for name, value in layer.named_buffers()}
    own = {t.untyped_storage().data_ptr() for t in (*layer.parameters(), *layer.buffers())}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    begin_s = time.perf_counter()
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = run_layers([(index, layer)], x, seed=job.train.seed, step=0, microbatch=0)
    except USER_ERRORS as error:
        raise _refuse(
            job, index, layer, f"fails in its forward: {_line(error)}", "correct it"
        ) from error
    forward_ms = (time.perf_counter() - begin_s) * 1000
    if not y.is_floating_point() or not y.requires_grad:
        raise _refuse(
            job,
            index,
            layer,
            "returns nothing in floating numbers that depends on what is trained",
            "return one such tensor",
        )
    if not _same(x.detach(), given):
        raise _refuse(job, index, layer, "writes into its input", "compute out of place")
    for name, value in layer.named_buffers():
        if name not in buffers or not _same(value, buffers[name]):
            raise _refuse(
                job,
                index,
                layer,
                f"changes its buffer {name!r} while it runs (running statistics do)",
                "take a layer without state, such as LayerNorm for BatchNorm",
            )
    return Pass(input=x, output=y, saved_bytes=sum(saved.values()), forward_ms=forward_ms)


def _loss_gradient(job: JobConfig, spec: ModelSpec, output: Tensor, targets: Tensor) -> Tensor:
    leaf = output.detach().requires_grad_()
    try:
        loss = spec.loss(leaf, targets)
        (loss / targets.numel()).backward()  # type: ignore[no-untyped-call]
    except USER_ERRORS as error:
        raise _refuse(
            job,
            len(spec.factories) - 1,
            None,
            f"gives an output of shape {tuple(output.shape)} that the loss cannot take: "
            f"{_line(error)}",
            "end with a value for each token of the vocabulary",
        ) from error
    if loss.dtype != torch.float32 or loss.dim() != 0 or not bool(torch.isfinite(loss)):
        raise InputError(
            f"{job.file}: the loss at the start is {loss.detach()!s}; "
            "it must be one finite float32 number"
        )
    assert leaf.grad is not None
    return leaf.grad


def _backward(job: JobConfig, index: int, layer: nn.Module, run: Pass, gradient: Tensor) -> Tensor:
    layer.zero_grad(set_to_none=True)
    run.given = gradient
    begin_s = time.perf_counter()
    try:
        run_back(run.output, gradient)
    except USER_ERRORS as error:
        raise _refuse(
            job, index, layer, f"fails in its backward: {_line(error)}", "correct it"
        ) from error
    run.backward_ms = (time.perf_counter() - begin_s) * 1000
    run.output = run.output.detach()  # Lets the graph go.
    for name, parameter in layer.named_parameters():
        if parameter.grad is None:
            raise _refuse(
                job,
                index,
                layer,
                f"has a parameter {name!r} that takes no part in its output",
                "remove it",
            )
        run.gradients[name] = parameter.grad
    if index == 0:
        return gradient
    if run.input.grad is None:
        raise _refuse(
            job, index, layer, "passes no gradient to its input", "let its output depend on it"
        )
    run.gradients["its input"] = run.input.grad
    return run.input.grad


def _compare(job: JobConfig, index: int, layer: nn.Module, one: Pass, other: Pass) -> None:
    remedy = (
        "draw from torch's default generator only (as torch.nn.functional.dropout does), "
        "and keep nothing from call to call"
    )
    if not _same(one.output.detach(), other.output.detach()):
        raise _refuse(
            job, index, layer, "gives another output when the same microbatch runs again", remedy
        )
    for name, gradient in one.gradients.items():
        if not _same(gradient, other.gradients[name]):
            raise _refuse(
                job,
                index,
                layer,
                f"gives another gradient of {name!r} when the same microbatch runs again",
                remedy,
            )


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal shape, type and bytes: unlike ==, this holds NaN equal to itself."""
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and a.contiguous()
        .view(-1)
        .view(torch.uint8)
        .equal(b.contiguous().view(-1).view(torch.uint8))
    )


def _bytes(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _refuse(
    job: JobConfig, index: int, layer: nn.Module | None, problem: str, remedy: str
) -> InputError:
    name = f" ({type(layer).__name__})" if layer is not None else ""
    return InputError(f"{job.file}: layer {index}{name} {problem}; {remedy}")


def main(arguments: list[str]) -> int:
    """The command; see the top of the file."""
    with one_answer() as answer:
        try:
            look = of_data if arguments == ["data"] else preflight
            answer(look(job_from_json(sys.stdin.read())))
        except InputError as error:
            answer({"error": str(error)})
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
