"""T5, an encoder and a decoder: both embeddings, the encoder's blocks, the decoder's, the head.

What passes between layers, with the encoder's states x_BSC and the decoder's y_BTC:

    in the encoder    x_BSC, y_BTC, bias or none yet, mask_BS where the data give one
    in the decoder    the same, where x_BSC is what the encoder made of it

The position bias is made in the first block of each and used by all of it, so it is handed on as it
is in the whole model: its gradients add in the same order.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from bamboo.data.dataset import Data, MadeOfText
from bamboo.models.gpt import token_loss
from bamboo.models.hf.family import Family
from bamboo.models.hf.objectives import LostSpans
from bamboo.models.hf.parts import Part, Piece, Values


def t5(config: Any) -> Family:
    """The family."""

    def whole(model: Any, inputs: Sequence[Tensor]) -> Tensor:
        tokens, before, *mask = inputs
        logits: Tensor = model(
            input_ids=tokens,
            decoder_input_ids=before,
            attention_mask=mask[0] if mask else None,
            use_cache=False,
        ).logits
        return logits

    def spans(data: Data) -> Data:
        start = config.decoder_start_token_id or config.pad_token_id or 0
        return LostSpans(data, vocabulary=config.vocab_size, start=start, end=config.eos_token_id)

    return Family(
        make=lambda: AutoModelForSeq2SeqLM.from_config(config),
        parts=_parts,
        whole=whole,
        loss=token_loss,
        draw=_draw,
        data=MadeOfText(make=spans),
    )


def _draw(model: Any, piece: nn.Module) -> None:
    """What T5's rule gives when it comes to the whole model."""
    factor = model.config.initializer_factor
    for name, parameter in piece.named_parameters():
        if name in ("shared.weight", "lm_head.weight"):
            parameter.normal_(mean=0.0, std=factor * 1.0)


def _parts(model: Any) -> tuple[Part, ...]:
    config: Any = model.config
    encoder = [f"encoder.block.{number}" for number in range(config.num_layers)]
    decoder = [f"decoder.block.{number}" for number in range(config.num_decoder_layers)]
    in_encoder, in_decoder = model.encoder.config, model.decoder.config

    def embed(piece: Piece, inputs: Values) -> Values:
        tokens_BS, before_BT, *mask = inputs
        x_BSC = piece.at("encoder.dropout")(piece.at("shared")(tokens_BS))
        y_BTC = piece.at("decoder.dropout")(piece.at("shared")(before_BT))
        return (x_BSC, y_BTC, *mask)

    def encode(path: str) -> Part:
        is_first, is_last = path == encoder[0], path == encoder[-1]

        def run(piece: Piece, values: Values) -> Values:
            x_BSC, y_BTC, *rest = values
            bias = None if is_first else rest.pop(0)
            mask = create_bidirectional_mask(
                config=in_encoder, inputs_embeds=x_BSC, attention_mask=rest[0] if rest else None
            )
            x_BSC, bias, _ = piece.at(path)(x_BSC, mask, bias)
            if is_last:
                norm, dropout = piece.at("encoder.final_layer_norm"), piece.at("encoder.dropout")
                return (dropout(norm(x_BSC)), y_BTC, *rest)
            return (x_BSC, y_BTC, bias, *rest)

        last = ("encoder.final_layer_norm",) if is_last else ()
        return Part(holds=(path, *last), beside=("encoder.dropout",), run=run)

    def decode(path: str) -> Part:
        is_first, is_last = path == decoder[0], path == decoder[-1]

        def run(piece: Piece, values: Values) -> Values:
            x_BSC, y_BTC, *rest = values
            bias = None if is_first else rest.pop(0)
            mask = create_causal_mask(
                config=in_decoder, inputs_embeds=y_BTC, attention_mask=None, cache=None
            )
            across = create_bidirectional_mask(
                config=in_decoder,
                inputs_embeds=y_BTC,
                attention_mask=rest[0] if rest else None,
                encoder_hidden_states=x_BSC,
            )
            y_BTC, bias, _ = piece.at(path)(y_BTC, mask, bias, x_BSC, across, None)
            return y_BTC if is_last else (x_BSC, y_BTC, bias, *rest)

        return Part(holds=(path,), run=run)

    def finish(piece: Piece, y_BTC: Tensor) -> Tensor:
        y_BTC = piece.at("decoder.dropout")(piece.at("decoder.final_layer_norm")(y_BTC))
        if config.scale_decoder_outputs:
            y_BTC = y_BTC * (config.d_model**-0.5)
        logits_BTV: Tensor = piece.at("lm_head")(y_BTC)
        return logits_BTV

    return (
        Part(holds=("shared",), beside=("encoder.dropout", "decoder.dropout"), run=embed),
        *map(encode, encoder),
        *map(decode, decoder),
        Part(
            holds=("decoder.final_layer_norm", "lm_head"), beside=("decoder.dropout",), run=finish
        ),
    )
