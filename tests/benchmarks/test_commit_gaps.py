"""A stall is found where it is: while the old layout finishes, or before the new one's first."""

import pytest

from benchmarks.measuring.commit_gaps import layout_gaps

CALM_S = [0.0, 1.0, 2.0, 3.0]


def test_all_stand_before_the_first_step_of_the_new_layout() -> None:
    gaps = layout_gaps([*CALM_S, 4.0, 7.0, 9.0, 11.0], begun_s=3.5, last_s=4.0)
    assert (gaps.step_s, gaps.new_step_s, gaps.finishing_s, gaps.first_s) == (1.0, 2.0, 1.0, 3.0)
    assert (gaps.stall_s, gaps.stall_steps) == (1.0, 0.5)


def test_all_stand_while_the_old_layout_finishes_its_step() -> None:
    gaps = layout_gaps([*CALM_S, 4.5, 6.5, 8.5], begun_s=3.2, last_s=4.5)
    assert (gaps.finishing_more_s, gaps.first_more_s) == (0.5, 0.0)
    assert (gaps.stall_s, gaps.stall_steps) == (0.5, 0.5)


def test_commits_that_were_told_in_another_order_are_the_same() -> None:
    commits = [*CALM_S, 4.5, 6.5, 8.5]
    assert layout_gaps(commits[::-1], begun_s=3.2, last_s=4.5) == layout_gaps(
        commits, begun_s=3.2, last_s=4.5
    )


@pytest.mark.parametrize(("begun_s", "last_s"), [(0.5, 2.0), (2.5, 3.0)])
def test_a_layout_with_too_few_commits_has_no_stall(begun_s: float, last_s: float) -> None:
    with pytest.raises(ValueError, match="two of each are needed"):
        layout_gaps(CALM_S, begun_s=begun_s, last_s=last_s)
