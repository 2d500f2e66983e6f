"""Factors of a linear layer's gradient: the layer's input X and its output's gradient G.

    forward of a microbatch     X (K x N)  -- module hook --> record of the microbatch
    backward                    G (K x M)  -- hook on the product --> the same record
    weight's gradient (M x N)   G^T X, by the same matrix product as autograd

Rule: the bits are those of autograd. So an operand is recorded with the way in which it lies, the
product is made for each microbatch by itself, and the products are added in the order of the
backwards. It applies to a weight that one plain matrix product uses once in a microbatch.

Sending the two factors in place of their product is "sufficient factor broadcasting" (Xie et al.,
UAI 2016; Zhang et al., Poseidon, USENIX ATC 2017).
"""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from bamboo.runtime.wire.operands import Operand, operand_in

CPU = torch.device("cpu")
NOTHING = nullcontext(None)
"""Where no factors are wanted: the microbatches of most jobs."""
PRODUCTS = ("AddmmBackward0", "MmBackward0")
AROUND = ("ViewBackward0", "UnsafeViewBackward0", "AddBackward0")
"""What `nn.Linear` does around the product where the input has more than two dimensions."""
TWICE = "is used twice in a microbatch"
UNSENT = "has a factor that cannot be sent"
NO_PRODUCT = "is used by a batch of matrix products, as its input lies in an odd way"
ANOTHER = "is used by a function other than its torch.nn.Linear"
CHANGED = "has an input that is written into after the product"
SAVED = "has an input that hooks on saved tensors may change"
HOOKED = "has hooks that its layer adds while it runs"
CHECKPOINT = "torch.utils.checkpoint"
TO_WEIGHT = ("TBackward0", "ToCopyBackward0")
"""Between the product and the weight: `nn.Linear` takes it transposed, autocast casts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """What one microbatch adds to the gradient of one weight (M x N)."""

    input: Operand
    """K x N: all leading dimensions of the layer's input as one, as the product has them."""
    gradient: Operand
    """K x M."""


Gradients = tuple[Tensor | None, ...]
Recorded = Sequence[Factors | None]
"""One for each microbatch, in the order of the backwards; None: it adds nothing."""


def weight_gradient(factors: Factors) -> Tensor:
    """M x N in float32: the bits that autograd adds to the weight's gradient. Under autocast the
    product is made in the type that autocast chose, and then cast."""
    return factors.gradient.lying().t().mm(factors.input.lying()).to(torch.float32)


def summed(recorded: Recorded, shape: torch.Size, place: torch.device = CPU) -> Tensor:
    """The weight's gradient of these microbatches, as autograd accumulates it: the first product is
    taken as it is, each further one is added to it, and a microbatch without one adds nothing.
    Zeros where no microbatch has one, as `Stage.take_gradients` gives them; they lie at `place`."""
    total: Tensor | None = None
    for factors in recorded:
        if factors is not None:
            product = weight_gradient(factors)
            total = product if total is None else total.add_(product)
    return torch.zeros(shape, device=place) if total is None else total


def by_virtual_node(recorded: Recorded, virtual_nodes: int) -> list[Recorded]:
    """The microbatches of so many virtual nodes, of which each has as many. Raises ValueError where
    that cannot be."""
    each, over = divmod(len(recorded), virtual_nodes)
    if over:
        raise ValueError(
            f"factors of {len(recorded)} microbatches, of {virtual_nodes} virtual nodes"
        )
    return [recorded[place * each : (place + 1) * each] for place in range(virtual_nodes)]


# ---------------------------------------------------------------------- in a message


def packed(found: Mapping[str, Recorded]) -> tuple[list[Tensor], dict[str, Any]]:
    """The tensors and the meta of a message with the factors of these weights."""
    tensors: list[Tensor] = []
    meta: dict[str, Any] = {}
    for name, recorded in found.items():
        meta[name] = [one and [one.input.meta(), one.gradient.meta()] for one in recorded]
        for one in recorded:
            tensors += [] if one is None else [one.input.numbers, one.gradient.numbers]
    return tensors, meta


