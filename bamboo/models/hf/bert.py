"""BERT as a masked language model: embedding, layers, head.

What passes between layers is x_BTC, or (x_BTC, mask_BT) where the data give a mask of the tokens
that are none; it is handed through.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from transformers import AutoModelForMaskedLM, PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask

from bamboo.data.dataset import MadeOfText
from bamboo.models.gpt import token_loss
from bamboo.models.hf.family import Family
from bamboo.models.hf.objectives import MaskedWords
from bamboo.models.hf.parts import Part, Piece, Values


def bert(config: Any) -> Family:
    """The family."""

    def whole(model: Any, inputs: Sequence[Tensor]) -> Tensor:
        mask = inputs[1] if len(inputs) > 1 else None
        logits: Tensor = model(input_ids=inputs[0], attention_mask=mask).logits
        return logits

    return Family(
        make=lambda: AutoModelForMaskedLM.from_config(config),
        parts=_parts,
        whole=whole,
        loss=token_loss,
        data=MadeOfText(make=lambda data: MaskedWords(data, vocabulary=config.vocab_size)),
    )


def _parts(model: PreTrainedModel) -> tuple[Part, ...]:
    layers = [f"bert.encoder.layer.{number}" for number in range(model.config.num_hidden_layers)]

    def layer(path: str) -> Part:
        def run(piece: Piece, values: Values) -> Values:
            def attend(x_BTC: Tensor, mask_BT: Tensor | None) -> Tensor:
                mask = create_bidirectional_mask(
                    config=model.config, inputs_embeds=x_BTC, attention_mask=mask_BT
                )
                y_BTC: Tensor = piece.at(path)(x_BTC, mask)
                return y_BTC

            return _beside_mask(values, attend)

        return Part(holds=(path,), run=run)

    return (
        Part(
            holds=("bert.embeddings",),
            run=lambda piece, values: _beside_mask(
                values, lambda tokens, _: piece.at("bert.embeddings")(input_ids=tokens)
            ),
        ),
        *map(layer, layers),
        Part(
            holds=("cls",),
            run=lambda piece, values: piece.at("cls")(values[0] if _has_mask(values) else values),
        ),
    )


def _has_mask(values: Values) -> bool:
    return isinstance(values, tuple)


def _beside_mask(values: Values, compute: Callable[[Tensor, Tensor | None], Tensor]) -> Values:
    if not _has_mask(values):
        return compute(values, None)
    x, mask = values
    return compute(x, mask), mask
