"""How the gradient of each parameter passes between pipelines, and from an owner to its shadow.

Rule: all of it is placement. Every kind gives the bits of the canonical tree, so a run may change
its kinds between any two steps. The rules are data: they name parameters by their global names
(`<layer>.<name>`, as in files), and `entries` resolves them to one entry for each parameter.
"""

import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

TREE, ZONED = "tree", "zoned"
OWNER = "owner"
ROWS, FACTORS = "rows", "factors"
EXCHANGES = (TREE, OWNER, ZONED, ROWS, FACTORS)
"""Between pipelines. `tree`: every pipeline sums a shard of the parameter. `owner`: one pipeline
sums it whole. `zoned`: as `tree`, but the pipelines of a zone first add what they have. `rows`: as
`tree`, by rows, of which only those with a bit set are sent. `factors`: each pipeline sends the
input and the output's gradient of the linear layer, and each forms and adds all products."""
BUILDERS = ("tree", "owner", "balanced", "sparse-hybrid", "factors-hybrid", "zoned", "auto")
"""What makes the rules of a job, by name (`bamboo/planner/sync/builders.py`)."""
SHOWN = 40
"""Characters of a pattern that is too long, in an error."""
LONGEST_MATCH = 4096
"""Characters of a pattern: it may be written by hand, and a longer one takes minutes to match."""
DENSE = "dense"
SHIPS = (DENSE, ROWS, FACTORS)
"""From an owner to its shadow: the whole sum; its rows with a bit set; or the factors of all
microbatches of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRule:
    """How the parameters are synchronised whose global names match a pattern. Raises ValueError for
    a kind that there is not, or for figures that make no sense."""

    match: str
    """A pattern over global names, as in `[[train.group]]`: `0.*`, `*.bias`."""
    exchange: str = TREE
    ship: str = DENSE
    owners: tuple[int, ...] = ()
    """Of `owner`: the pipelines that sum these parameters, each one of them, chosen by a checksum
    of the parameter's name; a pipeline beyond the grid stands for its number modulo the number of
    pipelines."""
    bucket: int | None = None
    """Parameters of consecutive layers with one bound leave together, once they come to so many
    bytes; 0: each layer by itself; None: the bound of the whole strategy."""

    def __post_init__(self) -> None:
        if len(self.match) > LONGEST_MATCH:
            raise ValueError(
                f"a pattern has {len(self.match):,} characters, and no name of a parameter more "
                f"than {LONGEST_MATCH:,}: {self.match[:SHOWN]!r}..."
            )
        if self.exchange not in EXCHANGES:
            raise ValueError(f"exchange {self.exchange!r} is none of {', '.join(EXCHANGES)}")
        if self.ship not in SHIPS:
            raise ValueError(f"ship {self.ship!r} is none of {', '.join(SHIPS)}")
        if (self.exchange == OWNER) != bool(self.owners):
            raise ValueError(
                f"the rule for {self.match!r} has exchange {self.exchange!r} and owners "
                f"{list(self.owners)}; exactly the exchange 'owner' names owners"
            )
        _check_wholes("owners", self.owners)
        _check_wholes("bucket", () if self.bucket is None else (self.bucket,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """The rules of all parameters; one that no rule matches goes by `tree` and `dense`. Raises
    ValueError for figures that make no sense."""

    rules: tuple[SyncRule, ...] = ()
    bucket: int | None = None
    """Bytes of a bucket where a rule has none; 0: each layer by itself; None: a stage has one."""
    zones: tuple[int, ...] = ()
    """The zone of each pipeline, as a number, for `zoned`. On a grid with another number of
    pipelines `zoned` is `tree`."""

    def __post_init__(self) -> None:
        _check_wholes("bucket", () if self.bucket is None else (self.bucket,))
        _check_wholes("zones", self.zones)

    def body(self) -> dict[str, Any]:
        """The value for JSON."""
        return asdict(self)

    def hash(self) -> str:
        """16 hex digits of SHA-256 over the canonical JSON."""
        text = json.dumps(self.body(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncEntry:
    """How one parameter is synchronised."""

    exchange: str = TREE
    ship: str = DENSE
    owner: int = 0
    """Of `owner`: the pipeline that sums it, before it is taken modulo the number of pipelines."""
    bucket: int | None = None


def sync_of(raw: Any) -> Sync:
    """Read what `Sync.body` wrote. Raises ValueError, with what is wrong, for anything else."""
    found = _known(Sync, raw, "a sync strategy")
    rules = found.pop("rules", ())
    if not isinstance(rules, list | tuple):
        raise ValueError(f"rules are a list, not {rules!r}")
    return Sync(
        rules=tuple(_rule(rule) for rule in rules),
        bucket=found.get("bucket"),
        zones=_whole_tuple("zones", found.get("zones", ())),
    )


def entry_of(sync: Sync, name: str) -> SyncEntry:
    """The entry of the parameter of this name: it depends on no other parameter, so that a node
    needs to know its own alone."""
    return _entry(sync, next((x for x in sync.rules if _matches(x, name)), None), name)


def _matches(rule: SyncRule, name: str) -> bool:
    return fnmatchcase(name, rule.match) if _is_pattern(rule) else name == rule.match


def _is_pattern(rule: SyncRule) -> bool:
    """Whether the rule matches other names than the one that it is written as."""
    return "*" in rule.match or "?" in rule.match or "[" in rule.match


def _entry(sync: Sync, rule: SyncRule | None, name: str) -> SyncEntry:
    if rule is None:
        return SyncEntry(bucket=sync.bucket)
    owners = rule.owners or (0,)
    return SyncEntry(
        exchange=rule.exchange,
        ship=rule.ship,
        owner=owners[zlib.crc32(name.encode()) % len(owners)],
        bucket=sync.bucket if rule.bucket is None else rule.bucket,
    )


def entries(sync: Sync, names: Sequence[str]) -> dict[str, SyncEntry]:
    """The entry of each of these parameters, which are all that the model trains. Raises ValueError
    for a rule that matches none of them, and for two that match the same."""
    matched: dict[str, SyncRule] = {}
    known = frozenset(names)
    for rule in sync.rules:
        # A strategy may name each parameter of a large model, and is not to compare all with all.
        alone = known if _is_pattern(rule) else known & {rule.match}
        found = {name for name in alone if _matches(rule, name)}
        if not found:
            named = f", of which one is {names[0]!r}" if names else ""
            raise ValueError(f"the rule for {rule.match!r} matches no trained parameter{named}")
        for name in sorted(found):
            if name in matched:
                raise ValueError(
                    f"the rules for {matched[name].match!r} and {rule.match!r} both match {name!r}"
                )
            matched[name] = rule
    return {name: _entry(sync, matched.get(name), name) for name in names}


def unmatched(sync: Sync, names: Sequence[str]) -> list[str]:
    """The names that no rule matches."""
    exact = {rule.match for rule in sync.rules if not _is_pattern(rule)}
    patterns = [rule for rule in sync.rules if _is_pattern(rule)]
    rest = (name for name in names if name not in exact)
    return [name for name in rest if not any(_matches(rule, name) for rule in patterns)]


def on_grid(entry: SyncEntry, pipelines: int, zones: Sequence[int] = ()) -> SyncEntry:
    """What the entry comes to on a grid with so many pipelines, of these zones: with one there is
    no exchange, `zoned` needs the zone of each and two zones, and `factors` go to a shadow only
    where its owner has those of all pipelines."""
    exchange, ship = entry.exchange, entry.ship
    if pipelines == 1 and exchange in (OWNER, FACTORS):
        exchange = TREE
    if exchange == ZONED and (len(zones) != pipelines or len(set(zones)) < 2):
        exchange = TREE
    if ship == FACTORS and pipelines > 1 and exchange != FACTORS:
        ship = DENSE
    return SyncEntry(
        exchange=exchange, ship=ship, owner=entry.owner % pipelines, bucket=entry.bucket
    )


def _rule(raw: Any) -> SyncRule:
    found = _known(SyncRule, raw, "a rule")
    if not isinstance(found.get("match"), str):
        raise ValueError(f"a rule needs a pattern `match`, not {found.get('match')!r}")
    for name in ("exchange", "ship"):
        if not isinstance(found.get(name, ""), str):
            raise ValueError(f"{name} {found[name]!r} is no text")
    return SyncRule(**{**found, "owners": _whole_tuple("owners", found.get("owners", ()))})


def _known(of: type, raw: Any, what: str) -> dict[str, Any]:
    """The object's fields. Raises ValueError unless it is one, with known names alone."""
    if not isinstance(raw, dict):
        raise ValueError(f"{what} is an object, not {raw!r}")
    names = [field.name for field in fields(of)]
    unknown = sorted(set(raw) - set(names))
    if unknown:
        raise ValueError(f"{what} has no {unknown[0]!r}; it has {', '.join(names)}")
    return dict(raw)


def _whole_tuple(name: str, raw: Any) -> tuple[int, ...]:
    if not isinstance(raw, list | tuple):
        raise ValueError(f"{name} are a list, not {raw!r}")
    return tuple(raw)


def _check_wholes(name: str, numbers: Sequence[Any]) -> None:
    for number in numbers:
        if type(number) is not int or not 0 <= number < 2**53:
            raise ValueError(f"{name} has {number!r}; give whole numbers from 0 to 2^53 - 1")
