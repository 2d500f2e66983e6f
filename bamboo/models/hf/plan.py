"""Layers by the pipeline plan that a family publishes (`base_model_pp_plan`): embedding, one layer
after the other, and what follows them with the head.

Rule: each layer runs the family's own forward, in which other layers' modules hand their input
through. So positions, masks and rotary tables are the family's own, made where they are used.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from bamboo.errors import InputError
from bamboo.models.gpt import token_loss
from bamboo.models.hf.family import Family
from bamboo.models.hf.parts import Part, Piece


def planned(config: Any) -> Family:
    """The family of a configuration that has a plan."""
    return Family(
        make=lambda: AutoModelForCausalLM.from_config(config),
        parts=_parts,
        whole=lambda model, inputs: model(input_ids=inputs[0], use_cache=False).logits,
        loss=token_loss,
    )


def _parts(model: PreTrainedModel) -> tuple[Part, ...]:
    prefix, base = model.base_model_prefix, model.base_model
    plan: Mapping[str, Any] = model.config.base_model_pp_plan or {}
    paths = [*plan]
    lists = [path for path in paths if isinstance(base.get_submodule(path), nn.ModuleList)]
    if len(lists) != 1 or base is model:
        raise InputError(f"the pipeline plan of {type(model).__name__} names no list of layers")
    blocks = lists[0]
    before = paths[: paths.index(blocks)]
    after = paths[paths.index(blocks) + 1 :]
    each = [f"{blocks}.{name}" for name, _ in base.get_submodule(blocks).named_children()]
    planned_paths = [*before, *each, *after]
    beside = _beside(base, paths)
    head = [name for name, _ in model.named_children() if name != prefix]

    def part(own: Sequence[str], run: Any, heads: Sequence[str] = ()) -> Part:
        return Part(
            holds=(*(f"{prefix}.{path}" for path in own), *heads),
            skipped=tuple(f"{prefix}.{path}" for path in planned_paths if path not in own),
            beside=tuple(f"{prefix}.{path}" for path in beside),
            run=run,
        )

    def embed(piece: Piece, tokens: Tensor) -> Tensor:
        found: Tensor = piece.at(prefix)(input_ids=tokens, use_cache=False).last_hidden_state
        return found

    def block(piece: Piece, x: Tensor) -> Tensor:
        found: Tensor = piece.at(prefix)(inputs_embeds=x, use_cache=False).last_hidden_state
        return found

    def finish(piece: Piece, x: Tensor) -> Tensor:
        found: Tensor = piece.whole(inputs_embeds=x, use_cache=False).logits
        return found

    return (
        part(before, embed),
        *(part([path], block) for path in each),
        part(after, finish, head),
    )


def _beside(base: nn.Module, planned_paths: Sequence[str]) -> list[str]:
    """What the plan does not name, and a forward needs: tables without parameters."""
    found = []
    for name, child in base.named_children():
        if name in planned_paths:
            continue
        if next(child.parameters(), None) is not None:
            raise InputError(
                f"the pipeline plan of {type(base).__name__} leaves out {name}, which has "
                "parameters; take another family"
            )
        found.append(name)
    return found
