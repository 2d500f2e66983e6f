"""The plan of a layer of a traced model, as a value and as JSON.

Rule: nothing here needs torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bamboo.models.traced.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A tensor of a layer."""

    name: str
    of: str
    """The name of the tensor whose values it begins with: its own, or that which it is tied to."""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    trained: bool = False
    same: str = ""
    """The other name in this layer, where it has one parameter under two."""
    saved: bool = True
    """Whether it is part of the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """All that there is to know of a layer but the values of its parameters."""

    name: str
    """The modules whose work it is."""
    graph: Graph
    shapes: Sequence[Sequence[int | None]]
    """Of its inputs; None: any."""
    parameters: Sequence[Held]
    buffers: Sequence[Held]
    norms: Mapping[str, Mapping[str, Any]]
    """Path of a batch norm -> its settings."""
    train_only: str = ""
    """Where the model computes something else in eval mode; empty: nowhere."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "LayerPlan":
        return cls(
            name=raw["name"],
            graph=Graph.from_dict(raw["graph"]),
            shapes=raw["shapes"],
            parameters=[Held(**held) for held in raw["parameters"]],
            buffers=[Held(**held) for held in raw["buffers"]],
            norms=raw["norms"],
            train_only=raw["train_only"],
        )
