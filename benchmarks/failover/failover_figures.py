"""The figures of one play of kills: stalls, work lost or repeated, goodput. Pure.

Rule: the same functions read every system, from the same two lists: when it was hit, and when it
committed a step of how many samples. Times are seconds of one clock.
"""

import random
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SPREAD = 0.1
"""Share of the time between two kills by which each comes earlier or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One SIGKILL, the same for every system."""

    at_s: float
    """Seconds after the beginning of the play."""
    share: float
    """The victim is at this share of the ordered list of training processes."""

    def victim(self, training: Sequence[str]) -> str:
        """The victim among the processes that train now."""
        return training[int(self.share * len(training))]


def kills_every(every_s: float, *, for_s: float, seed: int) -> tuple[Kill, ...]:
    """A kill in every `every_s` of the play, about its middle, so that there is time to recover."""
    rng = random.Random(seed)
    out = []
    for number in range(int(for_s // every_s)):
        middle_s = (number + 0.5) * every_s
        at_s = middle_s + rng.uniform(-SPREAD, SPREAD) * every_s
        out.append(Kill(at_s=at_s, share=rng.random()))
    return tuple(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A committed step."""

    step: int
    at_s: float
    samples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What one system did from `begin_s` to `end_s`."""

    begin_s: float
    end_s: float
    kills_s: tuple[float, ...]
    commits: tuple[Commit, ...]
    """In order of time; a step that was committed again is in it twice."""
    discarded: int | None
    """Attempts at a step that could not be committed; None where they are not counted."""
    again: int = 0
    """Committed steps that were repeated, beyond those that `commits` shows."""

    def in_time(self) -> tuple[Commit, ...]:
        """Commits within the play."""
        return tuple(c for c in self.commits if self.begin_s < c.at_s <= self.end_s)


def until_next_commit_s(play: Play) -> tuple[float, ...]:
    """For each kill, the time to the next new step, or to the end of the play."""
    new = _new_at_s(play)
    out = []
    for at_s in play.kills_s:
        after = bisect_right(new, at_s)
        out.append((new[after] if after < len(new) else play.end_s) - at_s)
    return tuple(out)


def hit_steps_s(play: Play) -> tuple[float, ...]:
    """For each kill, the time of the step that it hit: from the last new step before it (or the
    play's begin) to the next one, or to the end of the play."""
    new = _new_at_s(play)
    out = []
    for at_s, after_s in zip(play.kills_s, until_next_commit_s(play), strict=True):
        before = bisect_right(new, at_s)
        out.append(at_s + after_s - (new[before - 1] if before else play.begin_s))
    return tuple(out)


def never_ended(play: Play) -> int:
    """The number of kills without a later new step. Of their stalls only a lower bound is known."""
    newest_s = max(_new_at_s(play), default=play.begin_s)
    return sum(at_s >= newest_s for at_s in play.kills_s)


def _new_at_s(play: Play) -> list[float]:
    """When each step was committed for the first time."""
    new: list[float] = []
    highest = -1
    for commit in play.commits:
        if commit.step > highest:
            new.append(commit.at_s)
            highest = commit.step
    return new


def redone(play: Play) -> int:
    """Steps that were committed once and had to be repeated."""
    shown = sum(after.step <= before.step for before, after in _behind(play.commits))
    return play.again + shown


def taken_back(commits: Sequence[Commit], bases: Sequence[tuple[float, int]]) -> int:
    """Committed steps that were lost when all nodes went back. `bases`: (when, the step to continue
    from); `commits`: each step once."""
    return sum(c.step >= base and c.at_s < at_s for at_s, base in bases for c in commits)


def _behind(commits: Sequence[Commit]) -> list[tuple[Commit, Commit]]:
    """Each commit with the furthest one before it."""
    out, furthest = [], None
    for commit in commits:
        if furthest is not None:
            out.append((furthest, commit))
        if furthest is None or commit.step > furthest.step:
            furthest = commit
    return out


def samples_per_s(play: Play) -> float:
    """New samples divided by their time; a sample of a repeated step counts once.

    The time goes from the last commit before the play to the last one within it, so that a step
    under way at either end is not a loss. But a system that commits nothing more is charged to the
    end.
    """
    before = [c for c in play.commits if c.at_s <= play.begin_s]
    start_s = before[-1].at_s if before else play.begin_s
    highest = max((c.step for c in before), default=-1)
    samples, last_s = 0.0, start_s
    for commit in play.in_time():
        if commit.step > highest:
            samples += commit.samples
            highest, last_s = commit.step, commit.at_s
    hit_since = any(at_s > last_s for at_s in play.kills_s)
    end_s = play.end_s if hit_since else last_s
    return samples / (end_s - start_s) if end_s > start_s else 0.0


def step_s(commits: Sequence[Commit]) -> float:
    """The median time between two commits of a calm run, without the first few."""
    gaps = [after.at_s - before.at_s for before, after in pairwise(commits)]
    return statistics.median(gaps[2:])
