"""Which operations a shadow runs ahead of need, mode by mode, and which forwards fit a gap.

Rule: redundancy never changes a bit, only when a recomputation happens; so stages whose shadows
keep a replica may each have another mode. `off`, `peer` and `stash` run nothing ahead. `gap` runs
redundant forwards only where the dry run predicts that the host would wait anyway. `eager` runs
them whenever nothing else is ready, and `full` runs the backwards as well.
(`eager` and `full` are EFLB and EFEB of Thorpe et al., Bamboo, NSDI 2023; `stash` is LFLB.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bamboo.schedule.instruction import Instruction
from bamboo.schedule.one_f_one_b import Program
from bamboo.topology.strategy import BARE_MODES, modes_of

_AHEAD: dict[str, tuple[str, ...]] = {
    "off": (),
    "peer": (),
    "stash": (),
    "gap": ("FR",),
    "eager": ("FR",),
    "full": ("FR", "BR"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A predicted wait of a node whose host stage stands at `cursor` of its own program."""

    cursor: int
    length_s: float


def has_replica(redundancy: str) -> bool:
    """Whether shadows keep a replica and step it (R): in every mode but `off` and `peer`. Raises
    ValueError for an unknown redundancy."""
    return modes_of(redundancy)[0] not in BARE_MODES


def ahead_of_need(mode: str, *, stage: int, microbatches: int) -> tuple[Instruction, ...]:
    """The FR, then the BR, that the shadow of `stage` with this `mode` may run before any loss.
    Other redundant operations may not run: this function decides what the picker is offered."""
    kinds = _AHEAD[mode]
    forwards = tuple(Instruction(stage=stage, kind="FR", microbatch=m) for m in range(microbatches))
    backwards = tuple(
        Instruction(stage=stage, kind="BR", microbatch=m) for m in range(microbatches)
    )
    return (forwards if "FR" in kinds else ()) + (backwards if "BR" in kinds else ())


GAP_SLACK = 0.05
"""Share of a forward that stays free in a wait that redundant forwards fill. They cannot be
interrupted, and real messages come a little late: forwards that filled a wait completely cost 2.8 %
of a step on equal stages (virtual device, 2026-11-24)."""


def gap_budget(
    *,
    gaps: Sequence[Gap],
    forward_s: float,
    microbatches: int,
    host: Program | None,
    slack_s: float = 0.0,
) -> dict[int, int]:
    """How many redundant forwards fit which gap: cursor of the host's program -> count.

    A node that waits with its host stage at a cursor may run that many there, in microbatch order.
    `forward_s` is the duration of one, `slack_s` stays free in every gap. `host` is the program
    whose forwards produce the inputs; None: inputs come from the data, at any time (the shadow of
    stage 0). Cursors at which nothing fits are left out.
    """
    budget: dict[int, int] = {}
    given = 0
    for gap in sorted(gaps, key=lambda gap: gap.cursor):
        room = gap.length_s - slack_s
        available = microbatches
        if host is not None:
            available = sum(i.kind == "F" for i in host.instructions[: gap.cursor])
        fits = microbatches
        if forward_s > 0:
            fits = int(max(room, 0.0) / forward_s + 1e-6)
        count = min(fits, available - given) if room > 0 else 0
        if count > 0:
            budget[gap.cursor] = budget.get(gap.cursor, 0) + count
            given += count
    return budget
