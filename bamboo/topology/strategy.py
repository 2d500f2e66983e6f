"""Strategy = Semantics + Placement. Semantics decide every bit; placement decides time and bill."""

import hashlib
import itertools
import json
from dataclasses import asdict, dataclass
from typing import Any

from bamboo.topology.grid import Grid

SCHEMA_VERSION = 1
REDUNDANCY_MODES = ("off", "stash", "gap", "eager", "full", "peer")
AUTO = "auto"
"""What a job says in place of a mode, or of a spread, that the planner is to choose; a placement
has one of the others."""
BARE_MODES = ("off", "peer")
"""Modes without shadows."""
SPREADS = ("one", "pipelines", "neighbours")
"""How the nodes of a run lie over zones: all in one; each pipeline within one; the neighbours of
a ring in different ones, so that a stage and its replica never lie in the same."""


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
    numerics: dict[str, Any]
    """torch version, device kind or CPU capability, threads, optimizer kernel."""

    def hash(self) -> str:
        """What `verify` and `resume` compare: 16 hex digits of SHA-256 over the canonical JSON."""
        return hashlib.sha256(canonical_json(asdict(self)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the semantics run: `cut[p]` is the first layer of stage p, `cut[P]` the layer count."""

    cut: tuple[int, ...]
    grid: Grid
    redundancy: str

    def layers_of(self, stage: int) -> range:
        """Global layer indices of a stage."""
        return range(self.cut[stage], self.cut[stage + 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """What is stored, hashed and compared; see DESIGN section 2."""

    semantics: Semantics
    placement: Placement

    def to_json(self) -> str:
        """Canonical JSON with the schema version and the semantic hash."""
        body = {"schema_version": SCHEMA_VERSION, "semantic_hash": self.semantics.hash()}
        return canonical_json(body | asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Strategy":
        """Read what `to_json` wrote. Raises ValueError for anything else: another schema, a wrong
        hash, something missing."""
        try:
            raw = json.loads(text)
        except RecursionError as error:
            raise ValueError("the strategy is nested too deep") from error
        if not isinstance(raw, dict) or raw.get("schema_version") != SCHEMA_VERSION:
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
    """Raises ValueError for one that no model could have, KeyError or TypeError for no such."""
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
    mode = raw["redundancy"]
    if mode not in REDUNDANCY_MODES:
        raise ValueError(f"redundancy {mode!r} is none of {', '.join(REDUNDANCY_MODES)}")
    return Placement(cut=cut, grid=grid, redundancy=mode)


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
