"""`bamboo strategy` as text: the building blocks of strategies, and what differs between two."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from bamboo.planner.sync.catalogue import BLOCKS, LETTERS, Block
from bamboo.quantities import count, size
from bamboo.study.compared import Difference
from bamboo.study.synchronising import Synchronised
from bamboo.topology.sync import OWNER, TREE, SyncEntry
from cli.echo import columns, paragraph

NO_BYTES = (
    "neither file has the shapes of the parameters, so no bytes are known: write one of them with "
    "`bamboo plan JOB --json`"
)

GROUPS = {
    "exchange": "exchange: between pipelines, the gradient of each parameter",
    "ship": "ship: from an owner to its shadow, the reduced gradient of each parameter",
    "redundancy": "redundancy: of each stage",
}


def blocks_text(blocks: Sequence[Block] = BLOCKS) -> str:
    """A paragraph for each thing that is said of a block, below its name."""
    lines = paragraph(LETTERS, indent=0)
    for group, members in groupby(blocks, key=lambda one: one.group):
        lines += ["", GROUPS[group]]
        for one in members:
            lines.append(f"  {one.name}")
            for what, said in (
                ("does", one.does),
                ("bytes", one.sends),
                ("wins", one.wins),
                ("source", one.source),
            ):
                lines += paragraph(f"{what}: {said}", indent=4)
    return "\n".join(lines)


def difference_text(found: Difference) -> str:
    """The parameters that differ, most bytes first, and what it comes to."""
    lines = [f"{letter}: {file}" for letter, file in zip("AB", found.files, strict=True)]
    for name, both in found.placed.items():
        one_words, other_words = (_placed_words(name, value) for value in both)
        lines += paragraph(f"{name}: {one_words} in A, {other_words} in B")
    if found.parameters is None:
        if found.rules[0] == found.rules[1]:
            return "\n".join([*lines, *paragraph("all parameters are synchronised alike")])
        lines += [line for words in _rules(found.rules) for line in paragraph(words)]
        return "\n".join([*lines, *paragraph(NO_BYTES)])
    if not found.changed:
        lines += paragraph(f"all {count(found.parameters, 'parameter')} are synchronised alike")
        return "\n".join([*lines, *_totals(found)])
    said = count(found.parameters, "parameter")
    lines += paragraph(f"{len(found.changed):,} of {said} differ, in bytes of a step of all nodes:")
    rows: list[tuple[str, ...]] = [("parameter", "shape", "A", "bytes", "B", "bytes", "B less A")]
    rows += [
        (
            one.name,
            shape_words(one.shape),
            way_words(one.one.entry),
            size(one.one.bytes),
            way_words(one.other.entry),
            size(one.other.bytes),
            _signed(one.other.bytes - one.one.bytes),
        )
        for one in found.changed
    ]
    return "\n".join(
        [*lines, *columns(rows, indent=4, right=frozenset({3, 5, 6})), *_totals(found)]
    )


def _totals(found: Difference) -> list[str]:
    rows: list[tuple[str, ...]] = [("all parameters", "A", "B", "B less A")]
    each = [(*pair, sum(pair)) for pair in found.totals]
    for what, one, other in zip(("exchange", "ship", "both"), *each, strict=True):
        rows.append((what, size(one), size(other), _signed(other - one)))
    return columns(rows, indent=4, right=frozenset({1, 2, 3}))


def _rules(both: Sequence[Mapping[str, Any]]) -> list[str]:
    words = []
    for name, body in zip("AB", both, strict=True):
        rules = [f"{r['match']} by {r['exchange']} and {r['ship']}" for r in body["rules"]]
        words.append(f"{name}: {'; '.join(rules) or 'all parameters by tree and dense'}")
    return words


def _placed_words(name: str, value: Any) -> str:
    if name == "grid":
        return f"{value['pipelines']} x {value['stages']}"
    if name == "cut":
        return f"layers {', '.join(map(str, value[:-1]))} begin the stages"
    if name == "bucket":
        return bucket_words(value)
    return str(value)


def bucket_words(bound: int | None) -> str:
    """`of its stage`, `a layer`, `1.0 MiB`."""
    if bound is None:
        return "of its stage"
    return size(bound) if bound else "a layer"


def way_words(entry: SyncEntry, *, bucket: bool = True) -> str:
    """`rows, dense`; with what belongs to it: `owner 1, dense, bucket 4.0 MiB`."""
    exchange = f"{entry.exchange} {entry.owner}" if entry.exchange == OWNER else entry.exchange
    words = [exchange, entry.ship]
    if bucket and entry.bucket is not None:
        words.append(f"bucket {size(entry.bucket)}" if entry.bucket else "a bucket for each layer")
    return ", ".join(words)


def synced_lines(synced: Synchronised) -> list[str]:
    """What a plan says of its strategy, as a paragraph: kinds, and bytes against `tree`."""
    if synced.facts and not synced.sync.rules and not synced.note:
        chosen = "by tree" if synced.builder == TREE else f"as {synced.builder} takes no other kind"
        return paragraph(
            f"gradients go whole, {chosen}; `bamboo explain` says what other kinds save"
        )
    totals = synced.totals()
    if totals is None:
        return []
    if not totals.tree_bytes:
        return paragraph("gradients stay on their nodes: one pipeline, and no shadow")
    kinds = "; ".join(f"{count(many, 'parameter')} {kind}" for kind, many in totals.kinds.items())
    words = (
        f"gradients by {synced.builder}: {kinds}: a step of all nodes exchanges "
        f"{size(totals.exchange_bytes)} and ships {size(totals.ship_bytes)}, and by tree "
        f"{size(totals.tree_exchange_bytes)} and {size(totals.tree_ship_bytes)}"
    )
    end = synced.note or "`bamboo explain` says why"
    return paragraph(f"{words}; {end}")


def synced_body(synced: Synchronised) -> dict[str, Any]:
    """The same as JSON, with the facts that `strategy diff` counts bytes by."""
    totals = synced.totals()
    return {
        **synced.body(),
        "hash": synced.sync.hash(),
        "bytes": None if totals is None else asdict(totals),
    }


def shape_words(shape: Sequence[int]) -> str:
    """`27,939 x 256`."""
    return " x ".join(f"{one:,}" for one in shape)


def _signed(number: float) -> str:
    return f"{'-' if number < 0 else '+'}{size(abs(number))}" if number else "0"
