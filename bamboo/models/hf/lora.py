"""Low-rank adapters by peft (Hu et al., 2021): trained beside linear layers that are frozen.

Rule: only adapters are trained. A layer without a target is frozen whole.
"""

from collections.abc import Iterable

from peft import LoraConfig as PeftConfig
from peft import inject_adapter_in_model
from torch import nn

from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.models.hf.parts import base_name
from bamboo.models.hf.weights import ties_of

NAMED = 12
"""How many kinds of linear layers an error names."""


class Adapters:
    """The adapters that a job names."""

    def __init__(self, job: JobConfig) -> None:
        lora = job.model.lora
        self._targets = frozenset(lora.targets)
        self.config = PeftConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=[*lora.targets],
        )

    def put_into(self, model: nn.Module) -> None:
        """Put adapters beside the targets in a layer, or in the whole model, with the initial
        values that peft draws; everything else is frozen."""
        model.requires_grad_(False)
        if self._targets & {name.rpartition(".")[2] for name in _named(model)}:
            inject_adapter_in_model(self.config, model)
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(not base_name(name))


def check_targets(job: JobConfig, whole: nn.Module) -> None:
    """Raises InputError for a target that is no linear layer of the model, or whose weight is tied
    to another one's."""
    found = {name.rpartition(".")[2]: module for name, module in _named(whole).items()}
    kinds = [name for name, module in found.items() if _is_linear(module)]
    tied = {
        name.removesuffix(".weight").rpartition(".")[2]: owner
        for name, owner in ties_of(whole).items()
        if name.endswith(".weight")
    }
    free = [name for name in kinds if name not in tied]
    for target in job.model.lora.targets:
        if target not in free:
            problem = f"{target!r} matches no linear layer of {type(whole).__name__}"
            if target in kinds:
                problem = f"{target!r} has its weight from {tied[target]}, to which it is tied"
            raise InputError.at(
                file=job.file,
                key="model.lora.targets",
                value=[*job.model.lora.targets],
                problem=problem,
                remedy=f"take some of {_some(free)}",
            )


def _named(model: nn.Module) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if name}


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _some(names: Iterable[str]) -> str:
    kinds = sorted(names)
    return ", ".join(kinds[:NAMED]) + (", ..." if len(kinds) > NAMED else "")
