"""The manifest of a checkpoint as JSON: the object that is written last and makes it complete.

    step-00000100/gen-000003/stage-02.safetensors    one shard a stage
    step-00000100/manifest.json                      names the shards of one generation
    constant/<sha256>.safetensors                    a layer's frozen parameters and constant
                                                     buffers, once for all checkpoints of a store

Rule: a manifest names only shards of its own step and generation, so that what a fenced node still
writes is never part of a checkpoint, and what never changes, which has its digest for a name.
Reading is strict: anything that does not fit is damage.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
MOST_SHARDS = 1024
"""A pipeline can have as many stages."""
MOST_CONSTANT = 1 << 16
HashAt: TypeAlias = str | Callable[[int], str]
"""The semantic hash that a checkpoint of a run must carry: one for all checkpoints, or one by step
where the run has several segments (`Semantics.hash_at`)."""
CONSTANT = "constant/"
_SHARD_FILE = re.compile(r"stage-\d{2,4}\.safetensors", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_STEP = "step-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One stage's parameters and moments, or what is constant of a layer, as they were stored."""

    name: str
    bytes: int
    sha256: str
    """SHA-256 of the whole object."""
    tensors: tuple[str, ...]
    """Names as in the final files: `param/<layer>.<name>`, `exp_avg/…`, `exp_avg_sq/…`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A complete checkpoint of a run after `step` steps."""

    run: str
    semantic_hash: str
    step: int
    generation: int
    created_at_s: float
    """Unix time by the clock of the node that completed it."""
    shards: tuple[Shard, ...]

    @property
    def name(self) -> str:
        """The name of the manifest's object."""
        return f"{folder_of(self.step)}/{MANIFEST}"

    def odd_layers(self, layers: Collection[int]) -> str:
        """Says which layers are only in `layers` or only in the checkpoint; "" when none is.
        `layers` are the layers that have parameters; when it is empty they are not known, and the
        result is ""."""
        held = {layer_of(name) for shard in self.shards for name in shard.tensors}
        if not layers or held == set(layers):
            return ""
        lacking, more = sorted(set(layers) - held), sorted(held - set(layers))
        return f"lacks layers {lacking}" if lacking else f"has layers {more} of another model"

    def to_json(self) -> str:
        return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "Manifest":
        """Raises ValueError, saying what does not fit."""
        raw = _parsed(text)
        if not isinstance(raw, dict) or raw.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"it has another schema than {SCHEMA_VERSION}")
        try:
            made = cls(
                run=_text(raw["run"]),
                semantic_hash=_text(raw["semantic_hash"]),
                step=_count(raw["step"]),
                generation=_count(raw["generation"]),
                created_at_s=float(raw["created_at_s"]),
                shards=tuple(_shard(one) for one in raw["shards"]),
            )
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"a field is missing or of another type: {error}") from error
        if not math.isfinite(made.created_at_s) or not made.shards:
            raise ValueError("it has no shards, or no time")
        inside = f"{folder_of(made.step)}/{generation_folder(made.generation)}/"
        of_stages = sum(shard.name.startswith(inside) for shard in made.shards)
        if of_stages > MOST_SHARDS or len(made.shards) - of_stages > MOST_CONSTANT:
            raise ValueError(f"it names {len(made.shards)} shards, more than {MOST_SHARDS}")
        for shard in made.shards:
            # The name is opened, so the check says what it may be and not what it may not be.
            file = shard.name.removeprefix(inside)
            known = file != shard.name and _SHARD_FILE.fullmatch(file)
            constant = _SHA256.fullmatch(shard.sha256) and constant_name(shard.sha256) == shard.name
            if not known and not constant:
                raise ValueError(f"shard {shard.name!r} is not of its step and generation")
        if len({shard.name for shard in made.shards}) != len(made.shards):
            raise ValueError("it names one shard twice")  # else its reader would read it twice
        names = [name for shard in made.shards for name in shard.tensors]
        if len(set(names)) != len(names):
            raise ValueError("two shards hold one tensor")
        return made


def shards_to_json(shards: Sequence[Shard]) -> str:
    """A stage's shard, and what is constant in its layers, as their writer describes them."""
    first, *others = map(asdict, shards)
    return json.dumps(first | ({"constant": others} if others else {}))


def shards_from_json(text: str | bytes) -> tuple[Shard, ...]:
    """What `shards_to_json` wrote. Raises ValueError, saying what does not fit."""
    raw = _parsed(text)
    try:
        return (_shard(raw), *map(_shard, raw.get("constant", ())))
    except (KeyError, TypeError) as error:
        raise ValueError(f"a field is missing or of another type: {error}") from error


def hash_at(semantic_hash: HashAt, step: int) -> str:
    """The semantic hash of a checkpoint of `step`."""
    return semantic_hash if isinstance(semantic_hash, str) else semantic_hash(step)


def folder_of(step: int) -> str:
    """The prefix of the objects of a checkpoint."""
    return f"{_STEP}{step:08d}"


def generation_folder(generation: int) -> str:
    """The prefix, within a checkpoint, of the shards of one generation."""
    return f"gen-{generation:06d}"


def shard_name(*, step: int, generation: int, stage: int) -> str:
    """The name of a stage's shard."""
    return f"{folder_of(step)}/{generation_folder(generation)}/stage-{stage:02d}.safetensors"


def constant_name(sha256: str) -> str:
    """The name of what is constant of a layer, by the digest of the whole object."""
    return f"{CONSTANT}{sha256}.safetensors"


def step_of(name: str) -> int | None:
    """The step of the checkpoint that an object belongs to; None when it belongs to none."""
    folder, slash, _ = name.partition("/")
    digits = folder.removeprefix(_STEP)
    if not slash or digits == folder or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits)


def layer_of(name: str) -> int:
    """The layer that a tensor belongs to: `exp_avg/3.weight` belongs to layer 3. Raises
    ValueError."""
    return int(name.partition("/")[2].partition(".")[0])


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _shard(raw: Any) -> Shard:
    return Shard(
        name=_text(raw["name"]),
        bytes=_count(raw["bytes"]),
        sha256=_text(raw["sha256"]),
        tensors=tuple(_text(name) for name in raw["tensors"]),
    )


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise TypeError(f"{raw!r} is no text")
    return raw


def _count(raw: object) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or raw < 0:
        raise TypeError(f"{raw!r} is no count")
    return raw
