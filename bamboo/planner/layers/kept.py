"""What each of the known optimizers keeps of a parameter, by its shape alone.

Rule: the runtime makes these tensors and the planner counts their bytes, both from here.
"""

from collections.abc import Callable, Mapping
from math import prod

Shape = tuple[int, ...]
Kept = Mapping[str, Shape]


def _both(shape: Shape, momentum: bool) -> Kept:
    return {"exp_avg": shape, "exp_avg_sq": shape}


def _momentum(shape: Shape, momentum: bool) -> Kept:
    return {"momentum_buffer": shape} if momentum else {}


def _sum(shape: Shape, momentum: bool) -> Kept:
    return {"sum": shape}


def _square(shape: Shape, momentum: bool) -> Kept:
    return {"square_avg": shape, **_momentum(shape, momentum)}


def _factored(shape: Shape, momentum: bool) -> Kept:
    """Of the last two dimensions the means over each alone (Shazeer and Stern, 2018)."""
    if len(shape) < 2:
        return {"variance": shape}
    return {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, shape[-1])}


OPTIMIZERS: Mapping[str, Callable[[Shape, bool], Kept]] = {
    "adamw": _both,
    "adam": _both,
    "sgd": _momentum,
    "adagrad": _sum,
    "rmsprop": _square,
    "adafactor": _factored,
}
"""Name -> (shape of a parameter, whether there is momentum) -> kind -> shape; all are float32."""
DEFAULT = "adamw"


def kept_scalars(optimizer: str, shape: Shape, *, momentum: bool = False) -> int:
    """Scalars that an optimizer keeps of a parameter of this shape. One that is not known is
    counted as the default, until it is asked itself (the preflight does)."""
    kept = OPTIMIZERS.get(optimizer, OPTIMIZERS[DEFAULT])
    return sum(prod(one) for one in kept(shape, momentum).values())
