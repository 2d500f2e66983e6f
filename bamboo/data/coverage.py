"""Was each sample of each data epoch used exactly once? Pure: records in, the first fault out.

Rule: nothing is believed of a plan. A step used what its record names. The record is compared with
the whole global batch, and then the samples are counted in order, data epoch by data epoch.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bamboo.telemetry.samples import SamplesRecord, ranges_text, samples_digest

MOST_NAMED = 4
"""How many samples a sentence names before it says how many more there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first thing that is not as it must be."""

    step: int
    kind: str
    """`no record`, `missing`, `repeated`, `foreign` or `other samples`."""
    microbatch: int | None = None
    sample: int | None = None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The totals of a run's records."""

    steps: int
    """Committed steps that were asked for."""
    microbatches: int
    samples: int
    """Samples that those steps must have used, with repetition over data epochs."""
    data_samples: int
    """Samples in one data epoch."""
    undone_steps: int
    """Recorded steps beyond the committed ones, which a restore took back and no node did again."""
    difference: Difference | None

    @property
    def whole_data_epochs(self) -> int:
        return self.samples // self.data_samples

    @property
    def samples_of_last(self) -> int:
        """Samples used of the last data epoch, which the run did not finish."""
        return self.samples % self.data_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressing:
    """The addresses of the data, which tell what every node must have read."""

    microbatches: int
    """Microbatches in the global batch of a step."""
    microbatch: int
    """Samples in a microbatch."""
    data_samples: int
    samples_of: Callable[[int, int], Sequence[int]]
    """Samples of (step, global microbatch)."""

    def step(self, step: int) -> list[int]:
        """The samples of a whole step, in order of its microbatches."""
        return [s for m in range(self.microbatches) for s in self.samples_of(step, m)]


def check_coverage(
    records: Iterable[SamplesRecord],
    *,
    steps: int,
    data: Addressing,
    told: Callable[[int], None] = lambda step: None,
) -> Coverage:
    """Check the records of a run against its data; `told` is called with each step that is right.

    Every step below `steps` must be recorded, with each microbatch of the global batch once and the
    samples that the data has there. A step that is recorded several times counts once, and each of
    its records must be right. Then no sample may come twice in a data epoch. Since a whole data
    epoch has as many places as samples, each sample has come exactly once.
    """
    by_step: dict[int, list[SamplesRecord]] = defaultdict(list)
    for record in records:
        by_step[record.step].append(record)
    counted = _Counted(data)
    difference = None
    for step in range(steps):
        difference = _fault_of_step(by_step.get(step, []), step, steps, data) or counted.fault(step)
        if difference is not None:
            break
        told(step)
    return Coverage(
        steps=steps,
        microbatches=steps * data.microbatches,
        samples=steps * data.microbatches * data.microbatch,
        data_samples=data.data_samples,
        undone_steps=sum(1 for step in by_step if step >= steps),
        difference=difference,
    )


def _fault_of_step(
    records: Sequence[SamplesRecord], step: int, steps: int, data: Addressing
) -> Difference | None:
    if not records:
        return Difference(
            step=step,
            kind="no record",
            sentence=f"step {step}: nothing says what it used; {_samples(data.step(step))} missing",
        )
    for record in dict.fromkeys(records):
        found = _fault_of_microbatches(record, data) or _fault_of_digest(record, steps, data)
        if found is not None:
            return found
    return None


def _fault_of_microbatches(record: SamplesRecord, data: Addressing) -> Difference | None:
    step, times = record.step, Counter(record.microbatches)
    whole = f"recorded {ranges_text(record.microbatches) or 'none'} of 0-{data.microbatches - 1}"
    for m in range(data.microbatches):
        if times[m] == 1:
            continue
        samples = data.samples_of(step, m)
        kind = "repeated" if times[m] else "missing"
        said = f"used {times[m]} times" if times[m] else "missing"
        return Difference(
            step=step,
            kind=kind,
            microbatch=m,
            sample=samples[0],
            sentence=f"step {step}: microbatch {m} ({_samples(samples)}) is {said}: {whole}",
        )
    foreign = min((m for m in times if not 0 <= m < data.microbatches), default=None)
    if foreign is None:
        return None
    return Difference(
        step=step,
        kind="foreign",
        microbatch=foreign,
        sentence=f"step {step}: microbatch {foreign} is not of this step: {whole}",
    )


def _fault_of_digest(record: SamplesRecord, steps: int, data: Addressing) -> Difference | None:
    own = data.step(record.step)
    if record.digest == samples_digest(own):
        return None
    # If they are those of another step, the error says which step's samples were used instead.
    whose = next((s for s in range(steps) if record.digest == samples_digest(data.step(s))), None)
    instead = data.step(whose) if whose is not None else []
    there = frozenset(instead)
    missing = [sample for sample in own if sample not in there] or own
    said = "its microbatches held others"
    if whose is not None:
        said = f"its microbatches held those of step {whose} ({_samples(instead)})"
    return Difference(
        step=record.step,
        kind="other samples",
        sample=missing[0],
        sentence=f"step {record.step}: {_samples(missing)} missing: {said}",
    )


class _Counted:
    """The place of each sample in the present data epoch."""

    def __init__(self, data: Addressing) -> None:
        self._data = data
        self._place = 0
        self._used = array("q")

    def fault(self, step: int) -> Difference | None:
        """Count the samples of a step; steps must come in order."""
        data = self._data
        for m in range(data.microbatches):
            for sample in data.samples_of(step, m):
                data_epoch, in_it = divmod(self._place, data.data_samples)
                if in_it == 0:
                    self._used = array("q", [-1]) * data.data_samples
                if not 0 <= sample < data.data_samples:
                    return self._difference(
                        step, "foreign", m, sample, f"is none of the {data.data_samples} there are"
                    )
                before = self._used[sample]
                if before >= 0:
                    at, rest = divmod(before, data.microbatches * data.microbatch)
                    first = f"step {at}, microbatch {rest // data.microbatch}"
                    said = f"is used twice in data epoch {data_epoch}: before in {first}"
                    return self._difference(step, "repeated", m, sample, said)
                self._used[sample] = self._place
                self._place += 1
        return None

    @staticmethod
    def _difference(step: int, kind: str, microbatch: int, sample: int, said: str) -> Difference:
        return Difference(
            step=step,
            kind=kind,
            microbatch=microbatch,
            sample=sample,
            sentence=f"step {step}, microbatch {microbatch}: sample {sample} {said}",
        )


def _samples(samples: Sequence[int]) -> str:
    """`sample 3`, `samples 3, 9, 4`, `samples 3, 9, 4, 1 and 12 more`."""
    named = ", ".join(map(str, samples[:MOST_NAMED]))
    more = len(samples) - MOST_NAMED
    return f"sample{'s' if len(samples) != 1 else ''} {named}" + (
        f" and {more} more" if more > 0 else ""
    )
