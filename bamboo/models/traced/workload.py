"""From a job with `split = "trace"` to its layers: traced at the launch, read everywhere else.

    <code>/trace/layers.json            the plan of each layer, ties, checksums of initial values
    <code>/trace/tensors.safetensors    buffers and constants

Rule: the launch alone traces. What it found belongs to the run, by its digest, so a node imports
nothing of `torch.export` and runs no line of the user's forward.
"""

import hashlib
import importlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch

from bamboo.config.home import home
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import load_data
from bamboo.errors import InputError
from bamboo.models.traced.layer import Drawn, Factory
from bamboo.models.traced.plan import LayerPlan
from bamboo.models.workload import TiedParameter, Workload
from bamboo.new_files import write_whole
from bamboo.topology.keys import keyed_seed
from bamboo.user_code.manifest import CodeFile
from bamboo.user_code.recording import importing_for_bamboo

FOLDER = "trace"
"""In the code that a run takes along."""
LAYERS = "layers.json"
TENSORS = "tensors.safetensors"
KEPT = "traces"
"""Below the home, with a folder for each trace."""


def traced(job: JobConfig, workload: Workload) -> Workload:
    """The workload with the layers of its only item, the whole module. Raises InputError for one
    that has no graph, or whose graph computes something else."""
    if len(workload.layers) != 1 or workload.tied:
        what = "names ties" if workload.tied else f"returned {len(workload.layers)} layers"
        raise _refuse(
            job, f"it {what}, and a module is cut", "return the whole module, and nothing in `tied`"
        )
    drawn = Drawn(workload.layers[0], keyed_seed(job.train.seed, "init"))
    if job.code:
        folder = Path(job.code) / FOLDER
        text, tensors = (folder / LAYERS).read_text(encoding="utf-8"), folder / TENSORS
        files: tuple[CodeFile, ...] = ()
    else:
        text, tensors, files = _trace(job, workload, drawn)
    body = json.loads(text)
    drawn.sums = body["initial"]
    values = safetensors.torch.load(tensors.read_bytes())
    plans = [LayerPlan.from_dict(plan) for plan in body["layers"]]
    return replace(
        workload,
        layers=tuple(Factory(plan, values, drawn) for plan in plans),
        tied=ties_of(plans),
        plain=True,
        prefixes=("",) * len(plans),
        files=files,
    )


def ties_of(plans: Sequence[LayerPlan]) -> tuple[TiedParameter, ...]:
    """Parameters that several layers have."""
    owners: dict[str, tuple[int, str]] = {}
    ties: list[TiedParameter] = []
    for layer, plan in enumerate(plans):
        for held in plan.parameters:
            if held.same:
                continue
            owner, name = owners.setdefault(held.of, (layer, held.name))
            if owner != layer:
                ties.append(
                    TiedParameter(
                        owner_layer=owner, owner_name=name, user_layer=layer, user_name=held.name
                    )
                )
    return tuple(ties)


def _trace(
    job: JobConfig, workload: Workload, drawn: Drawn
) -> tuple[str, Path, tuple[CodeFile, ...]]:
    """(the document, the file of tensors, both as files that the run takes along)."""
    data = load_data(job, own=workload.data)
    total = job.train.batch // job.train.microbatch
    samples = [data.microbatch(0, index)[0] for index in range(min(total, 4))]
    # torch.export takes seconds to import, and only a launch of such a job does.
    with importing_for_bamboo():
        tracing: Any = importlib.import_module("bamboo.models.traced.tracing")
    try:
        found = tracing.trace(drawn, samples)
    except tracing.Untraceable as error:
        raise _refuse(job, *error.args) from error
    plans = [plan.to_dict() for plan in found.plans]
    document = {"schema_version": 1, "layers": plans, "initial": found.sums}
    text = json.dumps(document)
    paths = [_keep(text.encode(), LAYERS), _keep(safetensors.torch.save(found.tensors), TENSORS)]
    files = tuple(
        CodeFile(
            path=f"{FOLDER}/{path.name}",
            origin=str(path),
            sha256=path.parent.name,
            bytes=path.stat().st_size,
        )
        for path in paths
    )
    return text, paths[1], files


def _keep(content: bytes, name: str) -> Path:
    """The file with this content, in a folder of its digest: it is there until the run, or another
    one of the same job, has taken it along."""
    folder = home() / KEPT / hashlib.sha256(content).hexdigest()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, content)
    except OSError as error:
        raise InputError(
            f"{folder / name}: {error.strerror}; make room, or set BAMBOO_HOME to a folder that "
            "you may write"
        ) from error
    return folder / name


def _refuse(job: JobConfig, problem: str, remedy: str) -> InputError:
    return InputError.at(
        file=job.file, key="model.model", value=job.model.model, problem=problem, remedy=remedy
    )
