"""1F1B with one more microbatch in flight: the one fixed order in which a stage computes a step.

Rule: stage s of P runs `forwards_first` forwards (warm-up), then one forward and one backward in
turn (steady), then the remaining backwards (cool-down). Backwards run in microbatch order, which
fixes the order of accumulation.

Plain 1F1B has min(P - 1 - s, M) forwards first and leaves no slack between equal neighbours: each
forward waits for the gradient that the neighbour has only just sent, so a step grows by a round
trip for every microbatch. Here each stage but the last runs one more forward before its first
backward, and computes it while the messages travel. That takes the memory of one more microbatch.
If stages are unequal and microbatches few, a fast stage behind a slow one may wait for that
forward's input although a backward is ready. README.md says what the order gains.
(Narayanan et al., PipeDream-Flush in "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021.
It is the least of the eager 1F1B of Zhuang et al., "On Optimizing the Communication of Model
Parallelism", MLSys 2023, which has up to twice as many forwards first.)
"""

from dataclasses import dataclass
from functools import lru_cache

from bamboo.schedule.instruction import Instruction


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One stage's forwards and backwards of one step, in order, by part.

    Prints as the instructions with ` | ` between the parts: `0F0 | 0F1 0B0 | 0B1`.
    """

    stage: int
    warm_up: tuple[Instruction, ...]
    steady: tuple[Instruction, ...]
    cool_down: tuple[Instruction, ...]

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """All parts in order. A *cursor* is a position in this tuple; its length stands for the
        exchange that follows, and one more for the optimizer step."""
        return self.warm_up + self.steady + self.cool_down

    @property
    def microbatches(self) -> int:
        return len(self.instructions) // 2

    def __str__(self) -> str:
        parts = (self.warm_up, self.steady, self.cool_down)
        return " | ".join(" ".join(map(str, part)) for part in parts)

    @classmethod
    def parse(cls, text: str) -> "Program":
        """Read the text form. Raises ValueError when it is not one stage's whole program."""
        parts = [tuple(map(Instruction.parse, part.split())) for part in text.split("|")]
        if len(parts) != 3:
            raise ValueError(
                f"a program has three parts (warm-up | steady | cool-down), not {len(parts)}: "
                f"{text!r}"
            )
        stages = {instruction.stage for part in parts for instruction in part}
        if len(stages) != 1:
            raise ValueError(f"a program is of one stage, not of {sorted(stages)}: {text!r}")
        program = cls(stage=stages.pop(), warm_up=parts[0], steady=parts[1], cool_down=parts[2])
        check_program(program)
        return program


def check_program(program: Program) -> None:
    """Raise ValueError unless every microbatch has its forward once, before its one backward."""
    forwards: list[int | None] = []
    backwards: list[int | None] = []
    for instruction in program.instructions:
        if instruction.kind == "F":
            forwards.append(instruction.microbatch)
        elif instruction.kind == "B":
            if instruction.microbatch not in forwards:
                raise ValueError(f"{instruction} comes before its forward in {program}")
            backwards.append(instruction.microbatch)
        else:
            raise ValueError(f"{instruction} does not belong in a program of F and B: {program}")
    whole = list(range(len(forwards)))
    if forwards != whole or backwards != whole:
        raise ValueError(
            f"forwards and backwards of {program} must each be microbatches 0, 1, 2, … in order"
        )


def forwards_first(stage: int, stages: int, microbatches: int) -> int:
    """How many forwards `stage` of `stages` runs before it alternates: as many as there are stages
    after it, plus one if there are any, but no more than there are microbatches."""
    after = stages - 1 - stage
    return min(after + 1 if after else 0, microbatches)


def most_in_flight(stage: int, stages: int, microbatches: int) -> int:
    """The most microbatches that have run forward but not backward on `stage` of `stages`."""
    return min(forwards_first(stage, stages, microbatches) + 1, microbatches)


@lru_cache(maxsize=128)
def one_f_one_b(stages: int, microbatches: int) -> tuple[Program, ...]:
    """The program of each of `stages` stages for `microbatches` microbatches a step.

    Raises ValueError when there is no stage or no microbatch.
    """
    if stages < 1 or microbatches < 1:
        raise ValueError(
            f"a schedule needs at least 1 stage and 1 microbatch, not {stages} and {microbatches}"
        )
    return tuple(_program(stage, stages, microbatches) for stage in range(stages))


def _program(stage: int, stages: int, microbatches: int) -> Program:
    ahead = forwards_first(stage, stages, microbatches)
    forward = tuple(Instruction(stage=stage, kind="F", microbatch=m) for m in range(microbatches))
    backward = tuple(Instruction(stage=stage, kind="B", microbatch=m) for m in range(microbatches))
    pairs = zip(forward[ahead:], backward[: microbatches - ahead], strict=True)
    return Program(
        stage=stage,
        warm_up=forward[:ahead],
        steady=tuple(instruction for pair in pairs for instruction in pair),
        cool_down=backward[microbatches - ahead :],
    )
