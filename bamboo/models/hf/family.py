"""What is known of a family of Hugging Face models: its class, layers, loss and data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from bamboo.data.dataset import MadeOfText
from bamboo.models.hf.parts import Part
from bamboo.models.hf.whole import Draw
from bamboo.models.workload import Loss, Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one family is trained."""

    make: Callable[[], PreTrainedModel]
    """Makes the whole model."""
    parts: Callable[[PreTrainedModel], tuple[Part, ...]]
    """Its layers, in order."""
    whole: Callable[[Any, Sequence[Tensor]], Tensor]
    """(the whole model, inputs of the data) -> what its last layer returns, by its own forward."""
    loss: Loss
    metrics: Metrics | None = None
    draw: Draw | None = None
    data: MadeOfText | None = None
    """What is made of the job's tokens; None: each is to be found from those before it."""
    takes: str = "tokens"
    """What its data are: `tokens`, or `images`, which a file of the user's gives."""
