"""The profile of a job: measured on this machine or taken from the cache, and modelled from there.

Rule: a profile is kept under a digest of everything that its figures depend on, so it is never
stale. Another model, microbatch, thread count, torch, release or machine has another name. The
training text is not part of it, because its tokens do not change the work. A kept profile that
cannot be read is measured again.
"""

import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from bamboo import __version__, wiring
from bamboo.asked_files import write_new
from bamboo.config.catalogue import load_gpus
from bamboo.config.load import load_job
from bamboo.config.resolve import batch_shape, frozen_in, semantics
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.kept_weights import CONFIG, HF_FOLDER
from bamboo.named_files import LONGEST, read_own
from bamboo.planner.profiles.gpus import Gpu, GpuTable
from bamboo.planner.profiles.profiled import SCHEMA_VERSION, Profile
from bamboo.planner.profiles.shaped import gpt_profile
from bamboo.ports import Note, Told
from bamboo.runs.run_folder import home
from bamboo.study.told import silent
from bamboo.study.workload import PROFILED
from bamboo.topology.strategy import canonical_json
from bamboo.user_code.bundle import read_manifest
from bamboo.wiring.begun import Begun

FOLDER = "profiles"
"""In `$BAMBOO_HOME`, next to the runs."""
LEAST_S, MOST_S = 1.0, 86_400.0
DEVICES = ("cpu", "cuda")
CPUS = Path("/proc/cpuinfo")
GPUS = Path("/proc/driver/nvidia/gpus")
VIRTUAL = (
    "the job is for a virtual device, whose figures are given; what is shown is what its layers "
    "take without it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The profile that the command line asks for."""

    device: str = "cpu"
    """`cpu` or `cuda`, the device to measure on."""
    gpu: str | None = None
    """The GPU to model instead."""
    limit_s: float = 60.0
    fresh: bool = False
    """Measure even if a profile is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A profile, and where it came from."""

    profile: Profile
    microbatches: int
    """In one step, over all pipelines."""
    precision: str
    """The job's."""
    kept: bool
    """It was read from the cache."""
    path: Path
    gpu: Gpu | None
    notes: tuple[str, ...]

    @property
    def table(self) -> GpuTable:
        """The published figures that a modelled profile goes by."""
        return load_gpus()


def profile_job(
    path: Path,
    wanted: Wanted,
    *,
    overrides: Sequence[str],
    progress: Callable[[], AbstractContextManager[Told]],
) -> Found:
    """Read the job and find its profile. `progress` opens a callback for the progress of the
    measurement. Raises InputError for a job that cannot be read, measured, or trained on its
    GPU."""
    if not LEAST_S <= wanted.limit_s <= MOST_S:
        raise InputError(
            f"--seconds {wanted.limit_s:g} is no time to measure in; give {LEAST_S:g} to {MOST_S:g}"
        )
    if wanted.device not in DEVICES:
        raise InputError(
            f"--device {wanted.device!r} is no device to measure on; take {' or '.join(DEVICES)}"
        )
    table = load_gpus()
    gpu = None if wanted.gpu is None else table.find(wanted.gpu)
    if gpu is not None and wanted.device != "cpu":
        raise InputError(
            f"--gpu {gpu.name} is modelled and --device {wanted.device} is measured; leave one of "
            "them out"
        )
    job = load_job(path, overrides)
    if gpu is not None:
        table.check_precision(gpu, job.train.precision)
    where = this_machine(with_gpus=wanted.device == "cuda")
    key = content_key(
        job, device=wanted.device, machine=where, torch_version=metadata.version("torch")
    )
    file = home() / FOLDER / f"{key}.json"
    notes = [VIRTUAL] if job.cluster.device == "virtual" else []
    profile = None if wanted.fresh else _kept(file, limit_s=wanted.limit_s, notes=notes)
    kept = profile is not None
    if profile is None and gpu is not None and job.model.is_gpt and not wanted.fresh:
        profile = shaped_work(job)  # the work follows from a formula, so counting is not needed
    if profile is None:
        with progress() as told:
            profile = wiring.run_profile(
                job,
                device=wanted.device,
                limit_s=wanted.limit_s,
                machine=where,
                seen=f"{datetime.now(UTC):%Y-%m-%d}",
                told=told,
            )
        _keep(file, profile, notes)
    if gpu is not None:
        table.check_room(profile, gpu)
    shape = batch_shape(job)
    return Found(
        profile=profile if gpu is None else table.modelled(profile, gpu, job.train.precision),
        microbatches=shape.virtual_nodes * shape.microbatches,
        precision=job.train.precision,
        kept=kept,
        path=file,
        gpu=gpu,
        notes=tuple(notes),
    )


def shaped_work(job: JobConfig) -> Profile:
    """The work of the built-in model's layers on a device, by the model's shape."""
    model = job.model
    return gpt_profile(
        job=Path(job.file).name,
        layers=model.layers,
        width=model.width,
        heads=model.heads,
        context=model.context,
        vocabulary=model.vocabulary,
        microbatch=job.train.microbatch,
        dropout=model.dropout,
        threads=job.cluster.threads,
        precision=job.train.precision,
        optimizer=job.train.optimizer,
        momentum=job.train.momentum > 0,
        frozen=frozen_in(job),
    )


def seen_of(
    job: JobConfig, *, told: Told | None = None, begun: Begun | None = None, note: Note = silent
) -> dict[str, Any]:
    """What the preflight says of a job, with the times of its profile where one is kept, since
    those are medians of many passes. `told` is called with (done, of all), `note` with what takes a
    while. The preflight is a fork of the cloud that has `begun`. Raises InputError as the preflight
    does."""
    seen = wiring.run_preflight(job, told=told, begun=begun, note=note)
    if job.cluster.device == "virtual":
        return seen
    profile = kept_profile(job)
    if profile is None or len(profile.layers) != len(seen["layers"]):
        return seen
    layers = [
        {
            **layer,
            "forward_ms": there.forward_s * 1e3,
            "backward_ms": there.backward_s * 1e3,
            "optimizer_ms": there.optimizer_s * 1e3,
        }
        for layer, there in zip(seen["layers"], profile.layers, strict=True)
    ]
    words = f" (profile of {profile.seen})"
    return {**seen, "layers": layers, PROFILED: words}


def kept_profile(job: JobConfig) -> Profile | None:
    """The profile of this job on this machine's CPU, or on its GPU where the job computes on that,
    if one is kept. Raises InputError when the user's model file cannot be read."""
    here = job.cloud.provider == "local" and job.cluster.device == "cuda"
    key = content_key(
        job,
        device="cuda" if here else "cpu",
        machine=this_machine(with_gpus=here),
        torch_version=metadata.version("torch"),
    )
    return _kept(home() / FOLDER / f"{key}.json", limit_s=0.0, notes=[])


def content_key(job: JobConfig, *, device: str, machine: str, torch_version: str) -> str:
    """The name of a profile: a digest of all that its figures depend on. Raises InputError when
    the user's model file cannot be read."""
    content = {
        "schema": SCHEMA_VERSION,
        "release": __version__,
        "semantics": semantics(job, data_digest="", code=_code_of(job)).body(),
        "threads": job.cluster.threads,
        "device": device,
        "machine": machine,
        "torch": torch_version,
    }
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:24]


