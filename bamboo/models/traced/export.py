"""The graph of a module, by torch.export, in train and in eval mode.

Rule: what a graph cannot say is refused by the line of the user's code: a branch on a value, a
tensor that is written to and kept, an operation that another process does not know.
"""

import contextlib
import math
import operator
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export import export as torch_export
from torch.export.graph_signature import InputKind, OutputKind
from torch.nn.modules.batchnorm import _BatchNorm

from bamboo.models.draws import keyed_draws
from bamboo.models.traced.graph import AUTOCAST, NO_GRAD, NORM, Call, Graph
from bamboo.models.traced.steps import NUMBERS
from bamboo.models.untrained import MEAN, STEPS
from bamboo.user_code.local import is_local
from bamboo.user_code.recording import importing_for_bamboo
from bamboo.user_code.traces import user_lines

CHECKS = ("_assert", "sym_constrain_range")
"""What the names of operations begin with that compute nothing."""
MAY_BE_ITS_INPUT = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
"""Operations that hand their input through in eval mode, which their schema does not say."""
SCOPES = {"wrap_with_set_grad_enabled": NO_GRAD, "wrap_with_autocast": AUTOCAST}
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*([^\n]*)')


class Untraceable(Exception):
    """(problem, remedy) of a module that has no graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a value while the model is traced."""

    shape: tuple[int | str, ...]
    """Sizes; text for one that follows from the input's, such as `s0`."""
    dtype: str
    """`torch.float32`; `number` for a size, `several` for a list of tensors."""
    sizes: tuple[int, ...]
    """Those for the inputs that it was traced with."""
    numbers: int
    """How many it has then."""
    contiguous: bool
    memory: frozenset[int]
    """The values whose memory it may lie in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A module's graph, with what is known of it."""

    graph: Graph
    facts: Mapping[int, Facts]
    written: Mapping[int, frozenset[int]]
    """Place of a call -> the values in whose memory it writes."""
    modules: Sequence[str]
    """Of each call: the path of the module that makes it."""
    lines: Sequence[str]
    """Of each call: the user's line."""
    tensors: Mapping[str, Tensor]
    """Buffers and constants, by name."""
    weights: Mapping[str, tuple[int, ...]]
    """Sizes of parameters, by name."""


def exported(module: nn.Module, inputs: Sequence[Tensor], varying: Sequence[set[int]]) -> Exported:
    """The graph of `module(*inputs)` in the mode that the module is in. `varying`: the dimensions
    of each input whose sizes may differ from microbatch to microbatch. Raises Untraceable."""
    shapes = tuple(dict.fromkeys(dims, Dim.AUTO) or None for dims in varying)
    try:
        # torch's compiler imports whatever caches it could use.
        with warnings.catch_warnings(), keyed_draws(1), importing_for_bamboo():
            warnings.simplefilter("ignore")
            program = torch_export(
                module, tuple(inputs), dynamic_shapes=_for_forward(module, shapes), strict=False
            )
    except Exception as error:
        raise Untraceable(_problem_of(error), _remedy_of(error)) from error
    return _Reader(program, module).read()


def _for_forward(module: nn.Module, shapes: tuple[Any, ...]) -> Any:
    """As `torch.export` wants them: those of `*args` in a tuple of their own."""
    code = getattr(module.forward, "__code__", None)
    if code is not None and code.co_argcount == 1 and code.co_flags & 4:
        return (shapes,)
    return shapes


def _problem_of(error: BaseException) -> str:
    words = " ".join(str(error).split(".\n")[0].split("\n")[0].split())[:200]
    own = user_lines(error)
    found = f"{type(error).__name__}: {words}".rstrip(": ")
    return f"it cannot be traced ({found})" + (f", at {own[-1]}" if own else "")


def _remedy_of(error: BaseException) -> str:
    if "ata-dependent" in str(error) or "DataDependent" in type(error).__name__:
        return (
            "choose by torch.where, or by something other than the values of tensors; or return "
            'a list of layers and leave out split = "trace"'
        )
    return 'change that line, or return a list of layers and leave out split = "trace"'


