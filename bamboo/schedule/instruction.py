"""An instruction: one operation of one stage, a frozen value that prints and parses as text.

Rule: the text form is the identity. `2F0` is the forward of microbatch 0 on stage 2, `3FR1` the
redundant forward of microbatch 1 of stage 3 by its shadow, `1S` the optimizer step of stage 1.
The slot's owner or shadow and the step are given beside the instruction; neither is part of it.
"""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

Kind: TypeAlias = Literal["F", "B", "FR", "BR", "X", "S", "R", "E", "V"]
"""F, B: forward and backward of the owner · FR, BR: the same by the shadow, ahead of need ·
X: reduce the gradients and send · S: optimizer step of the owner · R: step of the replica ·
E: forward of an evaluation, before the step · V: the sums of the last stage after all of these."""

MICROBATCH_KINDS: frozenset[str] = frozenset({"F", "B", "FR", "BR", "E"})
STEP_KINDS: frozenset[str] = frozenset({"X", "S", "R", "V"})

_TEXT = re.compile(r"(0|[1-9][0-9]*)(FR|BR|F|B|X|S|R|E|V)(0|[1-9][0-9]*)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """`kind` of operation on `stage`; `microbatch` counts within the pipeline and within the
    step, and is None for the kinds that happen once a step (X, S, R, V)."""

    stage: int
    kind: Kind
    microbatch: int | None = None

    def __post_init__(self) -> None:
        if (self.microbatch is None) != (self.kind in STEP_KINDS):
            needs = "takes no microbatch" if self.kind in STEP_KINDS else "needs a microbatch"
            raise ValueError(f"an instruction of kind {self.kind} {needs}: {self}")
        if self.stage < 0 or (self.microbatch is not None and self.microbatch < 0):
            raise ValueError(f"stage and microbatch count from 0: {self}")

    def __str__(self) -> str:
        microbatch = "" if self.microbatch is None else str(self.microbatch)
        return f"{self.stage}{self.kind}{microbatch}"

    @property
    def short(self) -> str:
        """The text without the stage, as in a row of a grid: `F0`."""
        return f"{self.kind}{'' if self.microbatch is None else self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> "Instruction":
        """Read the text form. Raises ValueError when `text` is not one."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is no instruction; write stage, kind and microbatch like 2F0 or 3FR1, "
                "or stage and kind like 1S"
            )
        stage, kind, microbatch = match.groups()
        return cls(
            stage=int(stage),
            kind=cast(Kind, kind),
            microbatch=None if microbatch is None else int(microbatch),
        )