def unpacked(
    tensors: Sequence[Tensor], meta: Any, shapes: Mapping[str, Sequence[int]]
) -> dict[str, list[Factors | None]]:
    """What `packed` was given. `shapes`: of the weights that the message is about. Raises
    ValueError for a message that no member would send."""
    if not isinstance(meta, dict) or meta.keys() != shapes.keys():
        raise ValueError(f"factors of {meta!r}, not of {', '.join(shapes)}")
    left = iter(tensors)
    out: dict[str, list[Factors | None]] = {}
    for name, recorded in meta.items():
        if not isinstance(recorded, list):
            raise ValueError(f"factors of {name} are {recorded!r}, no list")
        out[name] = [
            None if one is None else _factors_in(left, one, name, shapes[name]) for one in recorded
        ]
    if next(left, None) is not None:
        raise ValueError(f"{len(tensors)} tensors are more than the factors of {', '.join(shapes)}")
    return out


def _factors_in(left: Iterator[Tensor], said: Any, name: str, shape: Sequence[int]) -> Factors:
    numbers = [*zip(range(2), left, strict=False)]
    if len(numbers) < 2 or not isinstance(said, list | tuple) or len(said) != 2:
        raise ValueError(f"factors of {name} are {said!r}, with {len(numbers)} tensors")
    x, g = (operand_in(own, one) for (_, own), one in zip(numbers, said, strict=True))
    rows, one_type = g.shape[0], x.numbers.dtype == g.numbers.dtype
    if not one_type or x.shape != (rows, shape[1]) or g.shape != (rows, shape[0]):
        raise ValueError(
            f"an input of shape {x.shape} and an output's gradient of shape {g.shape} are no "
            f"factors of {name}, {tuple(shape)}"
        )
    return Factors(input=x, gradient=g)


# ---------------------------------------------------------------------- recording


@dataclass(slots=True)
class Use:
    """The use of one weight in one microbatch."""

    called: bool = False
    input: Tensor | None = None
    version: int = 0
    """What torch had counted of writes into the input when it was recorded."""
    dtype: torch.dtype = torch.float32
    """Of the product."""
    gradient: Operand | None = None
    product: Tensor | None = None
    """The product itself as autograd hands it on to the weight, until it is there."""
    flaw: str = ""
    """Why it is no plain use, as in `use_that_forbids`."""

    def refuse(self, flaw: str) -> None:
        """It is no plain use; the first flaw counts."""
        self.flaw = self.flaw or flaw

    def made(self, gradients: Gradients, of: Gradients) -> None:
        """The product's backward has made these gradients of those of its output."""
        if of[0] is None:
            return
        try:
            # A copy: with another reference to its tensor, autograd would add gradients to new
            # tensors in place of this one, which might then lie in another way.
            self.gradient = Operand.of(of[0])
        except ValueError as error:
            self.refuse(f"{UNSENT}: {error}")
        # While it is held here, autograd adds to it in a new tensor.
        self.product = gradients[-1]

    def handed(self, gradient: Tensor | None) -> None:
        """This gradient has come to a node on the way, or to the weight: the sum of all uses that
        go through it in the microbatch. It is the product itself, unless another use has added
        something to it, or there was no product."""
        if gradient is not self.product:
            self.refuse(ANOTHER)
        self.product = None

    def factors(self) -> Factors | None:
        """None: the microbatch adds nothing. Raises ValueError, with the flaw."""
        if self.flaw:
            raise ValueError(self.flaw)
        if self.gradient is None:
            return None
        if self.product is not None:
            raise ValueError(ANOTHER)
        if self.input is None:
            raise ValueError(SAVED)  # of a layer that is computed again, and was not
        if self.input._version != self.version:
            # Under autocast the product has a copy of it, and autograd does not mind.
            raise ValueError(CHANGED)
        # What `nn.Linear` does with its input: the cast of autocast, then one dimension of rows.
        x = self.input.to(self.dtype)
        try:
            operand = Operand.of(x.reshape(prod(x.shape[:-1]), x.shape[-1]))
        except ValueError as error:
            raise ValueError(f"{UNSENT}: {error}") from error
        return Factors(input=operand, gradient=self.gradient)


