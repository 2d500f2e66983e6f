"""GPT-2, which publishes no pipeline plan: embedding, blocks, head."""

from typing import Any

from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.masking_utils import create_causal_mask

from bamboo.models.gpt import token_loss
from bamboo.models.hf.family import Family
from bamboo.models.hf.parts import Part, Piece


def gpt2(config: Any) -> Family:
    """The family."""
    return Family(
        make=lambda: AutoModelForCausalLM.from_config(config),
        parts=_parts,
        whole=lambda model, inputs: model(input_ids=inputs[0], use_cache=False).logits,
        loss=token_loss,
    )


def _parts(model: PreTrainedModel) -> tuple[Part, ...]:
    base = model.base_model_prefix
    blocks = [f"{base}.h.{number}" for number in range(model.config.num_hidden_layers)]
    norm = f"{base}.ln_f"

    def embed(piece: Piece, tokens_BT: Tensor) -> Tensor:
        x_BTC: Tensor = piece.at(base)(input_ids=tokens_BT, use_cache=False).last_hidden_state
        return x_BTC

    def block(path: str) -> Part:
        def run(piece: Piece, x_BTC: Tensor) -> Tensor:
            mask = create_causal_mask(
                config=model.config, inputs_embeds=x_BTC, attention_mask=None, cache=None
            )
            y_BTC: Tensor = piece.at(path)(x_BTC, None, mask, use_cache=False)
            return y_BTC

        return Part(holds=(path,), run=run)

    def finish(piece: Piece, x_BTC: Tensor) -> Tensor:
        logits_BTV: Tensor = piece.at("lm_head")(piece.at(norm)(x_BTC))
        return logits_BTV

    return (
        Part(
            holds=(f"{base}.wte", f"{base}.wpe"),
            beside=(f"{base}.drop",),
            skipped=(*blocks, norm),
            run=embed,
        ),
        *map(block, blocks),
        Part(holds=(norm, "lm_head"), run=finish),
    )
