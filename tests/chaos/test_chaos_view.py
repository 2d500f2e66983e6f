"""What a person reads of a swarm of faults."""

from pathlib import Path

import pytest

from bamboo.chaos.check import Verdict
from bamboo.chaos.judge import tenths
from cli.views.chaos import ASKED, verdict_line, verdict_lines

FILE = Path("runs/r/chaos.json")
GOOD = tuple(Verdict(name=name, finding="", seen="seen") for name in ASKED)


def test_each_check_says_what_it_asks_and_the_last_line_what_all_found() -> None:
    lines = verdict_lines(GOOD)
    assert lines[6] == "ok     fences (nothing from a node counts once it is gone): seen"
    assert verdict_line(GOOD, file=FILE) == (
        "no finding in 11 checks: nothing lost, every bit that of a calm run; runs/r/chaos.json"
    )


@pytest.mark.parametrize(("wrong", "words"), [(1, "1 finding in 11"), (2, "2 findings in 11")])
def test_what_was_found_is_counted_and_nothing_is_promised(wrong: int, words: str) -> None:
    bad = tuple(Verdict(name=name, finding="it is", seen="") for name in list(ASKED)[:wrong])
    found = (*bad, *GOOD[wrong:])
    assert verdict_line(found, file=FILE) == f"{words} checks; runs/r/chaos.json"
    assert verdict_lines(found)[0] == "FAILED end (an end in order): it is"


def test_a_calm_run_is_told_of_at_each_tenth() -> None:
    said: list[str] = []
    told = tenths(said.append)
    for step in range(1, 26):
        told(step, 25)
    assert len(said) == 10
    assert (said[0], said[-1]) == ("  again: step 3/25", "  again: step 25/25")
