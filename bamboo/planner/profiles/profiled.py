"""The profile of a job: time, bytes and work of each of its layers.

Rule: a value with a JSON form of its own. Other files measure or model it; plans and simulations
use it through `facts` and `profiled_workload`, and show its source.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import Any, get_args, get_origin

from bamboo.planner.layers.facts import LayerFacts
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.topology.strategy import canonical_json
from bamboo.topology.virtual_nodes import BatchShape

SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of an operation on a device, counted during a run."""

    product_flops: float
    """Multiplications and additions of matrix products, convolutions and attention."""
    product_bytes: float
    """Bytes that these operations read and write."""
    other_bytes: float
    """Bytes that all other kernels read and write, each separately, as without a compiler."""
    kernels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """One layer: forward and backward of one microbatch, and the end of a step."""

    name: str
    measured_as: int
    """The layer that was measured for it: itself, or an earlier one that the same function makes
    and whose input has the same shape."""
    forward_s: float
    backward_s: float
    optimizer_s: float
    """Once a step: the squares for the norm, the clipping and the optimizer."""
    scatter: float
    """Interquartile range of forward plus backward, over its median; 0 if it is modelled."""
    repeats: int
    """Number of measurements; the times are their medians."""
    parameters: int
    """Trained scalars, including its copy of a tied parameter."""
    parameter_bytes: int
    """Of these."""
    moment_bytes: int
    """What the optimizer keeps of its parameters."""
    output_bytes: int
    """The tensors for the next layer."""
    input_gradient_bytes: int
    """The gradients for the layer before."""
    activation_bytes: int
    """Tensors that autograd holds between forward and backward, its input included. The last layer
    also includes what the loss holds."""
    forward: Work
    backward: Work
    optimizer: Work
    frozen_bytes: int = 0
    """Of frozen parameters and buffers."""
    synced: tuple[ParameterFacts, ...] = ()
    """Its parameters; empty in a profile of an older release."""

    @property
    def both_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s

    @property
    def state_bytes(self) -> int:
        """Parameters, gradient, moments and what is frozen."""
        return 2 * self.parameter_bytes + self.moment_bytes + self.frozen_bytes

    @property
    def least_bytes(self) -> int:
        """Memory that a device needs to train this layer alone, with one microbatch in flight."""
        return self.state_bytes + self.activation_bytes + self.output_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The profiles of a job's layers, in order."""

    job: str
    """Name of the job file."""
    source: str
    """The source of the times, as text."""
    modelled: bool
    """Whether the times are modelled from counted work instead of measured."""
    device: str
    """`cpu`, or the name of a GPU."""
    machine: str
    torch: str
    threads: int
    microbatch: int
    """Samples."""
    context: int
    """Tokens of a sample; 0 where the data are no text."""
    load: float
    """The machine's load when the measuring began: processes that wanted a core, per core."""
    seen: str
    """The day of the profile, as YYYY-MM-DD."""
    limit_s: float
    """The time limit of the measurement."""
    layers: tuple[LayerProfile, ...]
    unit: str = ""
    """What is counted where the data are no text, in the singular."""

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("a profile has at least one layer")

    def to_json(self) -> str:
        """Canonical JSON with the schema version."""
        return canonical_json({"schema_version": SCHEMA_VERSION} | asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Profile":
        """Read what `to_json` wrote. Raises ValueError for anything else: another schema, or a
        missing, unknown or ill-typed field."""
        try:
            raw = json.loads(text)
        except RecursionError as error:
            raise ValueError("a profile that is nested too deep") from error
        version = raw.pop("schema_version", None) if isinstance(raw, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(f"a profile of schema {version!r}, not {SCHEMA_VERSION}")
        profile = _read(cls, raw, "profile")
        assert isinstance(profile, cls)
        return profile

    def stash_bytes(self, index: int) -> int:
        """What a stage of this layer alone keeps of a microbatch until its neighbours' shadows are
        safe: its output, and its input's gradient. (Two steps are kept at most, see `memory`.)"""
        after = self.layers[index].output_bytes if index < len(self.layers) - 1 else 0
        before = self.layers[index].input_gradient_bytes if index > 0 else 0
        return after + before

    @property
    def scatter(self) -> float:
        """The largest scatter of any layer that takes at least 2 % of the time."""
        whole_s = sum(layer.both_s for layer in self.layers)
        return max(
            (layer.scatter for layer in self.layers if layer.both_s >= 0.02 * whole_s), default=0.0
        )

    def largest_beyond(self, memory_bytes: float) -> int | None:
        """The layer that needs most, if a device with this much memory cannot train it alone."""
        largest = max(range(len(self.layers)), key=lambda i: self.layers[i].least_bytes)
        return largest if self.layers[largest].least_bytes > memory_bytes else None

    def facts(self) -> tuple[LayerFacts, ...]:
        """The facts for the planner; the flops are those of matrix products."""
        return tuple(
            LayerFacts(
                name=layer.name,
                parameters=layer.parameters,
                moment_bytes=layer.moment_bytes,
                forward_flops=layer.forward.product_flops,
                output_bytes=layer.output_bytes,
                back_bytes=None if following is None else following.input_gradient_bytes,
                activation_bytes=layer.activation_bytes,
                frozen_bytes=layer.frozen_bytes,
                synced=layer.synced,
            )
            for layer, following in zip(self.layers, (*self.layers[1:], None), strict=True)
        )


def profiled_workload(profile: Profile, *, shape: BatchShape, batch: int) -> WorkloadFigures:
    """The workload of a profile, for plans and simulations. The caller adds links and cuts
    (`dataclasses.replace`). `batch`: samples in a step."""
    return WorkloadFigures(
        name=profile.job,
        source=profile.source,
        layers=profile.facts(),
        forward_s=tuple(layer.forward_s for layer in profile.layers),
        backward_s=tuple(layer.backward_s for layer in profile.layers),
        optimizer_s=tuple(layer.optimizer_s for layer in profile.layers),
        shape=shape,
        batch=batch,
    )


def alike(profile: Profile) -> Iterable[range]:
    """Runs of consecutive layers that were measured as one."""
    first = 0
    for index in range(1, len(profile.layers) + 1):
        end = index == len(profile.layers)
        if end or profile.layers[index].measured_as != profile.layers[first].measured_as:
            yield range(first, index)
            first = index


def _read(kind: Any, raw: Any, where: str) -> Any:
    """`raw` as `kind`: a dataclass, a tuple of them, or plain. Raises ValueError."""
    if is_dataclass(kind):
        names = {field.name for field in fields(kind)}
        optional = {field.name for field in fields(kind) if field.default is not MISSING}
        found = set(raw) if isinstance(raw, dict) else {type(raw).__name__}
        if odd := (found ^ names) - (optional - found):
            raise ValueError(f"{where} lacks, or has too much: {', '.join(sorted(odd))}")
        known = (field for field in fields(kind) if field.name in raw)
        values = {f.name: _read(f.type, raw[f.name], f"{where}.{f.name}") for f in known}
        assert isinstance(kind, type), "a class, not an instance of it"
        return kind(**values)
    if get_origin(kind) is tuple:
        if not isinstance(raw, list):
            raise ValueError(f"{where} is no list")
        item = get_args(kind)[0]
        return tuple(_read(item, one, f"{where}[{number}]") for number, one in enumerate(raw))
    if kind is float and type(raw) in (int, float) and math.isfinite(raw) and raw >= 0:
        return float(raw)
    if kind is not float and type(raw) is kind and (kind is not int or raw >= 0):
        return raw
    raise ValueError(f"{where} = {raw!r} is no {kind.__name__} from 0")
