"""From a graph and its places to layers: what each computes, and which tensors it has.

Rule: a tensor is called what it is called in the whole module, so the state of all layers together
is what its `load_state_dict` takes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bamboo.models.traced.export import Exported, Untraceable
from bamboo.models.traced.graph import NORM, Call, Graph, names_in, renamed, values_in
from bamboo.models.traced.places import Place, numbers_behind, same_size
from bamboo.models.traced.plan import Held, LayerPlan
from bamboo.models.untrained import MEAN, STEPS, VARIANCE


def planned(
    module: nn.Module, found: Exported, places: Sequence[Place], train_only: str = ""
) -> list[LayerPlan]:
    """The layers between these places; `train_only` as in `LayerPlan`. Raises Untraceable for a
    parameter that is trained and takes no part."""
    edges = [0, *(place.at for place in places), len(found.graph.calls)]
    crossing = [tuple(found.graph.inputs), *(place.crossing for place in places)]
    graphs = [
        _graph(found, first, last, inputs, outputs)
        for (first, last), inputs, outputs in zip(
            pairwise(edges), crossing, (*crossing[1:], found.graph.outputs), strict=True
        )
    ]
    held = _Holders(module, found, graphs)
    return [
        LayerPlan(
            name=_name(found.modules[first:last]),
            graph=replace(graph, calls=[_renamed(call, held.names[i]) for call in graph.calls]),
            shapes=[_shape(found, value) for value in graph.inputs],
            parameters=held.parameters[i],
            buffers=held.buffers[i],
            norms={path: _settings(module.get_submodule(path)) for path in _norms_in(graph)},
            train_only=train_only,
        )
        for i, (graph, (first, last)) in enumerate(zip(graphs, pairwise(edges), strict=True))
    ]


def _graph(
    found: Exported, first: int, last: int, inputs: Sequence[int], outputs: Sequence[int]
) -> Graph:
    """The calls of a layer, and before them those of the numbers that it needs of earlier ones."""
    calls = found.graph.calls
    made = {call.out for call in calls[first:last]}
    needed = [
        value
        for call in calls[first:last]
        for value in values_in([call.args, call.kwargs])
        if value not in made and found.facts[value].dtype == "number"
    ]
    numbers = [_here(found, calls[i], inputs) for i in numbers_behind(found, needed) if i < first]
    return Graph(inputs=[*inputs], calls=[*numbers, *calls[first:last]], outputs=[*outputs])


def _here(found: Exported, call: Call, inputs: Sequence[int]) -> Call:
    place = same_size(found, call, inputs) if not _is_of_numbers(found, call) else None
    if place is None:
        return call
    return replace(call, args=[{"v": place[0]}, place[1]], kwargs={})


def _is_of_numbers(found: Exported, call: Call) -> bool:
    return all(found.facts[v].dtype == "number" for v in values_in([call.args, call.kwargs]))


class _Holders:
    """Which layer has which tensors, and by which names."""

    def __init__(self, module: nn.Module, found: Exported, graphs: Sequence[Graph]) -> None:
        self.parameters: list[list[Held]] = [[] for _ in graphs]
        self.buffers: list[list[Held]] = [[] for _ in graphs]
        self.names: list[dict[str, str]] = [{} for _ in graphs]
        """Of each layer: name of a parameter -> its name there, where that is another one."""
        self._graphs = graphs
        self._used = [_tensors_in(graph) for graph in graphs]
        self._nearest = 0
        state = module.state_dict(keep_vars=True)
        all_names: dict[int, list[str]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            all_names.setdefault(id(parameter), []).append(name)
        for parameter in module.parameters():
            self._parameter(parameter, all_names[id(parameter)])
        for name, _ in module.named_buffers(remove_duplicate=False):
            self._buffer(name, saved=name in state)
        for name in found.tensors:
            if name.startswith("constants."):
                self._buffer(name, saved=False)

    def _users(self, name: str) -> list[int]:
        users = [layer for layer, used in enumerate(self._used) if name in used]
        if users:
            self._nearest = users[0]
        return users

    def _parameter(self, parameter: nn.Parameter, names: Sequence[str]) -> None:
        users = self._users(names[0])
        if not users and parameter.requires_grad:
            raise Untraceable(
                f"its parameter {names[0]!r} takes no part in what it returns",
                "remove it, or freeze it: requires_grad_(False)",
            )
        for place, layer in enumerate(users or [self._nearest]):
            name = names[place] if place < len(names) else names[0]
            self.names[layer] |= {names[0]: name} if name != names[0] else {}
            self.parameters[layer].append(
                Held(
                    name=name,
                    of=names[0],
                    shape=tuple(parameter.shape),
                    dtype=str(parameter.dtype).removeprefix("torch."),
                    trained=parameter.requires_grad,
                )
            )
        last = self.parameters[(users or [self._nearest])[-1]]
        here = last[-1].name
        for name in names[len(users) or 1 :]:
            last.append(Held(name=name, of=names[0], same=here))

    def _buffer(self, name: str, *, saved: bool) -> None:
        path, _, short = name.rpartition(".")
        users = self._users(name)
        if short in (MEAN, VARIANCE, STEPS):
            users = [
                layer for layer, graph in enumerate(self._graphs) if path in _norms_in(graph)
            ] or users
            if len(users) > 1:
                raise Untraceable(
                    f"its batch norm {path!r} is used more than once, and its running statistics "
                    "need one use",
                    "give each use one of its own",
                )
        for layer in users or ([self._nearest] if saved else []):
            self.buffers[layer].append(Held(name=name, of=name, saved=saved))


def _tensors_in(graph: Graph) -> frozenset[str]:
    return frozenset(names_in(graph.calls)) | {
        f"{path}.{kind}" for path in _norms_in(graph) for kind in ("weight", "bias")
    }


def _norms_in(graph: Graph) -> Iterator[str]:
    return (str(call.args[0]) for call in graph.calls if call.op == NORM)


def _settings(norm: nn.Module) -> dict[str, Any]:
    assert isinstance(norm, _BatchNorm)
    return {"num_features": norm.num_features, "eps": norm.eps, "momentum": norm.momentum}


def _renamed(call: Call, names: Mapping[str, str]) -> Call:
    if not names:
        return call
    return replace(call, args=renamed(call.args, names), kwargs=renamed(call.kwargs, names))


def _shape(found: Exported, value: int) -> list[int | None]:
    return [size if isinstance(size, int) else None for size in found.facts[value].shape]


def _name(modules: Sequence[str]) -> str:
    """`layer1.0`, or `conv1..layer1.0`: the modules whose parts the layer has."""
    paths = [path for path in modules if path]
    if not paths:
        return "forward"
    common: list[str] = []
    for parts in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    if common:
        return ".".join(common)
    tops = [*dict.fromkeys(path.partition(".")[0] for path in paths)]
    return tops[0] if len(tops) == 1 else f"{tops[0]}..{tops[-1]}"
