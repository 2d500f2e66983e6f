"""`bamboo explain` as text and as JSON: each parameter, what every kind would cost, and why."""

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from bamboo.planner.sync.explained import Row
from bamboo.planner.sync.why import BreakEven, Kind
from bamboo.quantities import count, milliseconds, size
from bamboo.study.explaining import Explained
from bamboo.topology.sync import DENSE, FACTORS, OWNER, ROWS, TREE, ZONED
from cli.echo import WIDEST, fitting, paragraph
from cli.views.strategy import bucket_words, shape_words, way_words

KNOWN = (
    *("parameter", "shape", "K, rows", "break-even", "by bytes", "density"),
    *("exchange", "ship", "bucket"),
)
BY_BYTES, BUCKET = "by bytes", "bucket"
SPARE = (BUCKET, BY_BYTES, "shape", "density")
"""The columns of KNOWN that are left out for lack of width, the first of them first."""
LEGEND = (
    "K: rows of a layer's input in one pipeline's step. Break-even: the K up to which factors are "
    "{what}. Density: the share of rows with a bit set, in the gradient of a microbatch to that of "
    "a step."
)
TIMED = "cheaper than the gradient, their products counted; by bytes: without these"
EXCHANGES = (TREE, OWNER, ZONED, ROWS, FACTORS)
SHIPS = (DENSE, ROWS, FACTORS)


def explain_text(found: Explained, *, width: int = WIDEST) -> str:
    """A table of what is known of each parameter, one of what each kind would cost, and a sentence
    for each; `width` is that of the terminal."""
    grid, timed = found.grid, found.has_times
    lines = [
        f"{found.name}: {count(grid.pipelines, 'pipeline')} of {count(grid.stages, 'stage')}, "
        f"gradients by {found.builder}"
    ]
    lines += paragraph(found.said)
    lines += _facts(found, width)
    legend = LEGEND.format(what=TIMED if timed else "fewer bytes than the gradient")
    lines += [line for words in (legend, *found.notes) for line in paragraph(words)]
    alone = "sends of one of them in a step" + ", and how long that and its sums take alone" * timed
    for what, words, names, costs in (
        (
            "exchange",
            f"what the busiest node {alone}",
            EXCHANGES,
            [x.exchanges for x in found.rows],
        ),
        ("ship", f"what an owner {alone}", SHIPS, [x.ships for x in found.rows]),
    ):
        kept = [name for name in names if any(one.name == name for each in costs for one in each)]
        if kept:
            lines += paragraph(f"{what}, by kind: {words}; modelled, * is taken:")
            lines += _costs(found.rows, what, kept, costs, timed=timed, width=width)
    lines.append("  why:")
    reasons: dict[str, list[str]] = {}
    for row in found.rows:
        reasons.setdefault(row.why, []).append(label(row))
    for why, labels in reasons.items():
        lines += paragraph(f"{', '.join(labels)}: {why}", indent=4)
    return "\n".join(lines)


def label(row: Row) -> str:
    """`0.tokens.weight`, `*.up.weight (12)`, `28 vectors`."""
    if len(row.names) == 1:
        return row.names[0]
    if not row.facts.rows:
        return f"{len(row.names)} vectors"
    return f"*.{row.names[0].partition('.')[2]} ({len(row.names)})"


def _facts(found: Explained, width: int) -> list[str]:
    """Without a column that would say the same in each row: that of bytes alone where times are
    unknown, those of what is not sent, and that of buckets where each stage has one."""
    says = {
        BY_BYTES: found.has_times,
        "exchange": any(row.exchanges for row in found.rows),
        "ship": any(row.ships for row in found.rows),
        BUCKET: any(row.entry.bucket is not None for row in found.rows),
    }
    gone = {name for name, something in says.items() if not something}
    names = [name for name in KNOWN if name not in gone]
    cells = (dict(zip(KNOWN, _known(row), strict=True)) for row in found.rows)
    table = [names, *([row[name] for name in names] for row in cells)]
    spare = [names.index(name) for name in SPARE if name in names]
    flush = ("K, rows", "break-even", BY_BYTES, "density")
    right = frozenset(names.index(name) for name in flush if name in names)
    return fitting(table, width=width, spare=spare, right=right)


