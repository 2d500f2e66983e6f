"""A device of tensors without memory, and a guard that refuses what a GPU would refuse or wait for.

Device tensors lie on `meta`, those of the host on the CPU. An operation that takes both, a number
that is read from the device, and a copy between the two outside the device room are errors here,
with the line of the product that asked for them. What may be read, and where a module may move to
the device, stands in `MAY_READ` and `MAY_MOVE`. What is read is 1, so runs have no bits here, but
every operation, message and copy of them is one of a real run.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bamboo
from bamboo.runtime.device.staging import OnHost, Staged

T = TypeVar("T")
META = torch.device("meta")
PRODUCT = Path(bamboo.__file__).parent
MAY_READ = frozenset(
    {
        "runtime/step/norm.py squares",
        "runtime/step/evaluation.py settled",
        "runtime/node/records.py run_hash",
        "runtime/state/checkpoints.py Checkpoints.boundary",
        "runtime/wire/chunks.py _joined",
        "runtime/wire/chunks.py copy_of",
        "runtime/check/reference.py CalmRun._run",
        "checkpoint/final.py tensor_sha256",
        "checkpoint/final.py write_stage",
    }
)
MAY_MOVE = frozenset(
    {
        "runtime/step/stage.py Stage.__init__",
        "runtime/check/reference.py CalmRun.__init__",
        "runtime/device/staging.py data_at",
        "runtime/node/arrival.py _warm_layer",
        "runtime/node/new_layout.py NewLayout._take_read",
        "runtime/wire/chunks.py Gathering._put",
    }
)
"""Where a copy to the device may be waited for: state that comes, what is built, the calm run."""
COPIES = frozenset({"_to_copy", "copy_"})


class Refused(Exception):
    """What a run on a GPU must not do."""


class OnMeta:
    """A device that is done when a call returns, and whose tensors have no memory."""

    place = META

    def __init__(self, guard: "Guard") -> None:
        self._guard = guard
        self.overruns = 0
        self.busy_s: dict[str, float] = {}
        self.kinds: Counter[str] = Counter()

    def accepts(self, kind: str) -> bool:
        """Always."""
        del kind
        return True

    def run(self, kind: str, stage: int, work: Callable[[], T], layers: range | None = None) -> T:
        """Do the work."""
        del layers
        self.kinds[kind] += 1
        return work()

    def put(self, tensors: Sequence[Tensor], after: Staged | None = None) -> tuple[Tensor, ...]:
        """Tensors of these shapes on the device."""
        del after
        with self._guard.room():
            return tuple(torch.empty_like(tensor, device=META) for tensor in tensors)

    def fetch(self, tensors: Sequence[Tensor], *, at_rest: bool = False) -> Staged:
        """Zeros of these shapes on the host. What lies on the host already stays itself."""
        del at_rest
        with self._guard.room():
            found = (torch.zeros_like(x, device="cpu") if x.is_meta else x for x in tensors)
            return OnHost(tuple(found))

    def settle(self) -> None:
        """Nothing is under way."""

    def woken_by(self, wake: Callable[[], None]) -> None:
        """Nobody ever waits."""

    def lay_out(self, cut: Sequence[int]) -> None:
        """No duration depends on it."""

    def memory(self) -> dict[str, int]:
        """It has none."""
        return {}


class Guard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at every operation while it is entered; `read` has what was read, by its place."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.read: Counter[str] = Counter()
        self._rooms = 0
        self._given: dict[object, tuple[bool, list[tuple[Any, ...]]]] = {}

    @contextmanager
    def room(self) -> Iterator[None]:
        """The device room, where the two kinds of memory meet."""
        self._rooms += 1
        try:
            yield
        finally:
            self._rooms -= 1

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        name = func._overloadpacket.__name__
        taken = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        kinds = {tensor.device.type for tensor in taken}
        if self._rooms:
            return func(*args, **kwargs)
        if name == "_local_scalar_dense" and "meta" in kinds:
            self._reads(func)
            return 1
        if name in COPIES:
            source = args[name == "copy_"]
            there = (
                args[0] if name == "copy_" else torch.device(kwargs.get("device") or source.device)
            )
            goal = there.device.type if isinstance(there, Tensor) else there.type
            if source.is_meta and goal == "cpu":
                self._reads(func)
                return torch.ones(source.shape, dtype=kwargs.get("dtype") or source.dtype)
            if goal == "meta" and not source.is_meta:
                self._moves(func)
            return func(*args, **kwargs)
        if len(kinds) > 1:
            raise Refused(f"{func} takes tensors of the host and of the device {_where()[1]}")
        if kinds == {"meta"} and _makes_new_tensors(func):
            return self._shaped(func, args, kwargs)
        return func(*args, **kwargs)

    def _shaped(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the operation gives, of the shapes that it gave for inputs of these shapes before:
        torch finds them in Python."""
        key = (func, _shapes_of(args), _shapes_of(kwargs))
        found = self._given.get(key)
        if found is None:
            made = func(*args, **kwargs)
            of_one = isinstance(made, Tensor)
            outputs = (made,) if of_one else made
            if not all(isinstance(x, Tensor) and x.is_meta for x in outputs):
                return made
            self._given[key] = of_one, [(x.shape, x.stride(), x.dtype) for x in outputs]
            return made
        of_one, shapes = found
        tensors = tuple(
            torch.empty_strided(shape, stride, dtype=dtype, device=META)
            for shape, stride, dtype in shapes
        )
        return tensors[0] if of_one else tensors

    def _reads(self, func: Any) -> None:
        place, line = _where()
        if place not in MAY_READ:
            raise Refused(f"{func} waits for the device to read from it {line}")
        self.read[place] += 1

    def _moves(self, func: Any) -> None:
        place, line = _where()
        if place not in MAY_MOVE:
            raise Refused(f"{func} copies to the device outside the device room {line}")


@cache
def _makes_new_tensors(func: Any) -> bool:
    """Whether an operation gives tensors alone, of which none shares memory with what it takes, and
    changes nothing."""
    given = func._schema.returns
    names = [*func._schema.arguments, *given]
    return (
        bool(given)
        and all(one.alias_info is None for one in names)
        and all(str(one.type) == "Tensor" for one in given)
    )


def _shapes_of(value: Any) -> object:
    """What decides the shapes of outputs: equal for inputs of equal shapes."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return tuple(map(_shapes_of, value))
    if isinstance(value, Mapping):
        return tuple((name, _shapes_of(one)) for name, one in value.items())
    return type(value), value


def _where() -> tuple[str, str]:
    """The innermost function of the product, as `file function`, and its line for a person."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(PRODUCT):
            own = file.relative_to(PRODUCT)
            function = frame.f_code.co_qualname.partition(".<locals>")[0]
            return f"{own} {function}", f"at {own}:{frame.f_lineno}"
        frame = frame.f_back
    return "", "outside the product"
