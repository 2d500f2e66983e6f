"""Real runs on the card that lose a node in each phase at each stage, each held against a calm one.

One run has five kills, one in each phase, each at another stage than the one before; four such runs
meet each stage in each phase. There is a standby for each kill but the last, and kills lie so many
steps apart that one of them has the replicas meanwhile.
"""

import math
from functools import partial

from benchmarks.gpu_check.children import ChildFailed
from benchmarks.gpu_check.jobs import PHASES, gpt, with_kills
from benchmarks.gpu_check.part import Check, Group, median, play
from benchmarks.gpu_check.runs import launched, pauses_s, step_times_s, verified

APART_S = 1.2
"""Between two kills, by the first calm step that is timed: a standby, which is loaded already,
receives two replicas. A guess; the line that says how many losses a shadow took over shows where it
is too short."""
STEPS_TO_SEE = 10
SPACING = (4, 400)
"""Least and most steps between two kills."""
NEEDS_S = 45.0
STAGES = 4
PAUSES = "pauses"
"""The kind under which the pauses of a run are kept."""


def spacing_of(step_s: float, apart_s: float) -> int:
    """Steps between two kills."""
    least, most = SPACING
    return min(max(math.ceil(apart_s / step_s), least), most)


def phases_of(mode: str) -> tuple[str, ...]:
    """The phases in which a job of this mode may list a loss: without shadows nothing is
    shipped."""
    return tuple(phase for phase in PHASES if mode != "peer" or phase != "ship")


def each_stage(check: Check) -> None:
    """Eager: five phases at every stage, in the last of the precisions."""
    _mode(check, check.precisions[-1], "eager")


def first_precision(check: Check) -> None:
    """The same in the other precision, as far as the time goes."""
    for precision in check.precisions[:-1]:
        _mode(check, precision, "eager")


def other_modes(check: Check) -> None:
    """Stash, and from the other pipeline: one run of five phases each."""
    if not check.small:
        _mode(check, check.precisions[-1], "stash", only=2)
        _mode(check, check.precisions[-1], "peer", only=3)


def _mode(check: Check, precision: str, mode: str, only: int = 0) -> None:
    """The runs of a mode that are asked for, or one of them alone."""
    peers = 2 if mode == "peer" else 1
    stages = 2 if mode == "peer" else STAGES
    job = gpt(small=check.small).on(check.device, precision)
    job = job.within(
        stages=stages,
        pipelines=peers,
        redundancy=mode,
        standbys=2 if check.small else len(PHASES) - 1,
    )
    what, board = f"{mode}, {precision}", check.board
    seen = check.seen
    for turn in (only,) if only else check.turns[:1] if check.small else check.turns:
        name = f"{what}: run {turn}, verify"

        def work(turn: int = turn, name: str = name) -> None:
            if "step_s" not in seen:
                launched(check.place, job.trained(steps=STEPS_TO_SEE), "calm")
                seen["step_s"] = median(step_times_s(check.place, "calm", 2))
                board.add(f"{what}: a calm step", 1e3 * seen["step_s"], "ms")
            spacing = spacing_of(seen["step_s"], APART_S)
            killed = with_kills(job, turn=turn - 1, spacing=spacing, phases=phases_of(mode))
            run = f"kills-{mode}-{precision}-{turn}"
            receipt = launched(check.place, killed.job, run)
            found = pauses_s(receipt)
            lost = len(receipt["preemptions"])
            board.add(f"{what}: run {turn}, losses of {killed.kills} ordered", lost)
            if mode != "peer":
                board.add(f"{what}: run {turn}, taken over by a shadow", len(found))
            board.record(PAUSES, f"{what}: run {turn}", {"pauses_s": found})
            equal, first = verified(check.place, run)
            board.add(name, equal, first, limit="equal")

        board.attempt(name, work, needs_s=30.0 if check.small else NEEDS_S, limit="equal")
    if mode != "peer":
        about = f"{what}: end-of-file to first operation, median"
        board.attempt(about, partial(_say_pauses, check, what), limit="pause")


def _say_pauses(check: Check, what: str) -> None:
    """The pauses of all runs of this mode that are kept, of earlier calls too."""
    kept = check.board.records(PAUSES)
    pauses = [x for name, one in kept.items() if name.startswith(what) for x in one["pauses_s"]]
    if not pauses:
        raise ChildFailed("no node was taken over by a shadow")
    name = f"{what}: end-of-file to first operation"
    check.board.add(f"{name}, median", 1e3 * median(pauses), "ms", limit="pause")
    check.board.add(f"{name}, most", 1e3 * max(pauses), f"ms of {len(pauses)}")


GROUPS: dict[str, Group] = {
    "eager": each_stage,
    "modes": other_modes,
    "precision": first_precision,
}


def run(check: Check) -> None:
    """The part."""
    play(check, GROUPS)
