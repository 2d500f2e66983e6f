"""ViT as a classifier of images: patches, layers, head."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForImageClassification, PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask

from bamboo.models.hf.family import Family
from bamboo.models.hf.parts import Part, Piece


def vit(config: Any) -> Family:
    """The family."""
    return Family(
        make=lambda: AutoModelForImageClassification.from_config(config),
        parts=_parts,
        whole=lambda model, inputs: model(pixel_values=inputs[0]).logits,
        loss=_loss,
        metrics=_accuracy,
        takes="images",
    )


def _loss(logits_BV: Tensor, targets_B: Tensor) -> Tensor:
    """Cross entropy in nats, summed over the images."""
    return F.cross_entropy(logits_BV.float(), targets_B, reduction="sum")


def _accuracy(logits_BV: Tensor, targets_B: Tensor) -> dict[str, tuple[Tensor, int]]:
    right = (logits_BV.argmax(-1) == targets_B).sum()
    return {"accuracy": (right.to(torch.float64), len(targets_B))}


def _parts(model: PreTrainedModel) -> tuple[Part, ...]:
    layers = [f"vit.layers.{number}" for number in range(model.config.num_hidden_layers)]

    def layer(path: str) -> Part:
        def run(piece: Piece, x_BTC: Tensor) -> Tensor:
            mask = create_bidirectional_mask(
                config=model.config, inputs_embeds=x_BTC, attention_mask=None
            )
            y_BTC: Tensor = piece.at(path)(x_BTC, mask)
            return y_BTC

        return Part(holds=(path,), run=run)

    def finish(piece: Piece, x_BTC: Tensor) -> Tensor:
        logits_BV: Tensor = piece.at("classifier")(piece.at("vit.layernorm")(x_BTC)[:, 0, :])
        return logits_BV

    return (
        Part(
            holds=("vit.embeddings",),
            run=lambda piece, x: piece.at("vit.embeddings")(pixel_values=x),
        ),
        *map(layer, layers),
        Part(holds=("vit.layernorm", "classifier"), run=finish),
    )
