"""The table of kills, and what it says was reached."""

from dataclasses import replace

import pytest

from benchmarks.failover.failover_claims import SMALLER, Row, claims, pooled, row
from benchmarks.failover.failover_figures import Commit, Play


def played(system: str, stall_s: float, *, bits: str = "equal", redone: int = 0) -> Row:
    return Row(
        system=system,
        calm_step_s=0.7,
        kills=3,
        until_commit_s=(0.7 + stall_s,) * 3,
        hit_step_s=(0.7 + stall_s,) * 3,
        never_ended=0,
        discarded=0,
        redone=redone,
        goodput=0.97,
        of_oracle=0.96,
        samples_of_oracle=0.955,
        bits=bits,
    )


def verdicts(*rows: Row, first_ms: tuple[float, ...] = (40.0, 50.0, 90.0)) -> dict[str, bool]:
    found = claims({one.system: one for one in rows}, first_operation_ms=first_ms)
    return {claim.about: claim.holds for claim in found}


def test_all_is_reached_by_a_good_play_beside_worse_ones() -> None:
    found = verdicts(
        played("bamboo", 0.1), played("torchft 1 s", 0.9), played("torchft tight", 0.2)
    )
    assert len(found) == 10
    assert all(found.values())


def test_a_play_with_a_kill_a_minute_is_not_held_against_one_with_many() -> None:
    rare = played("torchft 1 s, a minute", 0.01)
    assert verdicts(played("bamboo", 0.1), played("torchft 1 s", 0.9), rare) == verdicts(
        played("bamboo", 0.1), played("torchft 1 s", 0.9)
    )


def test_an_interval_is_that_of_its_own_figure() -> None:
    mine = replace(played("bamboo", 0.1), hit_step_s=(1.7, 1.7, 1.7))
    rows = {one.system: one for one in (mine, played("torchft 1 s", 0.9), played("torchft", 0.8))}
    of_stalls = [
        claim.interval
        for claim in claims(rows, first_operation_ms=(40.0,) * 3)
        if claim.about.startswith("stall")
    ]
    assert of_stalls == [(pytest.approx(0.1), pytest.approx(0.1))] * 2


def test_each_shortcoming_is_said() -> None:
    slow = verdicts(played("bamboo", 0.4), played("torchft 1 s", 0.9), played("torchft tight", 0.2))
    assert sum(not holds for holds in slow.values()) == 5
    assert not all(verdicts(played("bamboo", 0.1, bits="differ: a loss")).values())
    assert not all(verdicts(played("bamboo", 0.1, redone=1)).values())
    assert not all(verdicts(played("bamboo", 0.1), first_ms=(40.0, 50.0, 151.0)).values())
    assert not all(verdicts(played("bamboo, a minute", 0.1)).values())


def test_what_was_not_played_is_not_claimed() -> None:
    assert verdicts(played("torchrun", 20.0)) == {}
    assert "torchft" not in " ".join(verdicts(played("bamboo", 0.1)))
    assert verdicts(replace(played("bamboo, a minute", 0.0), kills=0)) == {
        "bamboo, a minute: bits that differ": True
    }
    one_unknown = verdicts(played("bamboo", 0.1), first_ms=(40.0, 90.0))
    assert "first operation" not in " ".join(one_unknown)


def test_a_row_is_read_from_the_play() -> None:
    commits = tuple(Commit(step=n, at_s=float(n), samples=8) for n in range(11))
    play = Play(begin_s=0.0, end_s=10.0, kills_s=(2.5,), commits=commits, discarded=2)
    found = row("x", play, calm_s=0.9, bits="equal", bound=0.95, oracle_step_s=0.8)
    assert found.until_commit_s == (0.5,)
    assert found.hit_step_s == (1.0,)
    assert found.late_s == pytest.approx(0.1)
    assert found.goodput == 0.9
    assert found.of_oracle == 0.9 / 0.95
    assert found.samples_of_oracle == 0.8 / 0.95
    assert found.discarded == 2
    assert "equal" in found.line()


def test_a_stall_that_did_not_end_is_a_bound() -> None:
    ended = replace(played("x", 5.0), until_commit_s=(5.7, 9.7, 4.7))
    assert ">" not in ended.line()
    longest = replace(ended, until_commit_s=(5.7, 4.7, 9.7), never_ended=1)
    assert longest.line().count(">") == 1, "beyond the median already: only the longest is unknown"
    assert ">9.00" in longest.line()
    last = replace(ended, never_ended=1)
    assert ">5.00" in last.line(), "the last one may be the longest of all"
    assert ">9.00" in last.line()


def test_what_nobody_counts_is_no_nought() -> None:
    assert " - " in replace(played("torchrun", 20.0), discarded=None).line()
    with pytest.raises(ValueError, match="bamboo"):
        verdicts(replace(played("bamboo", 0.1), discarded=None))


def test_rounds_are_one_row_and_say_their_spread() -> None:
    fast = replace(played("bamboo", 0.1), of_oracle=0.97)
    slow = replace(played("bamboo", 0.2), of_oracle=0.94, until_commit_s=(0.9, 0.8, 5.0))
    slow = replace(slow, never_ended=1, discarded=None, bits="differ: a loss")
    found = pooled([slow, fast, fast])
    assert found.kills == 9
    assert found.until_commit_s[-1] == 5.0, "the one that did not end comes last, as in a play"
    assert sorted(found.until_commit_s) == sorted((0.9, 0.8, 5.0, *(fast.until_commit_s * 2)))
    assert found.of_oracle == 0.97
    assert found.between("of_oracle") == (0.94, 0.97)
    assert found.discarded is None, "nobody counted it in one of them"
    assert found.bits == "differ: a loss"
    other = replace(fast, bits="no step after a kill")
    assert pooled([other, slow, fast]).bits == "no step after a kill; differ: a loss"
    assert pooled([fast]) is fast
    assert fast.between("of_oracle") is None


def test_another_training_is_not_what_ours_is_held_against() -> None:
    found = verdicts(played("bamboo", 0.1), played("torchft 1 s", 0.9), played(SMALLER, 0.05))
    assert all(found.values())
    assert not any(SMALLER in about for about in found)


def test_who_failed_in_a_round_reaches_nothing() -> None:
    rows = {one.system: one for one in (played("bamboo", 0.1), played("torchft 1 s", 0.9))}
    ours = claims(rows, first_operation_ms=(40.0,) * 3, failed={"bamboo": ["round 1: it hung"]})
    assert [claim.about for claim in ours] == ["bamboo: rounds not played to the end"]
    assert not ours[0].holds
    theirs = claims(rows, first_operation_ms=(40.0,) * 3, failed={"torchft 1 s": ["round 0: late"]})
    assert len(theirs) == 6
    assert not any("torchft" in claim.about for claim in theirs)