class _Reader:
    """Turns a program into an `Exported`."""

    def __init__(self, program: ExportedProgram, module: nn.Module) -> None:
        self._program = program
        self._module = module
        self._ids: dict[fx.Node, int] = {}
        self._names: dict[fx.Node, str] = {}
        self._facts: dict[int, Facts] = {}
        self._calls: list[Call] = []
        self._written: dict[int, frozenset[int]] = {}
        self._modules: list[str] = []
        self._lines: list[str] = []
        self._tensors: dict[str, Tensor] = {}
        self._inputs: set[int] = set()
        self._first_names = {id(p): name for name, p in module.named_parameters()}
        self._held = {n for n, m in module.named_modules() if isinstance(m, _BatchNorm)}

    def read(self) -> Exported:
        graph = self._program.graph
        kinds = {spec.arg.name: spec for spec in self._program.graph_signature.input_specs}
        inputs: list[int] = []
        for node in graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, kinds[node.name], inputs)
            elif node.op == "call_function":
                self._call(node)
        return Exported(
            graph=Graph(inputs=inputs, calls=self._calls, outputs=self._outputs()),
            facts=self._facts,
            written=self._written,
            modules=self._modules,
            lines=self._lines,
            tensors=self._tensors,
            weights={name: tuple(p.shape) for name, p in self._module.named_parameters()},
        )

    def _placeholder(self, node: fx.Node, spec: Any, inputs: list[int]) -> None:
        if spec.kind == InputKind.USER_INPUT:
            inputs.append(self._number(node, node.meta["val"], frozenset()))
            self._inputs |= {inputs[-1]}
            return
        if spec.kind == InputKind.PARAMETER:
            parameter = self._module.get_parameter(spec.target)
            self._names[node] = self._first_names[id(parameter)]
            return
        if spec.kind == InputKind.BUFFER:
            self._names[node] = spec.target
            self._tensors[spec.target] = self._module.get_buffer(spec.target)
            return
        if spec.kind == InputKind.CONSTANT_TENSOR:
            name = f"constants.{spec.target.replace('.', '_')}"
            self._names[node] = name
            self._tensors[name] = self._program.constants[spec.target]
            return
        raise Untraceable(
            f"its graph needs {spec.target}, which is no tensor", "make it a tensor, or a number"
        )

    def _outputs(self) -> list[int]:
        for spec in self._program.graph_signature.output_specs:
            if spec.kind != OutputKind.USER_OUTPUT:
                raise self._changes(str(spec.target), "")
        (returned,) = (node for node in self._program.graph.nodes if node.op == "output")
        found: list[int] = []
        for node in returned.args[0]:
            if not isinstance(node, fx.Node) or node not in self._ids:
                what = self._names.get(node, "a parameter") if isinstance(node, fx.Node) else node
                raise Untraceable(f"it returns {what}", "return tensors that it computes")
            found.append(self._ids[node])
        spec = self._program.call_spec.out_spec
        single = spec is None or spec.is_leaf()
        if not single and (spec.type is not tuple or not all(x.is_leaf() for x in spec.children())):
            raise Untraceable(
                f"it returns {spec.type.__name__}, neither a tensor nor a flat tuple",
                "return one tensor, or a flat tuple of two or more",
            )
        return found

    # ------------------------------------------------------------------ one operation

    def _call(self, node: fx.Node) -> None:
        name = _name_of(node.target)
        if name.rpartition(".")[0].rpartition(".")[2].startswith(CHECKS) or self._is_count(node):
            return
        line = _line_of(node)
        if name == "aten.batch_norm.default" and (norm := self._norm(node)):
            call = Call(out=0, op=NORM, args=[norm, self._encode(node.args[0], node)], kwargs={})
        elif name == "aten.batch_norm.default" and node.args[5] and node.args[3] is not None:
            raise Untraceable(
                f"it has a batch norm under autocast or no_grad of its own{_at(line)}",
                "take it out of that block",
            )
        elif name in SCOPES:
            call = self._scope(node, SCOPES[name])
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            raise Untraceable(
                f"torch makes {name} of it{_at(line)}, which cannot be cut",
                "write it without; train.microbatch and cluster.recompute save memory as well",
            )
        else:
            args = [self._encode(argument, node) for argument in node.args]
            kwargs = {key: self._encode(x, node) for key, x in node.kwargs.items()}
            call = Call(out=0, op=name, args=args, kwargs=kwargs)
        shared, writes = self._memory(node)
        if writes & self._inputs:
            raise Untraceable(f"it writes into its input{_at(line)}", "compute out of place")
        self._check_writes(node, line)
        out = self._number(node, node.meta.get("val"), shared)
        if writes:
            self._written[len(self._calls)] = writes
        self._calls.append(replace(call, out=out))
        self._modules.append(_module_of(node))
        self._lines.append(line)

    def _number(self, node: fx.Node, value: Any, shared: frozenset[int]) -> int:
        number = self._ids[node] = len(self._ids)
        memory = shared or frozenset({number})
        self._facts[number] = _facts_of(value, memory)
        return number

    def _encode(self, argument: Any, node: fx.Node) -> Any:
        if isinstance(argument, fx.Node):
            if argument in self._ids:
                return {"v": self._ids[argument]}
            return {"p": self._names[argument]}
        if isinstance(argument, list | tuple):
            return [self._encode(part, node) for part in argument]
        if isinstance(argument, torch.dtype | torch.layout | torch.memory_format):
            return {"t": str(argument).removeprefix("torch.")}
        if isinstance(argument, torch.device):
            return {"d": 0}
        if argument is None or isinstance(argument, bool | int | float | str):
            return argument
        raise Untraceable(
            f"it computes with {type(argument).__name__} {argument}{_at(_line_of(node))}",
            "take tensors and real numbers",
        )

    # ------------------------------------------------------------------ batch norms

    def _norm(self, node: fx.Node) -> str:
        """The path of the module whose running statistics this batch norm moves, or reads in eval
        mode; empty for one that has none, or is in eval mode for good."""
        mean = self._names.get(node.args[3]) if isinstance(node.args[3], fx.Node) else None
        path = "" if mean is None else mean.rpartition(".")[0]
        if mean is None or path not in self._held or not mean.endswith(f".{MEAN}"):
            return ""
        module = self._module.get_submodule(path)
        return path if getattr(module, "_bamboo_moves", module.training) else ""

    def _is_count(self, node: fx.Node) -> bool:
        """Whether it counts a step of a batch norm, which the runtime does."""
        first = node.args[0] if node.args else None
        name = self._names.get(first, "") if isinstance(first, fx.Node) else ""
        path, _, short = name.rpartition(".")
        return short == STEPS and path in self._held and _name_of(node.target) == "aten.add_.Tensor"

    # ------------------------------------------------------------------ what lies where

    def _memory(self, node: fx.Node) -> tuple[frozenset[int], frozenset[int]]:
        """(values whose memory this one lies in, values in whose memory it writes)."""
        shared: set[int] = set()
        writes: set[int] = set()
        for argument, info in _with_alias(node):
            for part in _nodes_in(argument):
                there = self._facts[self._ids[part]].memory if part in self._ids else frozenset()
                shared |= there
                writes |= there if info else frozenset()
        return frozenset(shared), frozenset(writes)

    def _check_writes(self, node: fx.Node, line: str) -> None:
        for argument, writes in _with_alias(node):
            for part in _nodes_in(argument):
                if writes and part in self._names:
                    raise self._changes(self._names[part], line)

    def _changes(self, name: str, line: str) -> Untraceable:
        return Untraceable(
            f"it changes its {name} in forward{_at(line)}",
            "keep parameters and buffers as they are, but for torch's own batch norms",
        )

    def _scope(self, node: fx.Node, op: str) -> Call:
        count = 1 if op == NO_GRAD else 4
        settings = [self._encode(x, node) for x in node.args[:count]]
        inner: Any = self._program.graph_module.get_submodule(_name_in(node.args[count]))
        given = [self._encode(x, node) for x in node.args[count + 1 :]]
        reader = _Reader(self._program, self._module)
        graph = reader._nested(inner.graph)
        if op == NO_GRAD:
            return Call(out=0, op=op, args=[given, *settings], kwargs={}, within=graph)
        return Call(out=0, op=op, args=[given, *settings[1:]], kwargs={}, within=graph)

    def _nested(self, graph: fx.Graph) -> Graph:
        inputs, outputs = [], []
        for node in graph.nodes:
            if node.op == "placeholder":
                inputs.append(self._number(node, node.meta.get("val"), frozenset()))
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                outputs = [self._ids[part] for part in node.args[0]]
        return Graph(inputs=inputs, calls=self._calls, outputs=outputs)


