"""What the last stages measure in a step: the sums of losses and metrics, by global microbatch."""

from collections.abc import Mapping, Sequence
from typing import Any


class Losses(dict[int, float]):
    """Loss sums by global microbatch, and what else is measured there."""

    def __init__(self, meta: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.metrics: dict[int, Mapping[str, Sequence[float]]] = {}
        """Name -> (sum, count), by global microbatch."""
        self.take(meta or {})

    def take(self, meta: Mapping[str, Any]) -> None:
        """Add what a message says of other microbatches."""
        self.update((int(m), float(loss)) for m, loss in meta.get("losses", ()))
        self.metrics |= {int(m): found for m, found in meta.get("metrics", ())}

    def meta(self) -> dict[str, Any]:
        """What a message says of these."""
        metrics = {"metrics": [[*one] for one in self.metrics.items()]} if self.metrics else {}
        return {"losses": [[m, loss] for m, loss in self.items()]} | metrics
