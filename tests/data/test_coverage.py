"""The check of what a run used: true records pass, every planted fault is found and named.

The faults are drawn: a run of any shape, a step of it, and what is done to its record.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bamboo.data.coverage import Addressing, Coverage, Difference, check_coverage
from bamboo.data.dataset import Dataset
from bamboo.data.text import Text
from bamboo.telemetry.samples import SamplesRecord, used


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that went well: its data and what its nodes recorded."""

    data: Addressing
    steps: int
    records: tuple[SamplesRecord, ...]

    def check(self, records: Sequence[SamplesRecord]) -> Coverage:
        return check_coverage(records, steps=self.steps, data=self.data)

    def fault(self, records: Sequence[SamplesRecord]) -> Difference:
        found = self.check(records).difference
        assert found is not None
        return found

    def with_record(self, step: int, record: SamplesRecord) -> list[SamplesRecord]:
        return [record if r.step == step else r for r in self.records]

    def recorded(self, step: int, microbatches: Sequence[int]) -> SamplesRecord:
        """What a node would record if its step summed these losses."""
        said = used(microbatches, lambda m: self.data.samples_of(step, m))
        return SamplesRecord.of_step(step, said)


def a_run(
    *, samples: int = 37, microbatches: int = 4, microbatch: int = 2, steps: int = 9, seed: int = 1
) -> Run:
    text = bytearray(i % 251 for i in range(samples * 4 + 1))
    batch = microbatches * microbatch
    dataset = Dataset(Text(text, context=4), batch=batch, microbatch=microbatch, seed=seed)
    data = Addressing(
        microbatches=microbatches,
        microbatch=microbatch,
        data_samples=samples,
        samples_of=dataset.sample_indices,
    )
    run = Run(data=data, steps=steps, records=())
    records = tuple(run.recorded(s, range(microbatches)) for s in range(steps))
    return replace(run, records=records)


runs = st.builds(
    a_run,
    samples=st.integers(1, 60),
    microbatches=st.integers(1, 6),
    microbatch=st.integers(1, 4),
    steps=st.integers(1, 14),
    seed=st.integers(0, 5),
)


@given(runs, st.randoms(use_true_random=False))
def test_a_good_run_is_good_in_any_order_and_however_often_it_is_told(
    run: Run, chance: random.Random
) -> None:
    told = [*run.records, *chance.choices(run.records, k=5)]
    chance.shuffle(told)
    found = run.check(told)
    assert found.difference is None
    used_samples = run.steps * run.data.microbatches * run.data.microbatch
    assert (found.steps, found.samples) == (run.steps, used_samples)
    assert found.whole_data_epochs * run.data.data_samples + found.samples_of_last == used_samples
    assert 0 <= found.samples_of_last < run.data.data_samples


@given(runs, st.data())
def test_a_step_without_a_record_is_named(run: Run, draw: st.DataObject) -> None:
    step = draw.draw(st.integers(0, run.steps - 1))
    found = run.fault([r for r in run.records if r.step != step])
    assert (found.step, found.kind) == (step, "no record")


@given(runs, st.data())
def test_a_dropped_microbatch_is_named(run: Run, draw: st.DataObject) -> None:
    step = draw.draw(st.integers(0, run.steps - 1))
    lost = draw.draw(st.integers(0, run.data.microbatches - 1))
    rest = [m for m in range(run.data.microbatches) if m != lost]
    found = run.fault(run.with_record(step, run.recorded(step, rest)))
    assert (found.step, found.kind, found.microbatch) == (step, "missing", lost)
    assert found.sample == run.data.samples_of(step, lost)[0]
    assert f"step {step}: microbatch {lost} (sample" in found.sentence


@given(runs, st.data())
def test_a_repeated_microbatch_is_named(run: Run, draw: st.DataObject) -> None:
    step = draw.draw(st.integers(0, run.steps - 1))
    twice = draw.draw(st.integers(0, run.data.microbatches - 1))
    all_and_one = [*range(run.data.microbatches), twice]
    found = run.fault(run.with_record(step, run.recorded(step, all_and_one)))
    assert (found.step, found.kind, found.microbatch) == (step, "repeated", twice)


@given(runs, st.data())
def test_a_microbatch_in_the_place_of_another_is_named(run: Run, draw: st.DataObject) -> None:
    count = run.data.microbatches
    step = draw.draw(st.integers(0, run.steps - 1))
    lost = draw.draw(st.integers(0, count - 1))
    other = draw.draw(st.integers(0, count + 3))
    assume(other != lost)
    numbers = [other if m == lost else m for m in range(count)]
    found = run.fault(run.with_record(step, run.recorded(step, numbers)))
    assert found.step == step
    # Named is the first that is wrong: the one that is missing, or the one that is there twice.
    named = min(lost, other) if other < count else lost
    assert found.microbatch == named
    assert found.kind == ("missing" if named == lost else "repeated")