class Record(dict[str, Use]):
    """The uses in one microbatch, by global name of the weight."""


class Recorder:
    """Records the factors of some weights of these layers, given as (global index, layer).

    Several microbatches may be between forward and backward; what is recorded belongs to the
    microbatch. The layers in `again` are computed again in the backward, and keep no input until
    then.
    """

    def __init__(self, layers: Sequence[tuple[int, nn.Module]], again: Container[int] = ()) -> None:
        self._layers = dict(layers)
        self._again = again
        self._names: tuple[str, ...] = ()
        self._hooks: list[RemovableHandle] = []
        self._now: Record | None = None
        """Of the microbatch that is running."""
        self._back = False
        """Whether it runs backward."""
        self._done: list[Record] = []

    def record(self, names: Collection[str]) -> None:
        """Record these weights of the layers from the next forward on, by global name; others no
        longer. Raises ValueError, with the use that forbids it, for one that is no plain linear
        weight."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._names = tuple(names)
        self._done = []
        found = [(name, int(name.partition(".")[0]), name.partition(".")[2]) for name in names]
        for name, index, local in found:
            if why_not := use_that_forbids(self._layers[index], local):
                raise ValueError(f"{name} cannot be sent as factors: it {why_not}")
        for name, index, local in found:
            self._watch(name, index, self._layers[index].get_submodule(local.rpartition(".")[0]))

    def _watch(self, name: str, index: int, linear: nn.Module) -> None:
        weight = linear.get_parameter("weight")

        def use_in(*, back: bool) -> Use | None:
            """That of the microbatch that runs in this direction."""
            return None if self._now is None or self._back != back else self._now.get(name)

        def begins(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
            x = args[0] if args else given["input"]
            if (use := use_in(back=False)) is not None:
                if use.called:
                    use.refuse(TWICE)
                if not keeps_inputs():
                    use.refuse(SAVED)
                use.called = True
            if (use := use_in(back=index in self._again)) is not None:
                use.input = x.detach()
                use.version = x._version

        def ends(_: nn.Module, __: object, output: Tensor) -> None:
            use = use_in(back=False)
            if use is None or not output.requires_grad:
                return
            use.dtype = output.dtype
            product = product_of(output)
            if product is None:
                use.refuse(NO_PRODUCT)
                return
            way = way_to(product, weight)
            if way is None:
                use.refuse(ANOTHER)
                return

            # What a layer differentiates in its forward is no part of the gradient.
            def made(gradients: Gradients, of: Gradients) -> None:
                if use_in(back=True) is use:
                    use.made(gradients, of)

            def comes(gradients: Gradients) -> None:
                if use_in(back=True) is use:
                    use.handed(gradients[0])

            def goes(gradients: Gradients, _: Gradients) -> None:
                if use_in(back=True) is use:
                    use.product = gradients[0]

            # On the product itself: who writes into the output hides the output's own hooks.
            product.register_hook(made)
            for node in way:
                node.register_prehook(comes)
                node.register_hook(goes)

        def arrived(gradient: Tensor) -> None:
            if (use := use_in(back=True)) is not None:
                use.handed(gradient)
            elif (use := use_in(back=False)) is not None:
                use.refuse(ANOTHER)
            own = 1
            added = len(weight._backward_hooks or ()) > own or weight._post_accumulate_grad_hooks
            if use is not None and added:
                use.refuse(HOOKED)

        self._hooks.append(linear.register_forward_pre_hook(begins, with_kwargs=True))
        self._hooks.append(linear.register_forward_hook(ends))
        self._hooks.append(weight.register_hook(arrived))  # type: ignore[no-untyped-call]

    def forward(self) -> AbstractContextManager[Record | None]:
        """Around the forward of a microbatch, of which it gives the record."""
        if not self._names:
            return NOTHING
        return self._during(Record({name: Use() for name in self._names}), back=False)

    def backward(self, record: Record | None) -> AbstractContextManager[Record | None]:
        """Around its backward, or each part of that; microbatches come in order."""
        if record is None:
            return NOTHING
        if not any(record is one for one in self._done):
            self._done.append(record)
        return self._during(record, back=True)

    @contextmanager
    def _during(self, record: Record, *, back: bool) -> Iterator[Record]:
        self._now = record
        self._back = back
        try:
            yield record
        finally:
            self._now = None
            self._back = False

    def take(self, names: Collection[str]) -> dict[str, list[Factors | None]]:
        """The factors of these weights, of all microbatches whose backward has begun since the last
        call for them, in its order. The backward of their layers is done in each. One that some
        microbatch used in another way than by one plain product is left out."""
        out: dict[str, list[Factors | None]] = {}
        for name in names:
            uses = [one.pop(name) for one in self._done if name in one]
            with suppress(ValueError):  # what the data did to it no look at the model had seen
                out[name] = [use.factors() for use in uses]
        self._done = [one for one in self._done if one]
        return out

    def forget(self) -> None:
        """Drop what has been recorded and not taken."""
        self._done = []


def product_of(output: Tensor) -> Node | None:
    """The one product of two matrices that a linear layer's output comes from. None: of an input
    that lies in an odd way torch makes a batch of products, and adds up their gradients."""
    node = output.grad_fn
    while node is not None and node.name() in AROUND:
        node = node.next_functions[0][0]
    return node if node is not None and node.name() in PRODUCTS else None


def way_to(product: Node, weight: Tensor) -> tuple[Node, ...] | None:
    """The nodes that hand the gradient of this product to the weight, in their order; None where
    they do not do so directly, as where another function made the product's operand of the
    weight."""
    out, node = [], product.next_functions[-1][0]
    while node is not None and node.name() in TO_WEIGHT:
        out.append(node)
        node = node.next_functions[0][0]
        if getattr(node, "variable", None) is weight:
            return tuple(out)
    return None


def keeps_inputs() -> bool:
    """Whether autograd keeps what it saves now as it is, or has it computed again."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    owner = "" if hooks is None else getattr(hooks[0], "__module__", "")
    return hooks is None or owner == CHECKPOINT or owner.startswith("bamboo.")


