"""What one play of kills came to: stalls, work lost or done again, goodput. Pure.

Rule: every system is read by the same functions, from the same two lists: when it was hit, and when
it committed a step of how many samples. Times are seconds of one clock.
"""

import random
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SPREAD = 0.1
"""Of the time between two kills, by which each comes earlier or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One SIGKILL, the same for every system."""

    at_s: float
    """After the beginning of the play."""
    share: float
    """Of those who train, in order, the one that stands at this share of them is the victim."""

    def victim(self, training: Sequence[str]) -> str:
        """Whose turn it is among those who train now."""
        return training[int(self.share * len(training))]


def kills_every(every_s: float, *, for_s: float, seed: int) -> tuple[Kill, ...]:
    """A kill in every `every_s` of the play, about its middle, so that there is time to go on."""
    rng = random.Random(seed)
    out = []
    for number in range(int(for_s // every_s)):
        middle_s = (number + 0.5) * every_s
        at_s = middle_s + rng.uniform(-SPREAD, SPREAD) * every_s
        out.append(Kill(at_s=at_s, share=rng.random()))
    return tuple(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A step that stands."""

    step: int
    at_s: float
    samples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What was seen of one system, from `begin_s` to `end_s`."""

    begin_s: float
    end_s: float
    kills_s: tuple[float, ...]
    commits: tuple[Commit, ...]
    """In order of time; a step that was committed again stands here twice."""
    discarded: int | None
    """Attempts at a step that no one could commit; None where nobody counts them."""
    again: int = 0
    """Steps that stood and were taken again, beyond those that `commits` shows."""

    def in_time(self) -> tuple[Commit, ...]:
        """Commits within the play."""
        return tuple(c for c in self.commits if self.begin_s < c.at_s <= self.end_s)


def until_next_commit_s(play: Play) -> tuple[float, ...]:
    """Of each kill the time to the next step that is new, or to the end of the play."""
    new = _new_at_s(play)
    out = []
    for at_s in play.kills_s:
        after = bisect_right(new, at_s)
        out.append((new[after] if after < len(new) else play.end_s) - at_s)
    return tuple(out)


def hit_steps_s(play: Play) -> tuple[float, ...]:
    """Of each kill how long the step took that it hit: from the last step that was new before it
    (or the play's begin) to the next one, or to the end of the play."""
    new = _new_at_s(play)
    out = []
    for at_s, after_s in zip(play.kills_s, until_next_commit_s(play), strict=True):
        before = bisect_right(new, at_s)
        out.append(at_s + after_s - (new[before - 1] if before else play.begin_s))
    return tuple(out)


def never_ended(play: Play) -> int:
    """How many of the kills no new step came after, so that of their stalls only the least is
    known."""
    newest_s = max(_new_at_s(play), default=play.begin_s)
    return sum(at_s >= newest_s for at_s in play.kills_s)


def _new_at_s(play: Play) -> list[float]:
    """When each step stood for the first time."""
    new: list[float] = []
    highest = -1
    for commit in play.commits:
        if commit.step > highest:
            new.append(commit.at_s)
            highest = commit.step
    return new


def redone(play: Play) -> int:
    """Steps that were committed once and had to be taken again."""
    shown = sum(after.step <= before.step for before, after in _behind(play.commits))
    return play.again + shown


def taken_back(commits: Sequence[Commit], bases: Sequence[tuple[float, int]]) -> int:
    """Steps that stood when all went back to before them. `bases`: (when, the step to go on from);
    `commits`: each step once."""
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
    """New samples by the time that they took: a sample of a step that is taken again counts once.

    From the last commit before the play to the last one within it, so that a step which is under
    way at an end is no loss; but a system that commits nothing more is charged to the end.
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
    """The median time between two commits of a run that nothing hit; the first few are left out."""
    gaps = [after.at_s - before.at_s for before, after in pairwise(commits)]
    return statistics.median(gaps[2:])
