"""From a job's `[model]` to a Workload: the built-in GPT, or a user's own.

A user's file has a function `build(job)` that returns a Workload, or only its layers: an
nn.Sequential, or a list or tuple whose items are layers (nn.Module) or functions that make one. Its
own lines, `build` and each function start with the random numbers of a key of their own (`draws`),
whatever runs them and whatever ran before.
"""

import copy
import errno
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from torch import nn
from torch.nn.parameter import is_lazy

from bamboo.config.resolve import frozen_in
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import MadeOfText
from bamboo.errors import InputError
from bamboo.far_weights import FarWeights
from bamboo.models.contract import flaw_of, flaw_of_optimizer
from bamboo.models.draws import keyed_draws
from bamboo.models.gpt import gpt_workload, token_loss
from bamboo.models.workload import Workload
from bamboo.topology.keys import keyed_seed
from bamboo.user_code.bundle import DamagedCode, check_identity, load_bundle, read_manifest
from bamboo.user_code.guard import NotTakenAlong, unguarded
from bamboo.user_code.loading import SourceOnly, entry_of, load_entry
from bamboo.user_code.local import leave_data
from bamboo.user_code.manifest import Manifest
from bamboo.user_code.recording import Recorder
from bamboo.user_code.traces import placed_line_of

MOST_NAMED = 5
"""Functions of a user's file that an error names."""
_GIVEN = {"train.optimizer": "train", "train.schedule": "step, steps, train"}
"""Key -> what its function gets; all others get the job."""
USER_ERRORS = (Exception, SystemExit)
"""What the user's code may raise, including exceptions of its own. It is reported as wrong input,
with the place, and not as our fault."""


def build_model(
    job: JobConfig,
    weights: FarWeights | None = None,
    *,
    whole: bool = False,
    works: Callable[[str], None] = lambda what: None,
) -> Workload:
    """The job's workload, its layers as factories; nothing large is allocated for the built-in one.
    `weights`: those of a Hugging Face model, on a machine without the folder of its run. `whole`:
    who asks for the data alone has a module that would be traced as it is. `works` is told what is
    worked on.

    Raises InputError when a user's file cannot be read, has no such function, or returns anything
    but layers, an optimizer or a schedule.
    """
    leave_data(job.named(job.data.path) if "data.source" in job.own and job.data.path else None)
    if job.own:
        files = dict.fromkeys(Path(named.partition(":")[0]).name for named in job.own.values())
        works(f"importing {' and '.join(files)}")
    modules = _load(job) if job.own else {}
    works(f"building {job.model.model}")
    if job.model.is_hf:
        # transformers takes seconds to import, so only such a job does.
        made = importlib.import_module("bamboo.models.hf.workload").hf_workload(job, weights)
        workload = cast(Workload, made)
    else:
        workload = _layers(job, modules) if job.model.is_own else gpt_workload(job.model)
    for key, held in (
        ("train.optimizer", workload.optimizer),
        ("train.schedule", workload.schedule),
    ):
        if key in modules and held is not None:
            name = key.partition(".")[2]
            raise _refuse(job, f"the model has its own {name}, too", "leave out one of them", key)
    if "data.source" in modules:
        if not isinstance(workload.data, MadeOfText | None):
            remedy = "leave out one of them"
            raise _refuse(job, "the model has its own data, too", remedy, "data.source")
        workload = replace(workload, data=_called(job, modules, "data.source", job))
    if "eval.source" in modules:
        if workload.eval_data is not None:
            remedy = "leave out one of them"
            raise _refuse(job, "the model has its own eval_data, too", remedy, "eval.source")
        workload = replace(workload, eval_data=_called(job, modules, "eval.source", job))
    if "train.optimizer" in modules:
        made = _called(job, modules, "train.optimizer", job.train)
        if flaw := flaw_of_optimizer(made):
            raise _refuse(job, *flaw, "train.optimizer")
        workload = replace(workload, optimizer=made)
    if "train.schedule" in modules:
        workload = replace(workload, schedule=_function(job, modules, "train.schedule"))
    if job.model.is_traced and not whole:
        works(f"tracing what {job.model.model} returned")
        # torch.export takes seconds to import, so only such a job has this.
        traced = importlib.import_module("bamboo.models.traced.workload").traced
        workload = cast(Workload, traced(job, workload))
    return replace(workload, frozen=(*workload.frozen, *frozen_in(job)))