def use_that_forbids(layer: nn.Module, name: str) -> str:
    """Why a parameter of a layer, by its local name, cannot be the weight of a plain linear layer,
    as the rest of a sentence that begins with it; "" where nothing in the layer's modules forbids
    it."""
    owner_name, _, short = name.rpartition(".")
    owner, weight = layer.get_submodule(owner_name), layer.get_parameter(name)
    kind = type(owner)
    if not weight.requires_grad:
        return "is not trained"
    if weight.dim() != 2:
        return f"is no matrix: its shape is {tuple(weight.shape)}"
    held = layer.named_parameters(remove_duplicate=False)
    if others := [other for other, p in held if p is weight and other != name]:
        return f"has a second name in its layer, {others[0]}"
    if kind is not nn.Linear or short != "weight":
        for of in (nn.Linear, nn.Embedding):
            if isinstance(owner, of):
                how = "" if kind is of else f", a subclass of torch.nn.{of.__name__}"
                return f"is used by {kind.__name__}{how}"
        return f"is used by {kind.__name__}, which is no torch.nn.Linear"
    hooks = (
        owner._forward_pre_hooks,
        owner._forward_hooks,
        owner._backward_pre_hooks,
        owner._backward_hooks,
        weight._backward_hooks,
        weight._post_accumulate_grad_hooks,
    )
    if any(hooks) or "forward" in vars(owner):
        return "is used by a torch.nn.Linear that has hooks, or a forward of its own"
    return "" if weight.is_contiguous() else "has rows that do not lie one after the other"
