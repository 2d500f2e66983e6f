"""What a Workload must be before a layer of it is made: the checks that need no layer.

Rule: an error is (problem, remedy), with the place in the workload. What shows only once layers are
made and run is checked by the preflight.
"""

import reprlib
from collections.abc import Sequence

from torch import nn

from bamboo.models.workload import TiedParameter, Workload

MOST_USES = 1000
"""Of one tied parameter, including its owner's: a message's number includes a use's position."""

Flaw = tuple[str, str]
"""(problem, remedy)"""


def flaw_of(workload: Workload) -> Flaw | None:
    """The first problem for which `workload` is not a model; None when there is none."""
    layers: object = workload.layers
    if not isinstance(layers, Sequence | nn.Sequential) or not len(layers):
        return f"layers is {_short(layers)}", (
            "give a list, a tuple or an nn.Sequential of layers, or of functions that make one"
            + ', or set model.split = "trace", which cuts a whole module'
            * isinstance(layers, nn.Module)
        )
    for index, factory in enumerate(layers):
        if not callable(factory):
            return (
                f"layers[{index}] is {_short(factory)}",
                "give a layer, or a function that makes one",
            )
    if isinstance(workload.loss, type) or not callable(workload.loss):
        return f"loss is {_short(workload.loss)}", (
            "give a function of (outputs, targets), or an object that is called so, such as "
            "nn.CrossEntropyLoss(reduction='sum')"
        )
    if not (workload.metrics is None or callable(workload.metrics)):
        return f"metrics is {_short(workload.metrics)}", "give a function of (outputs, targets)"
    if workload.optimizer is not None and (flaw := flaw_of_optimizer(workload.optimizer)):
        return flaw
    if not (workload.schedule is None or callable(workload.schedule)):
        return f"schedule is {_short(workload.schedule)}", (
            "name a built-in one by train.schedule, or give a function of (step, steps, train)"
        )
    if not isinstance(workload.plain, bool):
        return f"plain is {workload.plain!r}", "give True or False, or leave it out"
    if not isinstance(workload.frozen, tuple) or not all(
        isinstance(pattern, str) for pattern in workload.frozen
    ):
        return f"frozen is {workload.frozen!r}", "give a tuple of patterns, such as ('0.*',)"
    if not isinstance(workload.tied, Sequence) or not all(
        isinstance(tie, TiedParameter) for tie in workload.tied
    ):
        return f"tied is {_short(workload.tied)}", (
            "give a tuple of bamboo.models.TiedParameter(owner_layer=0, owner_name=..., "
            "user_layer=..., user_name=...)"
        )
    return _flaw_of_ties(workload.tied, len(workload.layers))


def flaw_of_optimizer(optimizer: object) -> Flaw | None:
    """The problem for which this is not an optimizer."""
    methods = [getattr(optimizer, name, None) for name in ("state", "step")]
    if not isinstance(optimizer, type) and all(map(callable, methods)):
        return None
    return f"optimizer is {_short(optimizer)}", (
        "name a built-in one by train.optimizer, or give an object with the methods state and step "
        "(bamboo.models.Optimizer)"
    )


def _flaw_of_ties(tied: Sequence[TiedParameter], layers: int) -> Flaw | None:
    owner_of: dict[tuple[int, str], tuple[int, str]] = {}
    for tie in tied:
        owner, user = (tie.owner_layer, tie.owner_name), (tie.user_layer, tie.user_name)
        for layer, name in (owner, user):
            if type(layer) is not int or not 0 <= layer < layers or not isinstance(name, str):
                return (
                    f"{_said(tie)} names layer {layer!r}, parameter {name!r}, of a model with "
                    f"the layers 0 to {layers - 1}",
                    "give the number of a layer and the name of a parameter of it",
                )
        if owner == user:
            return f"{_said(tie)} ties a parameter to itself", "leave it out"
        if user in owner_of:
            return (
                f"{_said(tie)}, but {_place(user)} is tied to {_place(owner_of[user])} already",
                "tie each parameter once, all uses of one to the same owner",
            )
        owner_of[user] = owner
    return _flaw_of_uses(tied, owner_of)


def _flaw_of_uses(
    tied: Sequence[TiedParameter], owner_of: dict[tuple[int, str], tuple[int, str]]
) -> Flaw | None:
    """Problems of ties together, each of which is in order by itself."""
    uses: dict[tuple[int, str], dict[int, str]] = {}
    for tie in tied:
        owner = (tie.owner_layer, tie.owner_name)
        if owner in owner_of:
            return (
                f"{_said(tie)}, but {_place(owner)} is itself tied to {_place(owner_of[owner])}",
                f"name {_place(owner_of[owner])} as the owner: ties form no chains",
            )
        of_layer = uses.setdefault(owner, {tie.owner_layer: tie.owner_name})
        if tie.user_layer in of_layer:
            return (
                f"{_said(tie)}, but layer {tie.user_layer} has a use of it already, "
                f"{of_layer[tie.user_layer]!r}",
                "give one nn.Parameter both names within the layer, and tie it once",
            )
        of_layer[tie.user_layer] = tie.user_name
        if len(of_layer) > MOST_USES:
            return f"{_place(owner)} has more than {MOST_USES} uses", "tie fewer layers"
    return None


def _short(value: object) -> str:
    """What it is, in few words: a module's own text has a line for each of its parts."""
    return type(value).__name__ if isinstance(value, nn.Module) else reprlib.repr(value)


def _said(tie: TiedParameter) -> str:
    user, owner = (tie.user_layer, tie.user_name), (tie.owner_layer, tie.owner_name)
    return f"tied: {_place(user)} to {_place(owner)}"


def _place(place: tuple[int, str]) -> str:
    return f"{place[0]}.{place[1]}"
