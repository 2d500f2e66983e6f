"""The table of the plays of kills, and its claims. Pure.

Rule: a claim that the plays cannot support is left out, never taken as met.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from benchmarks.failover import failover_ours as ours
from benchmarks.failover.failover_figures import (
    Play,
    hit_steps_s,
    never_ended,
    redone,
    samples_per_s,
    until_next_commit_s,
)
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.report import median_with_interval

A_MINUTE = ", a minute"
"""Appended to a system's name: its play with a kill a minute."""
SMALLER = "torchft smaller batch"
"""It goes on with the replicas that are left: another training, so no claim compares with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result of one system in one play, or in several (`pooled`)."""

    system: str
    calm_step_s: float
    kills: int
    until_commit_s: tuple[float, ...]
    hit_step_s: tuple[float, ...]
    """For each kill, how long the step that it hit took."""
    never_ended: int
    """Kills after which no new step came; they are counted up to the play's end."""
    discarded: int | None
    redone: int
    goodput: float
    of_oracle: float
    """Its goodput, as a share of its own calm pace, divided by the oracle's share of its pace."""
    samples_of_oracle: float
    """Samples per time divided by the oracle's, so slower calm steps count too."""
    bits: str
    plays: tuple["Row", ...] = ()
    """The plays that it was pooled from, where there were several rounds."""

    def between(self, figure: str) -> tuple[float, float] | None:
        """The interval of a figure's median over the rounds; None for one play."""
        if len(self.plays) < 2:
            return None
        _, low, high = median_with_interval([getattr(one, figure) for one in self.plays])
        return low, high

    @property
    def stalls_s(self) -> list[float]:
        """For each kill, the time to the next new step, minus a whole calm step. A kill comes in
        the middle of a step, so a system that is not hurt at all has minus half a step."""
        return [one - self.calm_step_s for one in self.until_commit_s]

    @property
    def late_s(self) -> float:
        """How much longer than a calm step the hit step was, in the median."""
        return statistics.median(self.hit_step_s) - self.calm_step_s

    @property
    def stall_s(self) -> tuple[float, float, float]:
        """(median, low, high) over the kills, with the median's 95 % interval."""
        return median_with_interval(self.stalls_s)

    @property
    def stall_is_a_bound(self) -> bool:
        """Whether the median is only a lower bound, as a stall that did not end may be above it."""
        if not self.never_ended:
            return False
        return min(self.stalls_s[-self.never_ended :]) <= statistics.median(self.stalls_s)

    def line(self) -> str:
        """The row as a line of the table."""
        middle, between, longest, late = "-", "-", "-", "-"
        if self.stalls_s:
            stall_s, low, high = self.stall_s
            middle = ">" * self.stall_is_a_bound + f"{stall_s:.2f}"
            between = f"{low:.2f}-{high:.2f}"
            longest = ">" * (self.never_ended > 0) + f"{max(self.stalls_s):.2f}"
            late = ">" * self.stall_is_a_bound + f"{self.late_s:.2f}"
        discarded = "-" if self.discarded is None else self.discarded
        return (
            f"{self.system:21} {1e3 * self.calm_step_s:8.0f} {self.kills:6d} {middle:>7} "
            f"{between:>11} {longest:>7} {late:>7} {discarded:>10} {self.redone:7d} "
            f"{self.goodput:8.3f} {self.of_oracle:10.3f} {self.samples_of_oracle:8.3f}  {self.bits}"
        )


HEAD = (
    f"{'system':21} {'ms/step':>8} {'kills':>6} {'stall s':>7} {'95 %':>11} {'longest':>7} "
    f"{'late s':>7} {'discarded':>10} {'redone':>7} {'goodput':>8} {'of oracle':>10} "
    f"{'samples':>8}  bits"
)


def row(
    system: str, play: Play, *, calm_s: float, bits: str, bound: float, oracle_step_s: float
) -> Row:
    """The figures of a play. `bound` is the oracle's goodput, `oracle_step_s` its calm step."""
    steps_per_s = samples_per_s(play) / ours.BATCH
    goodput = steps_per_s * calm_s
    return Row(
        system=system,
        calm_step_s=calm_s,
        kills=len(play.kills_s),
        until_commit_s=until_next_commit_s(play),
        hit_step_s=hit_steps_s(play),
        never_ended=never_ended(play),
        discarded=play.discarded,
        redone=redone(play),
        goodput=goodput,
        of_oracle=goodput / bound,
        samples_of_oracle=steps_per_s * oracle_step_s / bound,
        bits=bits,
    )