def _code_of(job: JobConfig) -> dict[str, str] | None:
    """What identifies what a job brings: its files alone, which is enough for times."""
    if not job.brings:
        return None
    files = [job.named(named.partition(":")[0]) for named in job.own.values()]
    if job.code and job.own:
        entry = Path(job.code) / read_manifest(Path(job.code)).entry_path
        files = [entry.with_name(file.name) for file in files]
    if job.model.is_hf:
        kept = job.named(job.model.hf_folder) if not job.code else Path(job.code) / HF_FOLDER
        files.append(kept / CONFIG)
    try:
        digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        return {"file": digests[0], **{f"file {i}": x for i, x in enumerate(digests[1:], start=1)}}
    except OSError as error:
        raise InputError.at(
            file=job.file,
            key=job.brings[0],
            value=error.filename,
            problem=f"cannot be read ({error.strerror})",
            remedy="correct the path",
        ) from error


def this_machine(*, with_gpus: bool) -> str:
    """This machine in words: its processor, the number of cores, and with `with_gpus` its GPUs."""
    words = [f"{_named(CPUS, 'model name') or platform.processor() or platform.machine()}"]
    words.append(f"{os.cpu_count() or 1} cores")
    if with_gpus and GPUS.is_dir():
        words += [_named(one / "information", "Model") for one in sorted(GPUS.iterdir())]
    return ", ".join(words)


def _named(file: Path, name: str) -> str:
    """The value of the first line `name: value`; empty without one."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")


def _kept(file: Path, *, limit_s: float, notes: list[str]) -> Profile | None:
    """The profile in the cache, if it was measured for at least as long as is asked for now."""
    try:
        profile = Profile.from_json(read_own(file, most=LONGEST))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{file} could not be used ({error}), and was measured again")
        return None
    return profile if profile.limit_s >= limit_s else None


def _keep(file: Path, profile: Profile, notes: list[str]) -> None:
    """Written whole or not at all. A profile that cannot be kept is shown all the same."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_new(file, profile.to_json().encode(), force=True)
    except OSError as error:
        notes.append(f"the profile was not kept: {file.parent}: {error.strerror}")
    except InputError as error:
        notes.append(f"the profile was not kept: {error}")
