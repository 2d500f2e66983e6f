"""`bamboo chaos` as text: the faults that will come, and what the checkers found."""

from collections.abc import Sequence
from pathlib import Path

from bamboo.chaos.check import Verdict
from bamboo.chaos.draw import Fault
from bamboo.quantities import count

ASKED = {
    "end": "an end in order",
    "losses": "each step has one loss",
    "orphans": "no process, instance or folder is left over",
    "faults": "at least half of those that were due struck",
    "progress": "a later step after each fault",
    "protection": "all copies are there again after the last",
    "fences": "nothing from a node counts once it is gone",
    "checkpoints": "each that was begun is complete, failed or given up",
    "decisions": "each comes out the same again",
    "samples": "each is used exactly once",
    "calm": "every bit is that of a run without faults",
}
"""What each checker asks, by its name."""


def fault_line(fault: Fault) -> str:
    """`12.0 s    3  notice-cut-short for 9 s, cut short after 4 s`."""
    lasts = f" for {fault.lasts_s:g} s" if fault.lasts_s else ""
    cut = f", cut short after {fault.cut_s:g} s" if fault.cut_s else ""
    return f"{fault.at_s:7.1f} s  {fault.number:3d}  {fault.kind}{lasts}{cut}"


def verdict_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """One line for each checker, with what it checks."""
    return [
        f"{'ok    ' if one.ok else 'FAILED'} {one.name} ({ASKED[one.name]}): "
        f"{one.finding or one.seen}"
        for one in verdicts
    ]


def verdict_line(verdicts: Sequence[Verdict], *, file: Path) -> str:
    """What all checkers together found, and where it is written."""
    wrong = sum(not one.ok for one in verdicts)
    checks = count(len(verdicts), "check")
    if wrong:
        return f"{count(wrong, 'finding')} in {checks}; {file}"
    return f"no finding in {checks}: nothing lost, every bit that of a calm run; {file}"