def _known(row: Row) -> tuple[str, ...]:
    breaks = row.breaks
    few, many = (f"{share:.1%}" for share in (row.facts.density, row.facts.step_density))
    density = few if few == many else f"{few} to {many}"
    if row.lately is not None:
        density += f", lately {row.lately:.1%}"
    exchange, ship = way_words(row.entry, bucket=False).split(", ")
    return (
        label(row),
        shape_words(row.facts.shape) if row.facts.rows else f"to {row.facts.size:,}",
        f"{row.rows:,}" if row.rows else "-",
        "-" if breaks is None else _rows(breaks.timed),
        "-" if breaks is None else _rows(breaks.by_bytes),
        density,
        exchange if row.exchanges else "-",
        ship if row.ships else "-",
        bucket_words(row.entry.bucket),
    )


def _rows(rows: float) -> str:
    return f"{rows:,.0f}" if isfinite(rows) else "any"


def _costs(
    rows: Sequence[Row],
    what: str,
    names: Sequence[str],
    costs: Sequence[Sequence[Kind]],
    *,
    timed: bool,
    width: int,
) -> list[str]:
    """A row for each parameter, with `64.0 MiB 546 ms` in the column of each kind."""
    table = [("parameter", *names)]
    for row, kinds in zip(rows, costs, strict=True):
        found = {one.name: one for one in kinds}
        taken = row.entry.exchange if what == "exchange" else row.entry.ship
        cells = (_cost(found.get(name), taken, timed=timed) for name in names)
        table.append((label(row), *cells))
    # Kinds that win most seldom are left out first.
    spare = [1 + names.index(name) for name in (OWNER, ZONED) if name in names]
    right = frozenset(range(1, 1 + len(names)))
    return fitting(table, width=width, spare=spare, right=right)


def _cost(one: Kind | None, taken: str, *, timed: bool) -> str:
    if one is None:
        return "-"
    star = "*" if one.name == taken else ""
    return f"{star}{size(one.sent_bytes)}" + (f" {milliseconds(one.seconds)}" if timed else "")


def explain_body(found: Explained) -> dict[str, Any]:
    """The value of `bamboo explain --json`; all bytes and times are modelled."""
    return {
        "schema_version": 1,
        "name": found.name,
        "grid": asdict(found.grid),
        "builder": found.builder,
        "sentence": found.said,
        "bytes": asdict(found.totals),
        "parameters": [_row_body(row, timed=found.has_times) for row in found.rows],
        "notes": list(found.notes),
        "sources": dict(found.sources),
    }


def _row_body(row: Row, *, timed: bool) -> dict[str, Any]:
    facts = row.facts
    return {
        "names": list(row.names),
        "shape": list(facts.shape),
        "rows": row.rows or None,
        "break_even": None if row.breaks is None else _break_body(row.breaks),
        "why_no_factors": facts.why_not or None,
        "density": facts.density,
        "step_density": facts.step_density,
        "density_lately": row.lately,
        "exchange": row.entry.exchange,
        "ship": row.entry.ship,
        "owner": row.entry.owner,
        "bucket": row.entry.bucket,
        "exchanges": _kinds_body(row.exchanges, timed=timed),
        "ships": _kinds_body(row.ships, timed=timed),
        "why": row.why,
    }


def _kinds_body(costs: Sequence[Kind], *, timed: bool) -> dict[str, Any]:
    """Seconds are null where links have no rate."""
    return {
        one.name: {"bytes": one.sent_bytes, "seconds": one.seconds if timed else None}
        for one in costs
    }


def _break_body(breaks: BreakEven) -> dict[str, float | None]:
    """`by_time` is null where factors always win."""
    return {
        "by_time": breaks.timed if isfinite(breaks.timed) else None,
        "by_bytes": breaks.by_bytes,
    }
