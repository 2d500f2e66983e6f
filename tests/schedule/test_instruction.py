"""Instructions print and parse as text, and nothing that is no instruction parses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.schedule.instruction import MICROBATCH_KINDS, STEP_KINDS, Instruction

counts = st.integers(min_value=0, max_value=10_000)


@st.composite
def instructions(draw: st.DrawFn) -> Instruction:
    kind = draw(st.sampled_from(sorted(MICROBATCH_KINDS | STEP_KINDS)))
    microbatch = draw(counts) if kind in MICROBATCH_KINDS else None
    return Instruction(stage=draw(counts), kind=kind, microbatch=microbatch)  # type: ignore[arg-type]


@given(instructions())
def test_every_instruction_comes_back_from_its_text(instruction: Instruction) -> None:
    assert Instruction.parse(str(instruction)) == instruction


@given(instructions(), instructions())
def test_the_text_is_the_identity(one: Instruction, other: Instruction) -> None:
    assert (str(one) == str(other)) == (one == other)


def test_the_forms_of_the_design() -> None:
    assert str(Instruction(stage=2, kind="F", microbatch=0)) == "2F0"
    assert str(Instruction(stage=3, kind="FR", microbatch=1)) == "3FR1"
    assert str(Instruction(stage=1, kind="S")) == "1S"
    assert Instruction.parse("3FR1").short == "FR1"
    assert Instruction.parse("1S").short == "S"


@pytest.mark.parametrize(
    "text", ["", "F0", "2", "2F", "2S1", "2Q0", "02F0", "2F00", "2F0 ", "-1F0", "2f0", "٢F0"]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Instruction.parse(text)


def test_a_forward_without_microbatch_and_a_negative_stage_are_refused() -> None:
    with pytest.raises(ValueError, match="needs a microbatch"):
        Instruction(stage=0, kind="F")
    with pytest.raises(ValueError, match="count from 0"):
        Instruction(stage=-1, kind="S")
