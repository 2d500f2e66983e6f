"""The folder of a run that was trained in this process, or whose state was made up."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from bamboo.checkpoint.final import write_manifest, write_stage
from bamboo.config.load import job_to_json
from bamboo.config.resolve import semantics
from bamboo.config.tree import JobConfig
from bamboo.ids import RunId
from bamboo.kept_weights import INIT_FOLDER
from bamboo.models import build_layer, build_model, named_parameters, saved_buffers
from bamboo.runs import initial
from bamboo.runs.run_folder import RunFolder, write_json
from bamboo.runtime.after.trained import Trained, trained
from bamboo.runtime.device.staging import HOST
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Placement, Strategy
from bamboo.user_code.bundle import CODE_FOLDER, identity_here
from bamboo.user_code.guard import unguarded
from tests.jobs import with_code

STEPS = 5


def write_run(home: Path, job: JobConfig, state: Mapping[str, Tensor] | None = None) -> RunFolder:
    """A run in `home` that ended with this state; None: a state with values that are no initial
    ones."""
    folder = RunFolder(id=RunId("run"), path=home / "run")
    folder.path.mkdir()
    write_stage(folder.final, 0, made_up(job) if state is None else state, STEPS)
    write_manifest(folder.final, stages=1, step=STEPS)
    job, weights = initial.begin_with(job)
    if weights is not None:
        initial.keep(job, weights, folder)
        kept = "" if job.train.init else str(folder.path / INIT_FOLDER)
        job = replace(job, pretrained=kept)
    job = with_code(job, folder.path)
    folder.resolved.write_text(job_to_json(job))
    code = identity_here(folder.path / CODE_FOLDER) if job.code else None
    strategy = Strategy(
        semantics=semantics(job, data_digest="", code=code),
        placement=Placement(cut=(0, 1), grid=Grid(pipelines=1, stages=1), redundancy="off"),
    )
    folder.strategy.write_text(strategy.to_json())
    write_json(folder.receipt, {"step": STEPS, "outcome": "done"})
    return folder


def made_up(job: JobConfig) -> dict[str, Tensor]:
    workload = build_model(job)
    layers = [(i, build_layer(workload, i, job.train.seed)) for i in range(len(workload.layers))]
    generator = torch.Generator().manual_seed(11)
    state = {
        f"param/{name}": parameter.detach()
        + torch.randn(parameter.shape, generator=generator) / 20 * parameter.requires_grad
        for name, parameter in named_parameters(layers)
    }
    for tie in workload.tied:
        owner = state[f"param/{tie.owner_layer}.{tie.owner_name}"]
        state[f"param/{tie.user_layer}.{tie.user_name}"] = owner.clone()
    for index, layer in layers:
        for name, buffer in saved_buffers(layer):
            state[f"buffer/{index}.{name}"] = buffer + (0.5 if buffer.is_floating_point() else 3)
    return state


def loaded(folder: RunFolder) -> Trained:
    found = trained(folder.path, sorted(folder.final.glob("*.safetensors")), HOST)
    unguarded()
    return found
