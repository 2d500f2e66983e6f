"""The picker: what unblocks others first, and no dependence on order."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.schedule.instruction import MICROBATCH_KINDS, STEP_KINDS, Instruction
from bamboo.schedule.picker import ReadyOp, next_op
from bamboo.topology.slots import Slot


def op(text: str, *, step: int = 0, recovery: bool = False, pipeline: int = 0) -> ReadyOp:
    instruction = Instruction.parse(text)
    slot = Slot(pipeline=pipeline, stage=instruction.stage)
    return ReadyOp(slot=slot, step=step, instruction=instruction, recovery=recovery)


LADDER = [
    [op("0X"), op("1S", recovery=True)],
    [op("0B3")],
    [op("1F0", recovery=True)],
    [op("0F4")],
    [op("1B0", recovery=True), op("1F1", recovery=True)],
    [op("1FR0")],
    [op("1BR0")],
    [op("1R")],
]


def test_the_ladder_of_priorities() -> None:
    for high, rung in enumerate(LADDER):
        for low in LADDER[high + 1 :]:
            for better in rung:
                for worse in low:
                    assert next_op([worse, better]) == better
                    assert next_op([better, worse]) == better


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (op("0F5", step=3), op("0F0", step=4)),
        (op("3B7"), op("0B0", pipeline=1)),
        (op("0B7"), op("1B0")),
        (op("1B7", recovery=True), op("1F1", recovery=True)),
        (op("1FR0"), op("1FR1")),
    ],
)
def test_ties(better: ReadyOp, worse: ReadyOp) -> None:
    assert next_op([worse, better]) == better
    assert next_op([better, worse]) == better


def test_nothing_ready_is_none() -> None:
    assert next_op([]) is None


@st.composite
def ready_ops(draw: st.DrawFn) -> ReadyOp:
    kind = draw(st.sampled_from(sorted(MICROBATCH_KINDS | STEP_KINDS)))
    microbatch = draw(st.integers(0, 3)) if kind in MICROBATCH_KINDS else ""
    return op(
        f"{draw(st.integers(0, 2))}{kind}{microbatch}",
        step=draw(st.integers(0, 2)),
        recovery=draw(st.booleans()),
        pipeline=draw(st.integers(0, 1)),
    )


@given(
    st.lists(ready_ops(), max_size=12, unique=True).flatmap(
        lambda ops: st.tuples(st.just(ops), st.permutations(ops))
    )
)
def test_the_choice_does_not_depend_on_the_order(
    given_ops: tuple[list[ReadyOp], list[ReadyOp]],
) -> None:
    one, other = given_ops
    choice, again = next_op(one), next_op(other)
    assert (choice is None) == (again is None) == (not one)
    if choice is not None and again is not None:
        assert choice._replace(recovery=False) == again._replace(recovery=False)


def test_a_choice_among_ten_takes_microseconds() -> None:
    ready = [op(f"{i % 2}B{9 - i}") for i in range(10)]
    best_s = float("inf")
    for _ in range(20):
        start_s = time.perf_counter()
        for _ in range(100):
            next_op(ready)
        best_s = min(best_s, (time.perf_counter() - start_s) / 100)
    assert best_s < 50e-6
