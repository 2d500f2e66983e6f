"""The picker: which of the ready operations a node runs next. Pure, and called in the hot loop.

Rule: what unblocks others goes first. Exchange and optimizer step (X, S), then backward, then
forward, then the operations of a slot that is being recovered, then redundant forwards that the
policy allows, then redundant backwards that it allows, then the step of the replica. Ties go to
the earlier step, then to the slot's order, then to the earlier microbatch, so that the choice does
not depend on the order in which `ready` is given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bamboo.schedule.instruction import Instruction
from bamboo.topology.slots import Slot


class ReadyOp(NamedTuple):
    """An operation whose inputs are all there. A tuple, since many are made per step."""

    slot: Slot
    step: int
    instruction: Instruction
    recovery: bool = False
    """The operation belongs to a promoted slot that has not caught up yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerPolicy:
    """Which redundant operations may run now, as the rank of each kind (lowest runs first).

    A kind without a rank does not run. `rank_recovery` replaces the rank of F and B in recovery.
    """

    ranks: Mapping[str, int]
    rank_recovery: int


_RECOVERY = 3
_BASE = {"X": 0, "S": 0, "B": 1, "F": 2, "R": 6}

PLAIN = PickerPolicy(ranks=_BASE, rank_recovery=_RECOVERY)
"""No redundant operation runs ahead of need: `off`, `stash`, and `gap` where nothing fits."""
FORWARD_AHEAD = PickerPolicy(ranks=_BASE | {"FR": 4}, rank_recovery=_RECOVERY)
"""Redundant forwards run whenever nothing else is ready: `eager`, and `gap` where one fits."""
BOTH_AHEAD = PickerPolicy(ranks=_BASE | {"FR": 4, "BR": 5}, rank_recovery=_RECOVERY)
"""Redundant forwards and backwards run whenever nothing else is ready: `full`."""

_OF_MODE = {
    "off": PLAIN,
    "peer": PLAIN,
    "stash": PLAIN,
    "gap": PLAIN,
    "eager": FORWARD_AHEAD,
    "full": BOTH_AHEAD,
}


def policy_of(mode: str, *, fits: bool = False) -> PickerPolicy:
    """The policy of a redundancy mode. In `gap` mode the caller says, at each call, whether the
    gap it waits in still `fits` a redundant forward (see `redundancy.gap_budget`); the other
    modes take no notice of it. Raises ValueError for an unknown mode.
    """
    if mode not in _OF_MODE:
        raise ValueError(f"redundancy {mode!r} is unknown; take one of {', '.join(_OF_MODE)}")
    return FORWARD_AHEAD if mode == "gap" and fits else _OF_MODE[mode]


def next_op(ready: Sequence[ReadyOp], policy: PickerPolicy) -> ReadyOp | None:
    """The operation to run now, or None when nothing in `ready` may run under `policy`."""
    ranks = policy.ranks
    best: ReadyOp | None = None
    best_rank = 1 << 30
    for op in ready:
        kind = op.instruction.kind
        rank = ranks.get(kind)
        if rank is None:
            continue
        if op.recovery and (kind == "F" or kind == "B"):  # noqa: PLR1714 (faster than `in`)
            rank = policy.rank_recovery
        if rank < best_rank or (rank == best_rank and best is not None and _before(op, best)):
            best, best_rank = op, rank
    return best


def _before(one: ReadyOp, other: ReadyOp) -> bool:
    """The tie-break of equal ranks: step, slot, kind (backward first), microbatch."""
    return _tie(one) < _tie(other)


def _tie(op: ReadyOp) -> tuple[int, int, int, str, int]:
    slot, instruction = op.slot, op.instruction
    microbatch = -1 if instruction.microbatch is None else instruction.microbatch
    return op.step, slot.pipeline, slot.stage, instruction.kind, microbatch
