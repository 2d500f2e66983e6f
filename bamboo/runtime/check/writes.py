"""Which tensors that are there already an operation writes into.

Rule: it looks at what operations say of their arguments, not at values. So a write is seen that
changes nothing yet, as of `max_norm` or a clamp whose bounds are not reached, and one by `.data`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within the block: `name` is that of the first of these tensors, given by name, whose memory
    is written into; "" while none is."""

    def __init__(self, watched: Iterable[tuple[str, Tensor]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names: dict[int, str] = {}
        for name, tensor in watched:
            if tensor.numel():
                self._names.setdefault(tensor.untyped_storage().data_ptr(), name)
        self.name = ""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing is compiled here, and to keep the compiler away imports it, in two
        seconds."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                for tensor in value if isinstance(value, list | tuple) else (value,):
                    self._look_at(tensor)
        return func(*args, **kwargs)

    def _look_at(self, tensor: object) -> None:
        if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
            where = tensor.untyped_storage().data_ptr()
            self.name = self.name or self._names.get(where, "")
