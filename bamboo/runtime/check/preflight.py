"""`python -m bamboo.runtime.check.preflight`: checks model and data here, before any launch.

Standard input: the job as JSON. Argument: a folder to write into, or `data` when the model is not
to be checked. Standard output: one JSON object with the profile of every layer, the data's facts
and the numerics; or {"error": line} and exit code 2 when the job cannot be trained.

Rule: what would make bits depend on machines is refused here, by the layer's name. The whole model
runs two microbatches of two steps, layer by layer, each on its own as though a stage began and
ended there; of data of one's own also the smallest and the largest of the first step. The largest
gives the bytes, the mean of all gives the times (`timing`). The results of the last are compared
with those of layers that are built alone in another process (`alone`) and have never run before:
initial values, output, gradients, loss. Progress goes to standard error.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from bamboo.config.load import job_from_json
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import Dataset, MadeOfText, load_data
from bamboo.data.evaluation import EvalData, load_eval
from bamboo.data.sources import read_described
from bamboo.errors import InputError
from bamboo.models import BatchNorms, Workload, build_model, named_parameters, saved_buffers
from bamboo.models.build import code_taken_along
from bamboo.models.gpt import token_loss
from bamboo.quantities import count
from bamboo.runtime.check.alone import Alone
from bamboo.runtime.check.data_contract import check_data, looked_at
from bamboo.runtime.check.eval_contract import check_eval, own_facts
from bamboo.runtime.check.loss_contract import check_metrics, check_sum
from bamboo.runtime.check.one_layer import OneLayer, Pass
from bamboo.runtime.check.optimizer_contract import check_training
from bamboo.runtime.check.other_hashes import other_hashes
from bamboo.runtime.check.stdout_answer import one_answer, tell_work
from bamboo.runtime.check.timing import mean_of
from bamboo.runtime.check.whole import Whole
from bamboo.runtime.device.global_settings import changed, settings
from bamboo.runtime.device.time_limit import TookTooLong, lift, limit
from bamboo.runtime.optim.optimizer import Optimizer, optimizer_of
from bamboo.runtime.optim.state import layout_of
from bamboo.runtime.step.numerics import local_numerics, prepare
from bamboo.user_code.bundle import CODE_FOLDER, write_bundle
from bamboo.user_code.manifest import Manifest
from bamboo.user_code.recording import recording

SCHEMA_VERSION = 1
LIMIT_S = 270.0
"""Less than the asker waits."""
SMALLER = (
    "`bamboo plan JOB --gpu` models the layers without running them; or take less "
    "data.max_bytes or a smaller model"
)


def preflight(
    job: JobConfig, alone: Alone, room: Path | None = None, *, rehash: bool = False
) -> dict[str, Any]:
    """Profile and check a resolved job; see the top of the file for the result. `room`: a folder to
    write into, which the asker removes. `rehash`: make own data in a process of other hashes, too.

    Raises InputError for a model that cannot be read, cut, or repeated bit for bit, and for missing
    or empty data."""
    prepare(job.cluster)
    with recording() as recorder, ExitStack() as stack:
        before = settings()
        workload = build_model(job, works=tell_work)
        if (found := changed(before, at_load=True)) is not None:
            raise InputError(f"{job.file}: {job.model.model} {found[0]}; {found[1]}")
        _check_cut(job, workload)
        tell_work("making samples, twice")
        data, described = _data_of(job, workload)
        first_one, *others = check_data(job, data)
        rehashed = None
        own_eval = job.eval.every_steps and workload.eval_data is not None
        if rehash and (workload.data is not None or own_eval):
            asked = [] if workload.data is None else looked_at(job)
            rehashed = stack.enter_context(other_hashes(job, asked, room))
        tell_work(f"making {count(len(workload.layers), 'layer')}")
        whole = Whole(job, workload, data, looked_at=1 + len(others))
        _check_trained(job.file, whole.layers)
        layers = [(one.place.index, one.layer) for one in whole.layers]
        check_training(job, workload, {name: p.shape for name, p in named_parameters(layers)})
        optimizer = optimizer_of(job.train, workload)
        tell_work("running and timing each layer")
        first = whole.run(0, first_one)
        sizes, times = [[*map(_sizes, first)]], []
        for microbatch in others:
            passes = whole.run(0, microbatch)
            sizes.append([*map(_sizes, passes)])
            times.append(whole.time(passes))
        targets = whole.data.microbatch(0, 0)[1]
        check_sum(job.file, workload, first[-1].output, targets, job.train.microbatch)
        check_metrics(job.file, workload, first[-1].output, targets)
        evaluated = check_eval(job, workload, whole.layers)
        evaluation = own_facts(job, workload, evaluated)
        so_far = code_taken_along(job, workload, recorder)
        tell_work("comparing layers with those that another process builds alone")
        with _as_on_a_node(job, so_far, room) as (of_a_node, folder):
            alone.begin(of_a_node, folder=folder)
            whole.compare(alone, first, evaluation)
        times.append(whole.time(first))
        tell_work("evaluating once, and comparing data")
        if texts := [one.text for one in (data, evaluated) if one is not None and one.text]:
            largest = max(text.largest_token for text in texts)
            whole.check_largest_token(first[-1].output, largest)
        if rehashed is not None:
            rehashed.compare(data, evaluation)
        code = code_taken_along(job, workload, recorder)
    return {
        "schema_version": SCHEMA_VERSION,
        "layers": [
            _layer_facts(one, optimizer)
            | {what: max(seen[index][what] for seen in sizes) for what in sizes[0][index]}
            | asdict(mean_of([took[index] for took in times]))
            | {"synced": [asdict(one) | {"shape": [*one.shape]} for one in synced]}
            for index, (one, synced) in enumerate(
                zip(whole.layers, whole.parameters(), strict=True)
            )
        ],
        "tied": [[t.owner_layer, t.owner_name, t.user_layer, t.user_name] for t in workload.tied],
        **_facts(job, workload, data, evaluated, described),
        **code,
    }


def _layer_facts(one: OneLayer, optimizer: Optimizer) -> dict[str, Any]:
    """What is known of a layer once it is made."""
    index, layer = one.place.index, one.layer
    return {
        "index": index,
        "name": one.place.name,
        "parameters": sum(p.numel() for p in layer.parameters() if p.requires_grad),
        "parameter_bytes": _bytes(p for p in layer.parameters() if p.requires_grad),
        "frozen_bytes": _frozen_bytes(layer),
        "statistics": sum(x.numel() for x in BatchNorms([(index, layer)]).shapes),
        "types": {n: "BF16" for n, p in layer.named_parameters() if p.dtype == torch.bfloat16},
        "moment_bytes": layout_of([(index, layer)], optimizer.state).kept_bytes,
        "shapes": {name: list(p.shape) for name, p in layer.named_parameters()},
    }


def _sizes(one: Pass) -> dict[str, int]:
    return {
        "output_bytes": _bytes(one.output),
        "back_bytes": _bytes(g for g in one.given if g is not None),
        "activation_bytes": one.saved_bytes,
    }


@contextmanager
def _as_on_a_node(
    job: JobConfig, code: Mapping[str, Any], room: Path | None
) -> Iterator[tuple[JobConfig, Path]]:
    """The job as a node of the run has it, with a copy of the user's code, which is all that a node
    has of it; and an empty folder to work in."""
    with TemporaryDirectory(prefix="bamboo-look-", dir=room) as folder:
        work, copy = Path(folder) / "work", Path(folder) / CODE_FOLDER
        work.mkdir()
        if code and not job.code:
            write_bundle(Manifest.from_dict(code["code"]), copy)
            job = replace(job, code=str(copy))
        yield job, work


def of_data(job: JobConfig) -> dict[str, Any]:
    """The same for a resolved job's data and numerics alone, without a layer. Raises InputError
    when the data is missing or empty."""
    prepare(job.cluster)
    # Data of its own come with the model's file.
    workload = build_model(job, whole=True, works=tell_work)
    data, described = _data_of(job, workload)
    evaluated = load_eval(job, workload.data, workload.eval_data)
    return {
        "schema_version": SCHEMA_VERSION,
        "layers": [],
        "tied": [],
        **_facts(job, workload, data, evaluated, described),
    }


def _data_of(job: JobConfig, workload: Workload) -> tuple[Dataset, dict[str, Any]]:
    """The data, and what is said of its files, {} where it is no text."""
    if not isinstance(workload.data, MadeOfText | None):
        return load_data(job, own=workload.data), {}
    if job.data.is_prepared:
        data = load_data(job, own=workload.data)
        described = data.described_tokens | {"file": job.data.path}
    else:
        text, described = read_described(job)
        data = load_data(job, text, own=workload.data)
    _check_vocabulary(job, workload, data)
    return data, described


def _facts(
    job: JobConfig,
    workload: Workload,
    data: Dataset,
    evaluated: EvalData | None,
    described: dict[str, Any],
) -> dict[str, Any]:
    # Another loss is not compared with the entropy of a text.
    compared = data.text if workload.loss is token_loss else None
    return {
        "data": described,
        "data_digest": data.digest,
        "evaluated_on": "" if evaluated is None else evaluated.digest,
        "samples": data.samples,
        "unit": data.unit,
        "unigram_entropy_nats": compared and compared.unigram_entropy_nats,
        "numerics": local_numerics(job),
        "cores": len(os.sched_getaffinity(0)),
    }


def _check_cut(job: JobConfig, workload: Workload) -> None:
    """Check the cut of a user's model, whose layers are counted only now; for the built-in model
    the same is checked when the job is read."""
    count = len(workload.layers)
    for key, value, past in (
        ("cluster.stages", job.cluster.stages, job.cluster.stages > count),
        ("cluster.cut", list(job.cluster.cut), max(job.cluster.cut, default=0) >= count),
    ):
        if past:
            raise InputError.at(
                file=job.file,
                key=key,
                value=value,
                problem=f"goes past the model's {count} layer{'s' * (count > 1)}",
                remedy="take fewer stages or more layers"
                + ', or model.split = "trace", which cuts a whole module' * (count == 1),
            )


def _check_vocabulary(job: JobConfig, workload: Workload, data: Dataset) -> None:
    """Raises InputError for a token that the model does not know, where it says what it knows."""
    known = workload.vocabulary
    largest = -1 if data.text is None else data.text.largest_token
    if 0 < known <= largest:
        raise InputError(
            f"{job.file}: the tokens of the data go up to {largest}, and {job.model.model} knows "
            f"those below {known}; take the tokenizer that the model was made with, or another "
            "model"
        )


def _check_trained(file: str, layers: Iterable[OneLayer]) -> None:
    if not any(p.requires_grad for one in layers for p in one.layer.parameters()):
        raise InputError(
            f"{file}: all parameters of the model are frozen, so nothing would be trained; leave "
            "requires_grad of at least one as it is"
        )


def _frozen_bytes(layer: nn.Module) -> int:
    """Bytes of frozen parameters and saved buffers."""
    frozen = [parameter for parameter in layer.parameters() if not parameter.requires_grad]
    return _bytes([*frozen, *(buffer for _, buffer in saved_buffers(layer))])


def _bytes(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def main(arguments: list[str]) -> int:
    """The command; see the top of the file."""
    of_model = arguments != ["data"]
    room = Path(arguments[0]) if of_model and arguments else None
    limit(LIMIT_S)
    # Before there is a second thread, and before a line of the user's code is read.
    alone = Alone.fork() if of_model else None
    with one_answer(room) as answer:
        try:
            job = job_from_json(sys.stdin.read())
            # Code that a run took along was looked at so when it was launched, and a resume is
            # refused whose code or data are others.
            rehash = not job.code
            body = of_data(job) if alone is None else preflight(job, alone, room, rehash=rehash)
        except InputError as error:
            answer({"error": str(error)})
            return error.exit_code
        except TookTooLong as error:
            answer({"error": f"looking at model and data: {error}; {SMALLER}"})
            return InputError.exit_code
        finally:
            lift()
        answer(body)
    return 0


def forked(config: Mapping[str, str]) -> int:
    """The command in a fork of a process that has imported this; `room` is its argument."""
    return main([config["room"]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
