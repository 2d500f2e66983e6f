"""Where a traced model is cut into layers: places where few tensors cross.

Rule: the places follow from the graph and the shapes alone, so a job has the same layers wherever
it is launched.

Between two operations with weights there is one place, where the fewest numbers cross. The model is
cut at all of those at which the fewest tensors cross; a layer that is still large is cut again in
the same way, as the levels of a U-net are.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bamboo.models.traced.export import Exported
from bamboo.models.traced.graph import Call, names_in, values_in

LARGE = 1 / 24
"""Of the work of the whole model: a layer with more is cut again."""
MOST_LAYERS = 64
MOST_TENSORS = 32
"""That may cross a place."""
SENDABLE = frozenset(
    f"torch.{name}"
    for name in ("float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8", "bool")
)
SIZE = "aten.sym_size.int"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Between two calls."""

    at: int
    """The first call behind it."""
    crossing: tuple[int, ...]
    """The tensors that are made before it, or are the model's inputs, and are used behind it."""
    numbers: int


def cuts_of(found: Exported) -> list[Place]:
    """The places at which the model is cut, in order."""
    work = [*_works(found)]
    heavy = [place for place, call in enumerate(found.graph.calls) if _has_weight(found, call)]
    by_place = {place.at: place for place in _places(found)}
    between = [
        min(there, key=lambda place: (len(place.crossing), place.numbers, -place.at))
        for first, second in pairwise(heavy)
        if (there := [by_place[i] for i in range(first + 1, second + 1) if i in by_place])
    ]
    found_places = _cut((0, len(work)), between, work, LARGE * sum(work))
    chosen = sorted(found_places, key=lambda place: place.at)
    while len(chosen) >= MOST_LAYERS:
        edges = [0, *(place.at for place in chosen), len(work)]
        sums = [sum(work[a:b]) for a, b in pairwise(edges)]
        joined = [a + b for a, b in pairwise(sums)]
        del chosen[joined.index(min(joined))]
    return chosen


def numbers_behind(found: Exported, needed: Iterable[int]) -> list[int]:
    """The places of the calls that make these numbers, and the numbers that those need, in order:
    sizes, which each layer computes by itself."""
    calls = found.graph.calls
    makers = {call.out: place for place, call in enumerate(calls)}
    out: set[int] = set()
    waiting = [*needed]
    while waiting:
        place = makers[waiting.pop()]
        if place not in out:
            out.add(place)
            waiting += _numbers_in(found, calls[place])
    return sorted(out)


def same_size(found: Exported, call: Call, crossing: Sequence[int]) -> tuple[int, int] | None:
    """(tensor, dimension) among those that cross, with the size that this call asks for."""
    (tensor, *others), dimension = values_in(call.args[0]), call.args[1]
    if others:  # of another tensor in the other mode
        return None
    if tensor in crossing:
        return tensor, dimension
    wanted = found.facts[tensor].shape[dimension]
    for value in crossing:
        if wanted in found.facts[value].shape:
            return value, found.facts[value].shape.index(wanted)
    return None


def _cut(
    edges: tuple[int, int], places: Sequence[Place], work: Sequence[float], large: float
) -> Iterator[Place]:
    """The places between two calls at which to cut."""
    first, last = edges
    within = [place for place in places if first < place.at < last]
    if not within or sum(work[first:last]) <= large:
        return
    fewest = min(len(place.crossing) for place in within)
    here = [place for place in within if len(place.crossing) == fewest]
    yield from here
    for part in pairwise((first, *(place.at for place in here), last)):
        yield from _cut(part, within, work, large)


def _places(found: Exported) -> Iterator[Place]:
    """All places at which the model can be cut."""
    calls, facts = found.graph.calls, found.facts
    last: dict[int, int] = {value: i for i, call in enumerate(calls) for value in _uses(call)}
    last |= dict.fromkeys(found.graph.outputs, len(calls))
    roots = _last_uses_of_sizes(found, last)
    written: list[frozenset[int]] = [frozenset()]
    for i in range(len(calls) - 1, -1, -1):
        written.append(written[-1] | found.written.get(i, frozenset()))
    written.reverse()
    alive = dict.fromkeys(value for value in found.graph.inputs if value in last)
    of_one_mode = {call.out for call in calls if call.mode}
    for at, before in enumerate(calls[:-1], start=1):
        alive |= dict.fromkeys([before.out] if facts[before.out].dtype != "number" else ())
        alive = dict.fromkeys(value for value in alive if last.get(value, -1) >= at)
        kept = frozenset[int]().union(*(facts[value].memory for value in alive))
        needed = [call for call, (made, used) in roots.items() if made < at <= used]
        if (
            0 < len(alive) <= MOST_TENSORS
            and all(_may_cross(found, value) for value in alive)
            and not written[at] & kept
            and not of_one_mode & alive.keys()
            and all(_is_known(found, calls[call], [*alive]) for call in needed)
        ):
            numbers = sum(facts[value].numbers for value in alive)
            yield Place(at=at, crossing=tuple(sorted(alive)), numbers=numbers)


def _last_uses_of_sizes(found: Exported, last: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Call that makes a number of no other number -> (its place, the last place at which something
    made of it is used)."""
    roots: dict[int, frozenset[int]] = {}
    uses: dict[int, tuple[int, int]] = {}
    for place, call in enumerate(found.graph.calls):
        if found.facts[call.out].dtype != "number":
            continue
        of = [roots[value] for value in _numbers_in(found, call)]
        roots[call.out] = frozenset[int]().union(*of) if of else frozenset({place})
        for root in roots[call.out]:
            uses[root] = (root, max(uses.get(root, (0, -1))[1], last.get(call.out, -1)))
    return uses


def _numbers_in(found: Exported, call: Call) -> list[int]:
    return [value for value in _uses(call) if found.facts[value].dtype == "number"]


def _uses(call: Call) -> Iterator[int]:
    return values_in([call.args, call.kwargs])


def _may_cross(found: Exported, value: int) -> bool:
    """Only what lies in order has the same bits behind a cut: a layer is given its tensors so."""
    facts = found.facts[value]
    return facts.dtype in SENDABLE and (facts.contiguous or "float" not in facts.dtype)


def _is_known(found: Exported, call: Call, crossing: Sequence[int]) -> bool:
    """Whether a layer behind the place can find this number."""
    return call.op == SIZE and same_size(found, call, crossing) is not None


def _has_weight(found: Exported, call: Call) -> bool:
    return any(_weights(found, call))


def _weights(found: Exported, call: Call) -> Iterator[tuple[int, ...]]:
    """The sizes of the matrices that it has among its arguments."""
    sizes = (found.weights.get(name, ()) for name in names_in([call]))
    return (size for size in sizes if len(size) > 1)


def _works(found: Exported) -> Iterator[float]:
    """About how many additions and multiplications each call is."""
    facts = found.facts
    for call in found.graph.calls:
        out = facts[call.out].numbers
        uses = [facts[value].sizes for value in values_in(call.args)]
        total = float(out)
        if call.op.startswith("aten.scaled_dot_product_attention"):
            total += 4.0 * math.prod(uses[0]) * uses[1][-2]
        elif call.op.startswith(("aten.matmul", "aten.bmm", "aten.mm")):
            total += 2.0 * out * uses[0][-1]
        elif not call.op.startswith("aten.embedding"):
            total += sum(2.0 * math.prod(w) * out / w[0] for w in _weights(found, call))
        yield total
