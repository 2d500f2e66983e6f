"""Stalls, work lost and goodput, read from lists of kills and commits."""

import itertools
from dataclasses import replace

import pytest

from benchmarks.failover.failover_figures import (
    Commit,
    Play,
    hit_steps_s,
    kills_every,
    never_ended,
    redone,
    samples_per_s,
    step_s,
    taken_back,
    until_next_commit_s,
)


def play(*commits: tuple[int, float], kills: tuple[float, ...] = (), end_s: float = 10.0) -> Play:
    return Play(
        begin_s=0.0,
        end_s=end_s,
        kills_s=kills,
        commits=tuple(Commit(step=step, at_s=at_s, samples=8) for step, at_s in commits),
        discarded=0,
    )


def test_kills_are_the_same_for_a_seed_apart_from_each_other_and_within_the_play() -> None:
    kills = kills_every(10.0, for_s=60.0, seed=3)
    assert kills == kills_every(10.0, for_s=60.0, seed=3)
    assert kills != kills_every(10.0, for_s=60.0, seed=4)
    assert len(kills) == 6
    assert all(8.0 <= b.at_s - a.at_s <= 12.0 for a, b in itertools.pairwise(kills))
    assert all(0.0 < kill.at_s < 60.0 for kill in kills)


def test_a_victim_is_one_of_those_who_train() -> None:
    names = ["a", "b", "c", "d"]
    for kill in kills_every(10.0, for_s=400.0, seed=1):
        assert kill.victim(names) == names[int(4 * kill.share)]
    assert {kill.victim(names) for kill in kills_every(1.0, for_s=100.0, seed=1)} == set(names)


def test_a_stall_lasts_until_a_step_that_is_new() -> None:
    found = play((0, 1.0), (1, 2.0), (0, 4.0), (1, 5.0), (2, 6.0), kills=(2.5, 6.5))
    assert until_next_commit_s(found) == (3.5, 3.5)
    assert hit_steps_s(found) == (4.0, 4.0), "from the step before the kill"
    assert redone(found) == 2


def test_kills_that_no_step_came_after_are_counted() -> None:
    assert never_ended(play((0, 1.0), (1, 4.0), kills=(2.0, 3.0))) == 0
    assert never_ended(play((0, 1.0), (1, 4.0), (1, 6.0), kills=(2.0, 5.0, 7.0))) == 2
    assert never_ended(play(kills=(2.0,))) == 1


def test_steps_that_stood_are_counted_when_all_go_back_before_them() -> None:
    commits = play((0, 1.0), (1, 2.0), (2, 3.0), (3, 9.0)).commits
    assert taken_back(commits, []) == 0
    assert taken_back(commits, [(3.5, 3)]) == 0, "the step in hand is no step that stood"
    assert taken_back(commits, [(3.5, 1)]) == 2
    assert redone(replace(play((0, 1.0), (1, 2.0)), again=taken_back(commits, [(3.5, 1)]))) == 2


def test_goodput_counts_a_sample_once_and_charges_who_never_goes_on() -> None:
    calm = play((0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0))
    assert samples_per_s(calm) == pytest.approx(8.0)
    again = play((0, 0.0), (1, 1.0), (1, 3.0), (2, 4.0))
    assert samples_per_s(again) == pytest.approx(2 * 8 / 4)
    dead = play((0, 0.0), (1, 1.0), (2, 2.0), kills=(2.5,), end_s=10.0)
    assert samples_per_s(dead) == pytest.approx(2 * 8 / 10)
    assert samples_per_s(play((0, -1.0), kills=(0.5,))) == 0.0


def test_commits_after_the_end_and_before_the_beginning_do_not_count() -> None:
    found = replace(play((0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)), begin_s=2.0, end_s=3.0)
    assert samples_per_s(found) == pytest.approx(8.0)


def test_a_calm_step_is_the_median_gap_without_the_first_ones() -> None:
    commits = play((0, 0.0), (1, 5.0), (2, 9.0), (3, 10.0), (4, 11.0), (5, 12.0)).commits
    assert step_s(commits) == pytest.approx(1.0)