def pooled(plays: Sequence[Row]) -> Row:
    """Several plays of one system as one row: all kills together, the medians of the figures of a
    play, and every finding on the bits that is not "equal"."""
    if len(plays) == 1:
        return plays[0]
    ended = [x for one in plays for x in one.until_commit_s[: one.kills - one.never_ended]]
    others = [x for one in plays for x in one.until_commit_s[one.kills - one.never_ended :]]
    discarded = [one.discarded for one in plays if one.discarded is not None]
    return Row(
        system=plays[0].system,
        calm_step_s=statistics.median(one.calm_step_s for one in plays),
        kills=sum(one.kills for one in plays),
        until_commit_s=(*ended, *others),
        hit_step_s=tuple(x for one in plays for x in one.hit_step_s),
        never_ended=len(others),
        discarded=sum(discarded) if len(discarded) == len(plays) else None,
        redone=sum(one.redone for one in plays),
        goodput=statistics.median(one.goodput for one in plays),
        of_oracle=statistics.median(one.of_oracle for one in plays),
        samples_of_oracle=statistics.median(one.samples_of_oracle for one in plays),
        bits="; ".join(dict.fromkeys(one.bits for one in plays if one.bits != "equal")) or "equal",
        plays=tuple(plays),
    )


def lost_by(found: Row) -> int:
    """Steps that were discarded or repeated. Raises ValueError where they were not counted."""
    if found.discarded is None:
        raise ValueError(f"nobody counted what {found.system} discarded")
    return found.discarded + found.redone


def claims(
    rows: Mapping[str, Row],
    *,
    first_operation_ms: Sequence[float],
    failed: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[Claim]:
    """The claims on the systems that were played. There is none on a system that did not finish all
    its rounds, except that ours must finish them."""
    rows = {name: found for name, found in rows.items() if name not in failed}
    out: list[Claim] = []
    mine, quiet = rows.get("bamboo"), rows.get("bamboo" + A_MINUTE)
    if mine is not None and mine.kills:
        out += _of_ours(mine)
        if len(first_operation_ms) == mine.kills:  # otherwise the longest may be unknown
            about, longest_s = (
                "lost stage's first operation, longest s",
                max(first_operation_ms) / 1e3,
            )
            out.append(Claim(about=about, found=longest_s, limit=0.15))
        out += _beside_torchft(mine, rows)
    if quiet is not None and quiet.kills:
        out.append(
            _at_least("goodput with a kill a minute, of failure-free", quiet, "goodput", 0.98)
        )
    for found in rows.values():
        if found.system.startswith("bamboo"):
            about = f"{found.system}: bits that differ"
            out.append(Claim(about=about, found=found.bits != "equal", limit=0))
    for name, rounds in failed.items():
        if name.startswith("bamboo"):
            about = f"{name}: rounds not played to the end"
            out.append(Claim(about=about, found=len(rounds), limit=0))
    return out


def _of_ours(mine: Row) -> list[Claim]:
    middle_s, low_s, high_s = median_with_interval(mine.until_commit_s)
    return [
        Claim(
            about="kill to commit of the hit step, median s",
            found=middle_s,
            limit=1.3 * mine.calm_step_s + 0.1,
            interval=(low_s, high_s),
        ),
        _at_least("goodput, of the oracle's", mine, "of_oracle", 0.95),
        _at_least("samples by time, of the oracle's", mine, "samples_of_oracle", 0.95),
        Claim(about="steps lost or redone", found=lost_by(mine), limit=0),
    ]


def _at_least(about: str, found: Row, figure: str, limit: float) -> Claim:
    return Claim(
        about=about,
        found=getattr(found, figure),
        limit=limit,
        at_most=False,
        interval=found.between(figure),
    )


def _beside_torchft(mine: Row, rows: Mapping[str, Row]) -> list[Claim]:
    """At most a third of its time with a heartbeat of a second, and no more than its best."""
    theirs_s = {
        name: statistics.median(found.stalls_s)
        for name, found in rows.items()
        if name.startswith("torchft") and name != SMALLER and not name.endswith(A_MINUTE)
    }
    stall_s, low_s, high_s = mine.stall_s
    shares = [("torchft 1 s", 1 / 3)] if "torchft 1 s" in theirs_s else []
    shares += [(min(theirs_s, key=lambda name: theirs_s[name]), 1.0)] if theirs_s else []
    out = []
    for system, share in shares:
        about = f"stall, median s, beside {theirs_s[system]:.2f} of {system}"
        about += ", the best of them" if share == 1.0 else ""
        limit = share * theirs_s[system]
        out.append(Claim(about=about, found=stall_s, limit=limit, interval=(low_s, high_s)))
        late_s = rows[system].late_s
        about = f"hit step later than a calm one, s, beside {late_s:.2f} of {system}"
        _, least_s, most_s = median_with_interval(mine.hit_step_s)
        interval = (least_s - mine.calm_step_s, most_s - mine.calm_step_s)
        out.append(Claim(about=about, found=mine.late_s, limit=share * late_s, interval=interval))
    return out
