"""What is found of each parameter of a layer while that is looked at: whether the factors of its
gradient can be sent in place of it, and how many of the gradient's rows have a bit set.

Rule: a weight is plain when its gradient, formed again from its recorded factors, has the bits of
autograd's, here and in the job's precision. Anything else is named, and is not plain.
"""

from collections.abc import Mapping, Sequence
from math import log

import torch
from torch import Tensor, nn

from bamboo.models.workload import TiedParameter
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.runtime.check.one_layer import same
from bamboo.runtime.step.factors import Record, Recorder, summed, use_that_forbids
from bamboo.runtime.step.rows import touched

OTHER_BITS = "has a gradient of other bits than the product of its factors"


class Parameters:
    """Looks at the parameters of one layer, of this global index, in the microbatches that it runs.
    `recorder` records the layer."""

    def __init__(self, index: int, layer: nn.Module, recorder: Recorder) -> None:
        self._index = index
        self._parameters = dict(layer.named_parameters())
        self._recorder = recorder
        self._why_not = {name: use_that_forbids(layer, name) for name in self._parameters}
        self._rows_k = dict.fromkeys(self._parameters, 0)
        self._shares: dict[str, list[float]] = {name: [] for name in self._parameters}
        self._touched: dict[str, Tensor] = {}
        """Of a matrix: which rows had a bit set in any microbatch."""

    def begin(self) -> None:
        """Record the next microbatch."""
        plain = (name for name, why_not in self._why_not.items() if not why_not)
        self._recorder.record([f"{self._index}.{name}" for name in plain])

    def took(self, record: Record | None) -> None:
        """The backward of the record is done, alone since the gradients were cleared."""
        for name, parameter in self._parameters.items():
            use = None if record is None else record.get(f"{self._index}.{name}")
            if use is None or self._why_not[name]:
                continue
            try:
                factors = use.factors()
            except ValueError as error:
                self._refuse(name, str(error))
                continue
            formed = summed([factors], parameter.shape, parameter.device)
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if not same((formed,), (grad,)):
                self._refuse(name, OTHER_BITS)
            if factors is not None:
                self._rows_k[name] = max(self._rows_k[name], factors.input.shape[0])
        self._recorder.record([])
        self.saw()

    def saw(self) -> None:
        """The gradients are those of one microbatch."""
        for name, parameter in self._parameters.items():
            grad = parameter.grad
            if grad is None or grad.dim() < 2 or not grad.numel():
                continue
            rows = touched(grad.detach().reshape(len(grad), -1))
            self._shares[name].append(float(rows.float().mean()))
            self._touched[name] = self._touched[name] | rows if name in self._touched else rows

    def facts(self, microbatches: int) -> tuple[ParameterFacts, ...]:
        """What was found; a step has so many microbatches."""
        found = []
        for name, parameter in self._parameters.items():
            density, step_density = self._densities(name, microbatches)
            why_not = self._why_not[name]
            found.append(
                ParameterFacts(
                    name=f"{self._index}.{name}",
                    shape=tuple(parameter.shape),
                    layer=self._index,
                    rows_k=0 if why_not else self._rows_k[name],
                    why_not=why_not or ("" if self._rows_k[name] else "has no gradient here"),
                    density=density,
                    step_density=step_density,
                    trained=parameter.requires_grad,
                )
            )
        return tuple(found)

    def _densities(self, name: str, microbatches: int) -> tuple[float, float]:
        """Of a microbatch, the mean; of a step, as the rows grow with the microbatches looked at
        (see `ParameterFacts.density_after`), or as if all microbatches had others."""
        shares = self._shares[name]
        if not shares:
            return 1.0, 1.0
        mean = sum(shares) / len(shares)
        if not mean:
            return 0.0, 0.0
        power = 1.0
        if len(shares) > 1:
            power = log(float(self._touched[name].float().mean()) / mean) / log(len(shares))
        return mean, min(1.0, mean * float(microbatches) ** max(0.0, power))

    def _refuse(self, name: str, why_not: str) -> None:
        self._why_not[name] = self._why_not[name] or why_not


def with_ties(
    found: Sequence[tuple[ParameterFacts, ...]], tied: Sequence[TiedParameter]
) -> list[tuple[ParameterFacts, ...]]:
    """The facts of all layers, with what follows from tied parameters: their gradients are added,
    so the sum has the rows of all uses, and is no product."""
    uses: dict[str, dict[str, None]] = {}
    for tie in tied:
        owner = f"{tie.owner_layer}.{tie.owner_name}"
        uses.setdefault(owner, {owner: None})[f"{tie.user_layer}.{tie.user_name}"] = None
    group = {name: tuple(names) for names in uses.values() for name in names}
    facts = {one.name: one for layer in found for one in layer}
    return [tuple(_tied(one, group, facts) for one in layer) for layer in found]


def _tied(
    one: ParameterFacts,
    group: Mapping[str, tuple[str, ...]],
    facts: Mapping[str, ParameterFacts],
) -> ParameterFacts:
    if one.name not in group:
        return one
    names = group[one.name]
    other = next(name for name in names if name != one.name)
    return ParameterFacts(
        name=one.name,
        shape=one.shape,
        layer=one.layer,
        why_not=f"is tied to {other}",
        density=max(facts[name].density for name in names),
        step_density=max(facts[name].step_density for name in names),
        trained=one.trained,
    )
