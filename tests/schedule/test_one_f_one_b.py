"""The 1F1B programs: golden text, bounds, and the order that accumulation relies on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.schedule.one_f_one_b import Program, forwards_first, most_in_flight, one_f_one_b
from tests.schedule.golden import check_golden

stages = st.integers(min_value=1, max_value=12)
microbatches = st.integers(min_value=1, max_value=24)


@pytest.mark.parametrize(("p", "m"), [(4, 8), (4, 2), (2, 1), (3, 3)])
def test_programs_as_text(p: int, m: int) -> None:
    text = "".join(f"{program}\n" for program in one_f_one_b(p, m))
    check_golden(f"program_p{p}_m{m}.txt", text)


@given(stages, microbatches)
def test_every_program_comes_back_from_its_text(p: int, m: int) -> None:
    for program in one_f_one_b(p, m):
        assert Program.parse(str(program)) == program


@given(stages, microbatches)
def test_each_backward_follows_its_forward_in_microbatch_order(p: int, m: int) -> None:
    for program in one_f_one_b(p, m):
        order = program.instructions
        forwards = [i.microbatch for i in order if i.kind == "F"]
        backwards = [i.microbatch for i in order if i.kind == "B"]
        assert forwards == backwards == list(range(m))
        at = {str(i): n for n, i in enumerate(order)}
        assert all(at[f"{program.stage}F{k}"] < at[f"{program.stage}B{k}"] for k in range(m))
        assert program.microbatches == m


@given(stages, microbatches)
def test_in_flight_microbatches_are_bounded(p: int, m: int) -> None:
    for program in one_f_one_b(p, m):
        depth = peak = 0
        for instruction in program.instructions:
            depth += 1 if instruction.kind == "F" else -1
            peak = max(peak, depth)
        assert peak == most_in_flight(program.stage, p, m)
        last = program.stage == p - 1
        assert peak == min(p - program.stage + (0 if last else 1), m)


@given(stages, microbatches)
def test_the_parts_are_what_their_names_say(p: int, m: int) -> None:
    for program in one_f_one_b(p, m):
        assert {i.kind for i in program.warm_up} <= {"F"}
        assert {i.kind for i in program.cool_down} <= {"B"}
        assert len(program.warm_up) == len(program.cool_down)
        assert len(program.warm_up) == forwards_first(program.stage, p, m)
        assert [i.kind for i in program.steady] == ["F", "B"] * (len(program.steady) // 2)


@pytest.mark.parametrize(
    "text",
    [
        "0F0 0B0",
        " | | ",
        "0F0 | 1F1 0B0 | 0B1",
        " | 0B0 0F0 | ",
        " | 0F0 0FR0 0B0 | ",
        " | 0F1 0B1 0F0 0B0 | ",
        " | 0F0 0B0 0B0 | ",
        "0F0 |  | ",
    ],
)
def test_text_that_is_no_whole_program_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Program.parse(text)


@pytest.mark.parametrize(("p", "m"), [(0, 1), (1, 0)])
def test_an_empty_schedule_is_refused(p: int, m: int) -> None:
    with pytest.raises(ValueError, match="at least 1 stage"):
        one_f_one_b(p, m)
