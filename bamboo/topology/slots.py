"""A slot is the place (pipeline, stage) in the grid; its text form is `0.2`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Slot:
    """One place in the grid D x P. Ordered by pipeline, then stage."""

    pipeline: int
    stage: int

    def __str__(self) -> str:
        return f"{self.pipeline}.{self.stage}"

    @classmethod
    def parse(cls, text: str) -> "Slot":
        """Read the text form. Raises ValueError when it is not `pipeline.stage`."""
        pipeline, stage = text.split(".")
        return cls(pipeline=int(pipeline), stage=int(stage))