@given(runs, st.data())
def test_a_microbatch_too_many_is_named(run: Run, draw: st.DataObject) -> None:
    step = draw.draw(st.integers(0, run.steps - 1))
    more = run.data.microbatches + draw.draw(st.integers(0, 3))
    numbers = [*range(run.data.microbatches), more]
    found = run.fault(run.with_record(step, run.recorded(step, numbers)))
    assert (found.step, found.kind, found.microbatch) == (step, "foreign", more)


@given(runs, st.data())
def test_two_steps_that_used_each_others_samples_are_named(run: Run, draw: st.DataObject) -> None:
    steps = st.integers(0, run.steps - 1)
    one, other = sorted((draw.draw(steps), draw.draw(steps)))
    digests = {step: run.records[step].digest for step in (one, other)}
    assume(digests[one] != digests[other])
    swapped = [
        replace(r, digest=digests[other if r.step == one else one]) if r.step in digests else r
        for r in run.records
    ]
    found = run.fault(swapped)
    assert (found.step, found.kind) == (one, "other samples")
    assert found.sample in run.data.step(one)
    assert "its microbatches held those of step" in found.sentence


def test_the_first_of_several_faults_is_named() -> None:
    run = a_run()
    records = [r for r in run.records if r.step not in (4, 7)]
    assert run.fault(records).sentence == (
        "step 4: nothing says what it used; samples "
        f"{', '.join(map(str, run.data.step(4)[:4]))} and 4 more missing"
    )


def test_samples_of_nowhere_are_named_by_the_step_alone() -> None:
    run = a_run()
    found = run.fault(run.with_record(2, replace(run.records[2], digest="0" * 16)))
    assert (found.step, found.kind, found.sample) == (2, "other samples", run.data.step(2)[0])
    assert found.sentence.endswith("missing: its microbatches held others")


@pytest.mark.parametrize("wrong_first", [False, True])
def test_a_step_that_was_told_in_two_ways_is_a_difference(wrong_first: bool) -> None:
    run = a_run()
    wrong = run.recorded(5, (0, 1, 3))
    told = [wrong, *run.records] if wrong_first else [*run.records, wrong]
    found = run.fault(told)
    assert (found.step, found.kind, found.microbatch) == (5, "missing", 2)


def test_steps_that_were_taken_back_are_counted_and_used_nothing() -> None:
    run = a_run(steps=9)
    found = check_coverage(run.records, steps=7, data=run.data)
    assert found.difference is None
    assert (found.steps, found.samples, found.undone_steps) == (7, 56, 2)


def test_whole_and_begun_data_epochs_are_told_apart() -> None:
    found = a_run(samples=20, steps=9).check(a_run(samples=20, steps=9).records)
    assert (found.whole_data_epochs, found.samples_of_last, found.data_samples) == (3, 12, 20)


def faulty(run: Run, step: int, microbatch: int, samples: Sequence[int]) -> Run:
    """The same run on data that give other samples at one place, to nodes and checker alike."""
    data = replace(
        run.data,
        samples_of=lambda s, m: (
            samples if (s, m) == (step, microbatch) else run.data.samples_of(s, m)
        ),
    )
    made = replace(run, data=data)
    records = tuple(made.recorded(s, range(data.microbatches)) for s in range(run.steps))
    return replace(made, records=records)


def test_data_that_give_a_sample_twice_in_a_data_epoch_are_found_though_all_agree() -> None:
    good = a_run(samples=37)
    again = good.data.samples_of(1, 3)[1]
    run = faulty(good, 3, 2, [again, good.data.samples_of(3, 2)[1]])
    found = run.fault(run.records)
    assert (found.step, found.kind, found.microbatch, found.sample) == (3, "repeated", 2, again)
    assert found.sentence == (
        f"step 3, microbatch 2: sample {again} is used twice in data epoch 0: "
        "before in step 1, microbatch 3"
    )


def test_the_same_sample_in_the_next_data_epoch_is_no_repetition() -> None:
    run = a_run(samples=8, steps=3)
    assert sorted(run.data.step(0)) == sorted(run.data.step(1)) == list(range(8))
    assert run.check(run.records).difference is None


def test_a_sample_that_the_data_do_not_have_is_found() -> None:
    run = faulty(a_run(samples=37), 2, 1, [37, 0])
    found = run.fault(run.records)
    assert (found.step, found.kind, found.microbatch, found.sample) == (2, "foreign", 1, 37)
    assert "is none of the 37 there are" in found.sentence
