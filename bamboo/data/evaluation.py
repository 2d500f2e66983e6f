"""What a run is evaluated on: the first samples of data of its own, in microbatches.

Rule: they are the same in every evaluation, in one order, and no step trains on their account.
"""

from collections.abc import Callable
from functools import cached_property

from bamboo.config.prepared import find_tokens
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import Data, Found, MadeOfText, Tensors, apart, checked, open_data
from bamboo.data.text import Text
from bamboo.data.tokens import Documents, Windows
from bamboo.errors import InputError
from bamboo.topology.keys import keyed_seed


class EvalData:
    """The samples of an evaluation, by global microbatch. The last microbatch may be smaller."""

    def __init__(self, data: Data, *, samples: int, microbatch: int, seed: int) -> None:
        self.digest = data.digest
        self.unit = data.unit
        self.text = data if isinstance(data, Text | Windows | Documents) else None
        """The same, where it is text or tokens."""
        self._data = data
        self._parts = [
            range(begin, min(begin + microbatch, samples))
            for begin in range(0, samples, microbatch)
        ]
        self._keys = [keyed_seed(seed, "evaluation", sample) for sample in range(samples)]
        """The key of each sample, which is the same in every evaluation."""
        self.samples = samples
        self.total = len(self._parts)
        """How many microbatches there are."""

    def microbatch(self, index: int) -> tuple[Tensors, Tensors]:
        """(inputs, targets) of the microbatch with this global index. Raises InputError where own
        data give anything but two tuples of dense tensors on the CPU."""
        part = self._parts[index]
        found = self._data.batch([*part], self._keys[part.start : part.stop])
        return found if self.text else apart(found)

    @cached_property
    def count(self) -> int:
        """What all samples weigh together: the loss is divided by that. Raises InputError for a
        weight that is no whole number from 0, or if there is nothing to divide by."""
        count: int | Callable[[int, int], int] = getattr(self._data, "count", 1)
        if not callable(count):
            return len(self._keys) * count
        weights = [count(sample, key) for sample, key in enumerate(self._keys)]
        if odd := [weight for weight in weights if not isinstance(weight, int) or weight < 0]:
            raise InputError(
                f"the data of [eval] count {odd[0]!r} for a sample; return a whole number from 0"
            )
        if not sum(weights):
            raise InputError(
                "the data of [eval] count 0 for all samples, and a loss is divided by that; "
                "take more eval.samples"
            )
        return sum(weights)


def load_eval(
    job: JobConfig,
    trained: Data | MadeOfText | None,
    own: Data | None,
    brought: Found | None = None,
) -> EvalData | None:
    """What a job is evaluated on; None where it asks for no evaluation. `trained` and `own`: the
    workload's `data` and `eval_data`, which a function of the user's has given where the job names
    one. `brought`: the text of the evaluation, if it was read elsewhere already, or the path of its
    token file on this machine. Without `eval.samples` it is all that the source has.

    Raises InputError where there are no such data, or fewer samples than the job asks for."""
    chosen = job.eval
    if not chosen.every_steps:
        return None
    of_text = isinstance(trained, MadeOfText | None)
    if not chosen.source or "eval.source" in job.own:
        if own is None and chosen.source:
            raise _at(job, "source", chosen.source, "returns None", "return data")
        if own is None:
            raise _at(
                job,
                "source",
                "",
                f"is empty, and {job.model.model} has no eval_data",
                "give Workload.eval_data" + ", or name a text" * of_text,
            )
        data: Data = checked(job, own, section="eval")
    elif own is not None or not of_text:
        problem = f"is of a text, and {job.model.model} brings data of its own"
        raise _at(job, "source", chosen.source, problem, "leave it out")
    else:
        data = _named_data(job, brought)
        if isinstance(trained, MadeOfText):
            data = trained.make(data)
    if chosen.samples > data.samples:
        raise _at(
            job,
            "samples",
            chosen.samples,
            f"is beyond the source, which has {data.samples:,}",
            f"take at most {data.samples}",
        )
    train = job.train
    samples = chosen.samples or data.samples
    return EvalData(data, samples=samples, microbatch=train.microbatch, seed=train.seed)


def check_eval_digest(job: JobConfig, data: EvalData | None) -> None:
    """Raise InputError unless the data are those that the run was launched with."""
    if data is not None and job.evaluated_on and data.digest != job.evaluated_on:
        raise InputError(
            f"{job.file}: [eval] has data with digest {data.digest[:12]} here, the run was made "
            f"for {job.evaluated_on[:12]}; give every node the same as at launch"
        )


def _named_data(job: JobConfig, brought: Found | None) -> Data:
    data = job.evaluated
    if brought is None and data.is_prepared:
        brought, _ = find_tokens(job, data, section="eval")
    return open_data(job, data, brought, section="eval")


def _at(job: JobConfig, key: str, value: object, problem: str, remedy: str) -> InputError:
    return InputError.at(
        file=job.file, key=f"eval.{key}", value=value, problem=problem, remedy=remedy
    )
