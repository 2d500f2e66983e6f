"""What each mode runs ahead, and which redundant forwards fit which gap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.schedule.one_f_one_b import one_f_one_b
from bamboo.schedule.redundancy import Gap, ahead_of_need, gap_budget, has_replica


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("off", ""),
        ("peer", ""),
        ("stash", ""),
        ("gap", "3FR0 3FR1"),
        ("eager", "3FR0 3FR1"),
        ("full", "3FR0 3FR1 3BR0 3BR1"),
    ],
)
def test_what_a_mode_runs_ahead(mode: str, text: str) -> None:
    assert " ".join(map(str, ahead_of_need(mode, stage=3, microbatches=2))) == text
    assert has_replica(mode) == (mode not in ("off", "peer"))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="'some' is no redundancy; take one of off, stash"):
        has_replica("some")


def budget_of_stage_1(gaps: list[Gap], slack_s: float = 0.0) -> dict[int, int]:
    """Stage 1 of 4 stages and 8 microbatches hosts: 1F0 1F1 | 1F2 1B0 1F3 1B1 …"""
    return gap_budget(
        gaps=gaps,
        forward_s=0.02,
        microbatches=8,
        host=one_f_one_b(4, 8)[1],
        slack_s=slack_s,
    )


def test_a_gap_takes_as_many_as_fit_and_no_more() -> None:
    assert budget_of_stage_1([Gap(cursor=3, length_s=0.0599)]) == {3: 2}
    assert budget_of_stage_1([Gap(cursor=3, length_s=0.06)]) == {3: 3}
    assert budget_of_stage_1([Gap(cursor=3, length_s=0.06)], slack_s=0.001) == {3: 2}
    assert budget_of_stage_1([Gap(cursor=3, length_s=0.01)]) == {}


def test_only_forwards_with_an_input_count() -> None:
    assert budget_of_stage_1([Gap(cursor=0, length_s=1.0)]) == {}
    assert budget_of_stage_1([Gap(cursor=1, length_s=1.0)]) == {1: 1}
    both = [Gap(cursor=3, length_s=1.0), Gap(cursor=1, length_s=1.0)]
    assert budget_of_stage_1(both) == {1: 1, 3: 2}


def test_inputs_from_the_data_are_there_at_any_time() -> None:
    gaps = [Gap(cursor=0, length_s=0.05), Gap(cursor=4, length_s=1.0)]
    assert gap_budget(gaps=gaps, forward_s=0.02, microbatches=5, host=None) == {0: 2, 4: 3}


@given(
    st.lists(st.tuples(st.integers(0, 16), st.floats(0, 0.3)), max_size=8),
    st.floats(0.001, 0.1),
    st.floats(0, 0.02),
)
def test_a_budget_never_exceeds_gap_input_or_step(
    waits: list[tuple[int, float]], forward_s: float, slack_s: float
) -> None:
    host = one_f_one_b(4, 8)[1]
    gaps = [Gap(cursor=cursor, length_s=length) for cursor, length in waits]
    budget = gap_budget(gaps=gaps, forward_s=forward_s, microbatches=8, host=host, slack_s=slack_s)
    total = 0
    for cursor, count in sorted(budget.items()):
        total += count
        room = sum(gap.length_s for gap in gaps if gap.cursor == cursor)
        assert count * forward_s <= room + 1e-6
        assert total <= sum(i.kind == "F" for i in host.instructions[:cursor])
    assert total <= 8
