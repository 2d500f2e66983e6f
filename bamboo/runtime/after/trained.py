"""The layers of a run with the values of one of its states, in one process.

Rule: the run's own code makes them, and each tensor of the state has its place in them.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.models import (
    Workload,
    build_model,
    build_shell,
    put_parameters,
    saved_buffers,
    whole_name,
)
from bamboo.runtime.check.verify import check_code, job_of_run, semantics_of
from bamboo.runtime.step.numerics import prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a run has trained."""

    run: Path
    job: JobConfig
    workload: Workload
    layers: Sequence[tuple[int, nn.Module]]

    def whole_state(self) -> dict[str, Tensor]:
        """The state of the whole model, as `load_state_dict` of the user's own module takes it.
        Raises InputError where a layer keeps something that is no tensor."""
        out: dict[str, Tensor] = {}
        memory = set()
        for index, layer in self.layers:
            for name, tensor in layer.state_dict().items():
                if not isinstance(tensor, Tensor):
                    raise InputError(
                        f"layer {index} ({type(layer).__name__}) has {name!r} in its state_dict, "
                        f"which is {type(tensor).__name__}; keep tensors alone there"
                    )
                # A file has no two tensors in one place; one parameter may have two names.
                where = tensor.untyped_storage().data_ptr()
                own = tensor.detach().cpu().contiguous()
                out[whole_name(self.workload, index, name)] = (
                    own.clone() if where in memory else own
                )
                memory.add(where)
        return out


def trained(run: Path, files: Sequence[Path], place: torch.device) -> Trained:
    """The layers of the run in this folder, at `place`, with the state in these files. Raises
    InputError where code or libraries are not those of the run, or a tensor is not of its model."""
    job = job_of_run(run)
    prepare(job.cluster)
    check_code(run, job, semantics_of(run))
    workload = build_model(job)
    with ExitStack() as stack:
        found: dict[str, Any] = {}
        for path in files:
            file = stack.enter_context(safe_open(path, framework="pt"))
            found |= dict.fromkeys(file.keys(), file)
        layers = [
            (index, _with_values(build_shell(workload, index, job.train.seed), index, found))
            for index in range(len(workload.layers))
        ]
    for _, layer in layers:
        layer.to(place)
    return Trained(run=run, job=job, workload=workload, layers=layers)


def _with_values(layer: nn.Module, index: int, files: Mapping[str, Any]) -> nn.Module:
    """The layer with its tensors, each from the file that has it."""
    values = {}
    for kind, names in (
        ("param", [name for name, _ in layer.named_parameters()]),
        ("buffer", [name for name, _ in saved_buffers(layer)]),
    ):
        for name in names:
            there = f"{kind}/{index}.{name}"
            if there not in files:
                raise InputError(f"the state of the run lacks {there}; take another step")
            # In a file it lies at any byte, and bits may follow that.
            values[name] = files[there].get_tensor(there).clone()
    try:
        put_parameters(layer, values)
    except ValueError as error:
        raise InputError(f"the state of the run is of another model: {error}") from error
    return layer
