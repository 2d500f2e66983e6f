"""Strategy = Semantics + Placement. Semantics decide every bit; placement decides time and bill."""

import functools
import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bamboo.topology.grid import Grid
from bamboo.topology.sync import Sync, sync_of

SCHEMA_VERSION = 2
READ_VERSIONS = (1, 2)
"""Schema 1 has no `sync`, and means the rules that a placement has without any."""
REDUNDANCY_MODES = ("off", "stash", "gap", "eager", "full", "peer")
AUTO = "auto"
"""The value by which a job leaves a mode, or a spread, to the planner; a placement has one of the
others."""
OFF, LAYER = "off", "layer"
"""What `cluster.recompute` may be, once a plan has settled it."""
DEVICE, HOST = "device", "host"
"""Likewise for `cluster.replica_moments`."""
BARE_MODES = ("off", "peer")
"""Modes without shadows. A run has one for all stages: replicas of only some help nothing."""
BY_REDUNDANCY = ("off", "peer", "stash", "gap", "eager", "full")
"""All modes, least redundant first."""
REPLICA_MODES = BY_REDUNDANCY[2:]
"""Modes with shadows, least redundant first; each stage may have its own (`modes_of`)."""
_UNKNOWN = "is no redundancy"
_NO_NEIGHBOUR = "needs two stages: with one, every peer already holds the exact state"
_KNOWN = (
    f"take one of {', '.join(REDUNDANCY_MODES)}; or for each stage one of "
    f"{', '.join(REPLICA_MODES)}, with a comma between and no blank"
)
SPREADS = ("one", "pipelines", "neighbours")
"""How the nodes of a run are spread over zones: all in one; each pipeline within one; or the
neighbours of a ring in different ones, so that a stage and its replica are never in the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Semantics:
    """Everything that a loss or a weight may depend on; all values are JSON values."""

    model: dict[str, Any]
    data_digest: str
    batch: int
    microbatch: int
    virtual_nodes: int
    seed: int
    steps: int
    optimizer: dict[str, Any]
    precision: str
    clip_norm: float
    segments: list[dict[str, Any]] = field(default_factory=list)
    """The finished segments before this one, for a run that was resumed with more steps: each
    {to_step, steps, learning_rate, warmup_steps, final_learning_rate}, as `config.tree.Segment`."""

    init: str = ""
    """The digest of the initial weights; empty: the layers draw them."""

    numerics: dict[str, Any] = field(default_factory=dict)
    """Of a run of an older release alone, whose hash counts them: facts such as torch, device and
    threads, by the machine that launched it. Today the first worker attests them
    (`core.numerics`), so the semantics of a run do not depend on where it was planned."""

    def body(self) -> dict[str, Any]:
        """The value for JSON. Fields that a run does not have are left out, so that its hash equals
        that of releases without these fields."""
        optional = ("segments", "init", "numerics")
        return {n: value for n, value in asdict(self).items() if value or n not in optional}

    def hash(self) -> str:
        """What `verify` and `resume` compare: 16 hex digits of SHA-256 over the canonical JSON."""
        return hashlib.sha256(canonical_json(self.body()).encode()).hexdigest()[:16]

    def of_segment(self, number: int) -> "Semantics":
        """The semantics of the run as planned before it was extended beyond segment `number`,
        counted from 0."""
        if number == len(self.segments):
            return self
        own = dict(self.segments[number])
        own.pop("to_step")
        steps = own.pop("steps")
        return replace(
            self,
            segments=self.segments[:number],
            steps=steps,
            optimizer={**self.optimizer, **own},
        )

    def listed(self, steps: int) -> list[dict[str, Any]]:
        """The segments of a run that has finished `steps` steps, the first one first:
        {from_step, to_step, semantic_hash}."""
        ends = [*(min(steps, int(segment["to_step"])) for segment in self.segments), steps]
        return [
            {"from_step": begin, "to_step": end, "semantic_hash": self.of_segment(number).hash()}
            for number, (begin, end) in enumerate(itertools.pairwise([0, *ends]))
            if begin < end
        ]

    def hash_at(self, step: int) -> str:
        """The hash of the semantics that led to the state after `step` steps: those of the segment
        that this step ends in. So a checkpoint stays valid when the run continues with another
        segment."""
        ends = [int(segment["to_step"]) for segment in self.segments]
        number = next((n for n, end in enumerate(ends) if step <= end), len(ends))
        return self.of_segment(number).hash()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the semantics run: `cut[p]` is the first layer of stage p, `cut[P]` the layer count."""

    cut: tuple[int, ...]
    grid: Grid
    redundancy: str
    """A mode, or one for each stage as `modes_of` reads them."""
    sync: Sync = field(default_factory=Sync)

    def layers_of(self, stage: int) -> range:
        """Global layer indices of a stage."""
        return range(self.cut[stage], self.cut[stage + 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Semantics and placement as one document, which is stored, hashed and compared."""

    semantics: Semantics
    placement: Placement

    def to_json(self) -> str:
        """Canonical JSON with the schema version and the semantic hash."""
        body = {"schema_version": SCHEMA_VERSION, "semantic_hash": self.semantics.hash()}
        placed = {"placement": asdict(self.placement), "semantics": self.semantics.body()}
        return canonical_json(body | placed)

    @classmethod
    def from_json(cls, text: str) -> "Strategy":
        """Read what `to_json` wrote. Raises ValueError for anything else: another schema, a wrong
        hash, a missing field."""
        try:
            raw = json.loads(text)
        except RecursionError as error:
            raise ValueError("the strategy is nested too deep") from error
        if not isinstance(raw, dict) or raw.get("schema_version") not in READ_VERSIONS:
            found = raw.get("schema_version") if isinstance(raw, dict) else None
            raise ValueError(f"strategy has schema {found}, not {SCHEMA_VERSION}")
        try:
            strategy = cls(
                semantics=Semantics(**raw["semantics"]), placement=_placement(raw["placement"])
            )
            written = raw["semantic_hash"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"the strategy lacks something, or has too much: {error}") from error
        if written != strategy.semantics.hash():
            raise ValueError("the strategy's semantic hash does not match its content")
        return strategy


def _placement(raw: Any) -> Placement:
    """Raises ValueError for an impossible placement, KeyError or TypeError for anything else."""
    sizes = [raw["grid"]["pipelines"], raw["grid"]["stages"]]
    if not all(type(number) is int for number in (*sizes, *raw["cut"])):
        raise ValueError(f"grid and cut are whole numbers, not {raw['grid']} and {raw['cut']}")
    grid, cut = Grid(**raw["grid"]), tuple(raw["cut"])
    grows = all(first < stop for first, stop in itertools.pairwise(cut))
    if len(cut) != grid.stages + 1 or cut[0] != 0 or not grows:
        raise ValueError(
            f"cut {list(cut)} does not make {grid.stages} stages: it names the first layer of "
            "each, growing from 0, and the layer count"
        )
    redundancy = raw["redundancy"]
    wrong = wrong_with(redundancy, grid.stages)
    if wrong is not None:
        raise ValueError(f"redundancy {redundancy!r} {'; '.join(wrong)}")
    sync = sync_of(raw["sync"]) if "sync" in raw else Sync()
    return Placement(cut=cut, grid=grid, redundancy=redundancy, sync=sync)


def modes_of(redundancy: str) -> tuple[str, ...]:
    """The one mode of all stages, or the mode of each stage, written with commas between them:
    `stash,full,full,gap`. Raises ValueError for anything else."""
    if redundancy in REDUNDANCY_MODES:
        return (redundancy,)
    modes = tuple(redundancy.split(",")) if isinstance(redundancy, str) else ()
    if len(modes) < 2 or not set(modes) <= set(REPLICA_MODES):
        raise ValueError(f"redundancy {redundancy!r} {_UNKNOWN}; {_KNOWN}")
    return modes


def wrong_with(redundancy: str, stages: int) -> tuple[str, str] | None:
    """What is wrong with a user's redundancy for this number of stages, and the remedy; None if it
    is right."""
    try:
        count = len(modes_of(redundancy))
    except ValueError:
        return _UNKNOWN, _KNOWN
    if stages == 1 and redundancy not in BARE_MODES:
        return _NO_NEIGHBOUR, "take off, or peer with two pipelines or more"
    if count in (1, stages):
        return None
    return f"names {count} modes for {stages} stages", f"give one for all, or {stages}"


def can_have(redundancy: str, grid: Grid) -> bool:
    """Whether the redundancy makes sense on a grid: a replica lies with a neighbour, of another
    stage, and in mode `peer` a second pipeline has the state."""
    if redundancy == "peer":
        return grid.pipelines > 1
    return grid.stages > 1 or redundancy in BARE_MODES


def on_stages(redundancy: str, stages: int) -> str:
    """The redundancy on a grid of `stages` stages. Modes by stage for another number of stages do
    not apply, so all stages take the least redundant of them, which needs the least memory."""
    modes = modes_of(redundancy)
    if len(modes) in (1, stages):
        return redundancy
    return min(modes, key=REPLICA_MODES.index)


@functools.cache
def stage_modes(redundancy: str, stages: int) -> tuple[str, ...]:
    """The mode of each stage of a grid with this many stages."""
    modes = modes_of(on_stages(redundancy, stages))
    return modes * stages if len(modes) == 1 else modes


def how_redundant(redundancy: str) -> float:
    """A rank: first what is kept, then what is computed; more for more; the mean of all stages."""
    modes = modes_of(redundancy)
    return sum(map(BY_REDUNDANCY.index, modes)) / len(modes)


def redundancy_of(modes: Sequence[str]) -> str:
    """The text that `modes_of` reads, from the mode of each stage; one name if all are equal."""
    return modes[0] if len(set(modes)) == 1 else ",".join(modes)


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