@contextlib.contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """The module in eval mode, as an evaluation has it: each part that is in train mode leaves it,
    and `train` of the user's own is not called."""
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
        part.__dict__["_bamboo_moves"] = True
    try:
        yield
    finally:
        for part in training:
            part.training = True
            del part.__dict__["_bamboo_moves"]


def _facts_of(value: Any, memory: frozenset[int]) -> Facts:
    if isinstance(value, list | tuple):
        numbers = sum(_facts_of(part, memory).numbers for part in value)
        return Facts(
            shape=(), dtype="several", sizes=(), numbers=numbers, contiguous=True, memory=memory
        )
    if not isinstance(value, Tensor):
        return Facts(shape=(), dtype="number", sizes=(), numbers=1, contiguous=True, memory=memory)
    hints = [x if isinstance(x, int) else x.node.hint for x in value.shape]
    sizes = tuple(hint if isinstance(hint, int) else 1 for hint in hints)
    return Facts(
        shape=tuple([_size_of(x) for x in value.shape]),
        dtype=str(value.dtype),
        sizes=sizes,
        numbers=math.prod(sizes),
        contiguous=bool(value.is_contiguous()),
        memory=memory,
    )


def _size_of(size: Any) -> int | str:
    """A number, also of a size that the code of the model turned out to fix."""
    if isinstance(size, int):
        return size
    known = size.node.maybe_as_int()
    return str(size.node.expr) if known is None else int(known)


