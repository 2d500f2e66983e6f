"""From a job's `[model]` to a Workload: the built-in GPT, or a user's own.

A user's file has a function `build(job)` that returns a Workload, or only its layers: an
nn.Sequential, or a list or tuple whose items are layers (nn.Module) or functions that make one. Its
own lines, `build` and each function start with the random numbers of a key of their own (`draws`),
whatever runs them and whatever ran before.
"""

import copy
import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.models.contract import flaw_of
from bamboo.models.draws import keyed_draws
from bamboo.models.gpt import gpt_workload, token_loss
from bamboo.models.workload import Workload
from bamboo.topology.keys import keyed_seed
from bamboo.user_code.bundle import DamagedCode, check_identity, load_bundle, read_manifest
from bamboo.user_code.guard import NotTakenAlong
from bamboo.user_code.loading import entry_of, load_entry
from bamboo.user_code.recording import Recorder
from bamboo.user_code.traces import placed_line_of

USER_ERRORS = (Exception, SystemExit)
"""What the user's code may raise, including exceptions of its own. It is reported as wrong input,
with the place, and not as our fault."""


def build_model(job: JobConfig) -> Workload:
    """The job's model as factories; nothing large is allocated for the built-in one.

    Raises InputError when a user's file cannot be read, has no such function, or returns anything
    but layers.
    """
    if not job.model.is_own:
        return gpt_workload(job.model)
    path = job.named(job.model.own_file)
    importlib.import_module("numpy.random")  # else the file may import it and draw without a key
    try:
        with keyed_draws(keyed_seed(job.train.seed, "load")):
            module = load_bundle(Path(job.code)) if job.code else load_entry(entry_of(path))
            build = getattr(module, job.model.own_function)
        with keyed_draws(keyed_seed(job.train.seed, "init")):
            # Layers that are made here take their initial values from this key.
            built = build(job)
    except (NotTakenAlong, DamagedCode):
        raise  # the error says all that there is to say
    except USER_ERRORS as error:
        remedy = f"correct {path}"
        if job.code and isinstance(error, FileNotFoundError):
            remedy = f"{remedy}: name the file by its whole path, as with Path(__file__).parent"
        raise _refuse(job, placed_line_of(error), remedy) from error
    if not isinstance(built, Workload):
        return Workload(layers=_factories(job, built), loss=token_loss)
    flaw = flaw_of(built)
    if flaw is not None:
        raise _refuse(job, *flaw)
    return replace(built, layers=_factories(job, built.layers))


def _factories(job: JobConfig, built: object) -> tuple[Callable[[], nn.Module], ...]:
    """One for each layer. Raises InputError for what is no list of layers."""
    if isinstance(built, nn.Sequential):
        built = tuple(built)
    if not isinstance(built, Sequence) or not built:
        raise _refuse(
            job, f"it returned {type(built).__name__}", "return a non-empty list of layers"
        )
    _refuse_shared(job, [(i, item) for i, item in enumerate(built) if isinstance(item, nn.Module)])
    # One factory for each function, however often it is listed, so that layers are known to be
    # alike.
    made: dict[int, Callable[[], nn.Module]] = {}
    return tuple(made.setdefault(id(item), _factory(job, i, item)) for i, item in enumerate(built))


def code_taken_along(job: JobConfig, recorder: Recorder) -> dict[str, Any]:
    """{"code": manifest} of all that a user's own model was built and run from just now, {} for the
    built-in model. Raises InputError for code that a run cannot keep."""
    if not job.model.is_own:
        return {}
    if not job.code:
        return {"code": recorder.manifest(entry_of(job.named(job.model.own_file))).to_dict()}
    manifest = read_manifest(Path(job.code))
    check_identity(Path(job.code), manifest.identity())
    return {"code": manifest.to_dict()}


def _refuse_shared(job: JobConfig, layers: Sequence[tuple[int, nn.Module]]) -> None:
    """Layers are copied apart, so a parameter that two of them share would silently become two."""
    seen: dict[int, str] = {}
    for index, layer in layers:
        places = {
            parameter.untyped_storage().data_ptr(): f"{type(layer).__name__}.{name} (item {index})"
            for name, parameter in layer.named_parameters()
            if not is_lazy(parameter) and parameter.numel()
        }
        for memory, place in places.items():
            if memory in seen:
                raise _refuse(
                    job,
                    f"{seen[memory]} and {place} are one parameter",
                    "make one in each layer, and name both in `tied` of a bamboo.models.Workload",
                )
        seen |= places


def _factory(job: JobConfig, index: int, item: object) -> Callable[[], nn.Module]:
    if isinstance(item, nn.Module):
        ready = item
        return lambda: copy.deepcopy(ready)
    if not callable(item):
        raise _refuse(
            job,
            f"item {index} is {type(item).__name__}",
            "give torch.nn.Module objects or functions that make one",
        )
    make = item

    def factory() -> nn.Module:
        made = make()
        if not isinstance(made, nn.Module):
            raise _refuse(
                job,
                f"the function at {index} made {type(made).__name__}",
                "make a torch.nn.Module",
            )
        return made

    return factory


def _refuse(job: JobConfig, problem: str, remedy: str) -> InputError:
    line = " ".join(problem.split())
    return InputError.at(
        file=job.file, key="model.model", value=job.model.model, problem=line, remedy=remedy
    )
