"""Takes the weights that another program wrote with torch.distributed.checkpoint, as those that a
job begins with.

Rule: each parameter is found by the name that it has in the user's own module, and all of the
model are there, no more and no less.
"""

from collections.abc import Set
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bamboo.checkpoint.distributed import Distributed
from bamboo.config.load import job_from_json
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.kept_weights import some_of
from bamboo.models import Workload, build_model, build_shell, whole_name

PREFIXES = ("", "model.", "module.")
"""What may stand before all names: programs save a model beside its optimizer."""


def take(job_text: str, source: Path, folder: Path) -> dict[str, Any]:
    """Write the weights in the folder `source` into files in `folder`, one for each layer, named as
    in the final files of a run of this job. Raises InputError for weights of another model."""
    job = job_from_json(job_text)
    workload = build_model(job)
    found = Distributed(source)
    layers = [
        (index, build_shell(workload, index, job.train.seed))
        for index in range(len(workload.layers))
    ]
    prefix = _prefix(job, workload, layers, found.names)
    for index, layer in layers:
        parameters = dict(layer.named_parameters())
        if not parameters:
            continue
        names = {name: prefix + whole_name(workload, index, name) for name in parameters}
        held = found.tensors(names.values())
        tensors = {
            f"param/{index}.{name}": _fitting(job, there, held[there], parameters[name])
            for name, there in names.items()
        }
        save_file(tensors, folder / f"layer-{index:05d}.safetensors")
    return {"layers": len(layers)}


def _prefix(
    job: JobConfig, workload: Workload, layers: list[tuple[int, nn.Module]], names: Set[str]
) -> str:
    """What stands before the names of the model's tensors in the checkpoint."""
    wanted = [
        whole_name(workload, i, n) for i, layer in layers for n, _ in layer.named_parameters()
    ]
    known = {whole_name(workload, i, name) for i, layer in layers for name in layer.state_dict()}
    lacking = {p: [name for name in wanted if p + name not in names] for p in PREFIXES}
    prefix = min(PREFIXES, key=lambda one: len(lacking[one]))
    if lacking[prefix]:
        raise _refuse(job, f"lacks {some_of(lacking[prefix])}, which the model has")
    here = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    if others := sorted(here - known):
        raise _refuse(job, f"has {some_of(others)}, which the model has not")
    return prefix


def _fitting(job: JobConfig, name: str, found: Tensor, wanted: Tensor) -> Tensor:
    """The values in the type of the parameter, where that holds all of them."""
    if found.shape != wanted.shape:
        shapes = f"{list(found.shape)}, and {list(wanted.shape)} in the model"
        raise _refuse(job, f"has {name} of shape {shapes}")
    if torch.promote_types(found.dtype, wanted.dtype) != wanted.dtype:
        raise _refuse(job, f"has {name} as {found.dtype}, and the model as {wanted.dtype}")
    return found.to(wanted.dtype).contiguous()


def _refuse(job: JobConfig, problem: str) -> InputError:
    return InputError.at(
        file=job.file,
        key="train.init",
        value=job.train.init,
        problem=problem,
        remedy="save the state_dict of the same model",
    )