def data_beside(job: JobConfig, named: str) -> Any:
    """What a function of the user's gives, by its `file.py:function`, of data that are no part of
    the run. What the file imports is found in the run's code first; from now on this process may
    read what the run did not take along. Raises InputError."""
    unguarded()
    path, _, function = named.rpartition(":")
    name = "bamboo_user_source"
    loader = SourceOnly(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None, "its loader is given"
    module = importlib.util.module_from_spec(spec)
    sys.path.append(str(Path(path).parent))
    try:
        with keyed_draws(keyed_seed(job.train.seed, "load")):
            loader.exec_module(module)
        with keyed_draws(keyed_seed(job.train.seed, "init")):
            return getattr(module, function)(job)
    except USER_ERRORS as error:
        raise InputError(f"source {named}: {placed_line_of(error)}; correct {path}") from error


def _load(job: JobConfig) -> dict[str, ModuleType]:
    """Key -> module, of all that the job has of the user's own; later files are imported as the
    first one would import them, from its folder."""
    importlib.import_module("numpy.random")  # else the file may import it and draw without a key
    found: dict[str, ModuleType] = {}
    by_file: dict[str, ModuleType] = {}
    for key, named in job.own.items():
        path = job.named(named.partition(":")[0])
        try:
            with keyed_draws(keyed_seed(job.train.seed, "load")):
                if path.stem in by_file:
                    module = by_file[path.stem]
                elif by_file:
                    first = next(iter(by_file.values()))
                    package = first.__package__ or ""
                    module = importlib.import_module(f"{package}.{path.stem}".lstrip("."))
                else:
                    module = load_bundle(Path(job.code)) if job.code else load_entry(entry_of(path))
        except (NotTakenAlong, DamagedCode):
            raise  # the error says all that there is to say
        except USER_ERRORS as error:
            raise _of_user(job, key, error) from error
        found[key] = by_file[path.stem] = module
    return found


def _function(job: JobConfig, modules: Mapping[str, ModuleType], key: str) -> Callable[..., Any]:
    file, _, name = job.own[key].partition(":")
    try:
        made = getattr(modules[key], name)
    except AttributeError as error:
        functions = [one for one in vars(modules[key]).values() if inspect.isfunction(one)]
        of_file = modules[key].__name__
        there = [one.__name__ for one in functions if one.__module__ == of_file][:MOST_NAMED]
        remedy = f"write `def {name}({_GIVEN.get(key, 'job')}):` in it"
        remedy += f", or name what it has: {', '.join(there)}" if there else ""
        raise _refuse(job, f"{Path(file).name} has no {name!r}", remedy, key) from error
    except USER_ERRORS as error:
        raise _of_user(job, key, error) from error
    if not callable(made):
        raise _refuse(job, f"it is {type(made).__name__}", "name a function", key)
    return cast(Callable[..., Any], made)


def _called(job: JobConfig, modules: Mapping[str, ModuleType], key: str, argument: object) -> Any:
    """What the user's function makes; what it draws follows from its key."""
    try:
        with keyed_draws(keyed_seed(job.train.seed, "init")):
            return _function(job, modules, key)(argument)
    except (NotTakenAlong, DamagedCode, InputError):
        raise
    except USER_ERRORS as error:
        raise _of_user(job, key, error) from error


def _of_user(job: JobConfig, key: str, error: BaseException) -> InputError:
    return _refuse(job, placed_line_of(error), _remedy(job, key, error), key)


def _remedy(job: JobConfig, key: str, error: BaseException) -> str:
    remedy = f"correct {job.named(job.own[key].partition(':')[0])}"
    if isinstance(error, TypeError) and "Workload.__init__()" in str(error):
        return (
            "write it as Workload(layers=..., loss=...), by these names; it may have data, "
            "eval_data, metrics, tied, optimizer and schedule, too. Layers alone, without a "
            "Workload, are trained on text"
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"install {error.name}, or {remedy}"
    if job.code and isinstance(error, FileNotFoundError):
        return f"{remedy}: name the file by its whole path, as with Path(__file__).parent"
    return (job.code and remedy_of_file(error)) or remedy


def remedy_of_file(error: BaseException) -> str:
    """What to do about a file that a library opens below Python, so that no run takes it along; ""
    for another error."""
    frames = traceback.extract_tb(error.__traceback__)
    if any(frame.name == "from_pretrained" for frame in frames):
        return (
            "a run takes no files of weights along with code: make the module by its config, and "
            'begin with its values by train.init = "dcp:FOLDER" ("Begin with pretrained weights" '
            "in docs/your-own-model.md)"
        )
    if os.strerror(errno.ENOENT) in str(error):
        return (
            "a library has opened a file that Bamboo cannot see, so that the run did not take it "
            "along; read it with open() and hand its contents over, as to Tokenizer.from_str"
        )
    return ""


def _layers(job: JobConfig, modules: Mapping[str, ModuleType]) -> Workload:
    """The workload of a user's own model."""
    built = _called(job, modules, "model.model", job)
    if job.model.is_traced:
        built = _as_one(built)
    if not isinstance(built, Workload):
        return Workload(layers=_factories(job, built), loss=token_loss, prefixes=_prefixes(built))
    flaw = flaw_of(built)
    if flaw is not None:
        raise _refuse(job, *flaw)
    layers = _factories(job, built.layers)
    return replace(built, layers=layers, prefixes=built.prefixes or _prefixes(built.layers))


def _prefixes(built: object) -> tuple[str, ...]:
    """The names that the user gave to layers, as an nn.Sequential of an OrderedDict has them."""
    return tuple(f"{name}." for name in built._modules) if isinstance(built, nn.Sequential) else ()


def _as_one(built: object) -> object:
    """A whole module, or a function that makes one, as a list of one layer."""
    if isinstance(built, Workload):
        return replace(built, layers=cast(Any, _as_one(built.layers)))
    return [built] if isinstance(built, nn.Module) or callable(built) else built


def _factories(job: JobConfig, built: object) -> tuple[Callable[[], nn.Module], ...]:
    """One for each layer. Raises InputError for what is no list of layers."""
    if isinstance(built, nn.Sequential):
        built = tuple(built)
    if not isinstance(built, Sequence) or not built:
        if built is None:
            raise _refuse(job, "it returned nothing", "end it with `return`, and the layers")
        raise _refuse(
            job,
            f"it returned {type(built).__name__}",
            "return a list of layers, not an empty one, or a Workload"
            + ', or set model.split = "trace", which cuts a whole module'
            * isinstance(built, nn.Module),
        )
    _refuse_shared(job, [(i, item) for i, item in enumerate(built) if isinstance(item, nn.Module)])
    # One factory for each function, however often it is listed, so that layers are known to be
    # alike.
    made: dict[int, Callable[[], nn.Module]] = {}
    return tuple(made.setdefault(id(item), _factory(job, i, item)) for i, item in enumerate(built))


def code_taken_along(job: JobConfig, workload: Workload, recorder: Recorder) -> dict[str, Any]:
    """{"code": manifest} of all that a user's own code was built and run from just now, of a trace,
    and of a Hugging Face model; {} where the job has none of them. Raises InputError for code that
    a run cannot keep."""
    if not job.brings:
        return {}
    if not job.code:
        taken: Manifest | None = None
        if job.own:
            file = next(iter(job.own.values())).partition(":")[0]
            taken = recorder.manifest(entry_of(job.named(file)))
        if job.model.is_hf:
            taken = importlib.import_module("bamboo.models.hf.workload").along_with(job, taken)
        assert taken is not None, "a job that brings something"
        files = sorted((*taken.files, *workload.files), key=lambda file: file.path)
        taken = replace(taken, files=tuple(files))
        return {"code": taken.to_dict()}
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


def _refuse(job: JobConfig, problem: str, remedy: str, key: str = "model.model") -> InputError:
    line = " ".join(problem.split())
    return InputError.at(file=job.file, key=key, value=job.own[key], problem=line, remedy=remedy)
