"""What an evaluation must be: the same when it is done again, and without a trace in any layer.

Rule: before a launch its first and its last microbatch go through the whole model, each twice. What
the user's own data are is compared with what other processes make of them.
"""

from collections.abc import Mapping, Sequence

from bamboo.config.check_eval import LOSS
from bamboo.config.resolve import eval_total
from bamboo.config.tree import JobConfig
from bamboo.data.evaluation import EvalData, load_eval
from bamboo.errors import InputError
from bamboo.models import Tensors, Workload, evaluate, measured, unpacked
from bamboo.models.build import USER_ERRORS
from bamboo.runtime.check.one_layer import OneLayer, checksum, remedy_of
from bamboo.runtime.device.staging import place_of
from bamboo.user_code.traces import placed_line_of


def check_eval(job: JobConfig, workload: Workload, layers: Sequence[OneLayer]) -> EvalData | None:
    """The data of the job's evaluations; None where it asks for none. Raises InputError where they
    fail, a layer does not run in eval mode or keeps a trace of it, or the metric that may end the
    run is none that is measured."""
    data = load_eval(job, workload.data, workload.eval_data)
    if data is None:
        return None
    names: set[str] = set()
    for index in dict.fromkeys((0, eval_total(job) - 1)):
        first, again = (_once(job, workload, layers, data, index) for _ in range(2))
        if repr(first) != repr(again):  # a number may be NaN
            raise InputError(
                f"{job.file}: microbatch {index} of [eval] gives other numbers when it is asked "
                "again; make a sample of its number and its key alone, and keep nothing in a layer"
            )
        names.update(first)
    wanted = job.eval.stop.metric
    if wanted and wanted not in {LOSS, *names}:
        raise InputError.at(
            file=job.file,
            key="eval.stop.metric",
            value=wanted,
            problem="is no metric of the model",
            remedy=f"take one of {', '.join((LOSS, *sorted(names - {LOSS})))}",
        )
    return data


def own_facts(job: JobConfig, workload: Workload, data: EvalData | None) -> dict[str, str]:
    """By name what evaluations are of, where the data are the user's own: digest, counts, and
    checksums of the first and the last microbatch. Raises what the data raise."""
    if data is None or workload.eval_data is None:
        return {}
    facts = {"samples": str(data.samples), "digest": repr(data.digest), "count": str(data.count)}
    for index in dict.fromkeys((0, eval_total(job) - 1)):
        inputs, targets = data.microbatch(index)
        facts[f"microbatch {index}"] = f"of checksum {checksum(*inputs, *targets)}"
    return facts


def check_facts(
    job: JobConfig, here: Mapping[str, str], there: Mapping[str, str], where: str, remedy: str
) -> None:
    """Raises InputError unless another process, described by `where`, has made the same data."""
    for name, value in here.items():
        if there.get(name) != value:
            raise InputError(
                f"{job.file}: the data of [eval] have {name} {there.get(name)} {where}, and "
                f"{value} here; {remedy}"
            )


def _once(
    job: JobConfig, workload: Workload, layers: Sequence[OneLayer], data: EvalData, index: int
) -> dict[str, tuple[float, ...]]:
    """What one microbatch gives: the loss, and sum and count of each metric."""
    place = place_of(job.cluster)
    try:
        found = data.microbatch(index)
        counted = data.count
    except InputError as error:
        raise InputError(f"{job.file}: {error}") from error
    except USER_ERRORS as error:
        raise InputError(f"{job.file}: the data of [eval] fail: {placed_line_of(error)}") from error
    inputs, targets = (tuple(t.to(place) for t in part) for part in found)
    for one in layers:
        inputs = _through(job, one, inputs, index)
    try:
        loss = workload.loss(unpacked(inputs), unpacked(targets)).item()
        pairs = measured(workload, inputs, targets)
    except USER_ERRORS as error:
        raise InputError(
            f"{job.file}: loss and metrics cannot take what [eval] gives: {placed_line_of(error)}; "
            "give it targets as those of the training"
        ) from error
    return {LOSS: (loss, counted), **{name: tuple(x.tolist()) for name, x in pairs.items()}}


def _through(job: JobConfig, one: OneLayer, x: Tensors, microbatch: int) -> Tensors:
    before, train = one.initial(), job.train
    layers = [(one.place.index, one.layer)]
    try:
        y = evaluate(layers, x, seed=train.seed, microbatch=microbatch, precision=train.precision)
    except USER_ERRORS as error:
        raise one.place.refuse(
            f"does not run in eval mode: {placed_line_of(error)}", remedy_of(error)
        ) from error
    after = one.initial()
    if changed := [name for name in {**before, **after} if before.get(name) != after.get(name)]:
        raise one.place.refuse(
            f"changes its {changed[0]!r} in eval mode", "leave parameters and buffers as they are"
        )
    return y