def _with_alias(node: fx.Node) -> Iterator[tuple[Any, bool]]:
    """(an argument whose memory the value may lie in, whether it is written to)."""
    target = node.target
    if target is operator.getitem:
        yield node.args[0], False
    if isinstance(target, torch._ops.HigherOrderOperator):
        yield from ((argument, False) for argument in node.args)
    if not isinstance(target, torch._ops.OpOverload):
        return
    schema = target._schema
    for place, argument in enumerate(schema.arguments):
        given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
        through = place == 0 and schema.name.partition("::")[2] in MAY_BE_ITS_INPUT
        if argument.alias_info is not None or through:
            yield given, argument.alias_info is not None and argument.alias_info.is_write


def _nodes_in(argument: Any) -> Iterator[fx.Node]:
    if isinstance(argument, fx.Node):
        yield argument
    elif isinstance(argument, list | tuple):
        for part in argument:
            yield from _nodes_in(part)


def _name_of(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return str(target.__name__)
    for space, module in NUMBERS.items():
        name = getattr(target, "__name__", "").lstrip("_")
        if getattr(module, name, None) is target:
            return f"{space}.{name}"
    raise Untraceable(f"its graph calls {target}, which is no operation of torch", "leave it out")


def _module_of(node: fx.Node) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    return "" if path.startswith("_") else path


def _name_in(argument: Any) -> str:
    """Of the graph that a scope computes."""
    return str(argument.target)


def _line_of(node: fx.Node) -> str:
    """`net.py, line 12: return x + y`, the innermost line of the user's own; else empty."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if is_local(frame[0])]
    if not own:
        return ""
    file, number, _, text = own[-1]
    return f"{file.rpartition('/')[2]}, line {number}: {' '.join(text.split())}"


def _at(line: str) -> str:
    return f", at {line}" if line else ""
