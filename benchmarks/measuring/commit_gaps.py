"""The time between commits, and how a new layout changes it. Pure.

A stall is the time by which two commits are further apart than two calm ones of the same layout.
There are two: in the old layout while all nodes finish their step, and between its last commit and
the first of the new layout, which is compared with a step of the new one.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutGaps:
    """Seconds between commits around one new layout."""

    step_s: float
    """Median in the old layout, before the new one was decided."""
    new_step_s: float
    finishing_s: float
    """The longest in the old layout from then on."""
    first_s: float
    """From the old layout's last commit to the new one's first."""

    @property
    def finishing_more_s(self) -> float:
        return self.finishing_s - self.step_s

    @property
    def first_more_s(self) -> float:
        return self.first_s - self.new_step_s

    @property
    def stall_s(self) -> float:
        """The longer of the two stalls."""
        return max(self.finishing_more_s, self.first_more_s)

    @property
    def stall_steps(self) -> float:
        """The longer of the two stalls, each in steps of the layout that it is compared with."""
        return max(self.finishing_s / self.step_s, self.first_s / self.new_step_s) - 1


def layout_gaps(commits_s: Sequence[float], *, begun_s: float, last_s: float) -> LayoutGaps:
    """The gaps of commits in two layouts: the new one was decided at `begun_s`, and the old one had
    its last commit by `last_s`. Raises ValueError where either has too few commits for a step
    time."""
    ordered = sorted(commits_s)
    old, new = [t for t in ordered if t <= last_s], [t for t in ordered if t > last_s]
    calm = [t for t in old if t <= begun_s]
    if len(calm) < 2 or len(new) < 2:
        raise ValueError(f"{len(calm)} commits before, {len(new)} after: two of each are needed")
    return LayoutGaps(
        step_s=median_gap_s(calm),
        new_step_s=median_gap_s(new),
        finishing_s=longest_gap_s(old, begun_s, last_s),
        first_s=new[0] - old[-1],
    )


def longest_gap_s(commits_s: Sequence[float], since_s: float, until_s: float) -> float:
    """The longest gap between two commits that overlaps [since, until]; 0 where there is none."""
    gaps = [
        after - before
        for before, after in itertools.pairwise(sorted(commits_s))
        if after >= since_s and before <= until_s
    ]
    return max(gaps, default=0.0)


def median_gap_s(commits_s: Sequence[float]) -> float:
    """The median gap between two commits; needs at least two commits."""
    return statistics.median(after - before for before, after in itertools.pairwise(commits_s))
