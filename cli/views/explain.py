"""`bamboo explain` as text and as JSON: each parameter, what every kind would cost, and why."""

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from bamboo.planner.sync.explained import Row
from bamboo.planner.sync.why import BreakEven, Kind
from bamboo.quantities import milliseconds, size
from bamboo.study.explaining import Explained
from cli.echo import columns, paragraph
from cli.views.strategy import shape_words, way_words

HEAD = ("parameter", "shape", "K", "break-even K", "by bytes", "density", "kind", "bucket")


def explain_text(found: Explained) -> str:
    """A table of what is known of each parameter, then what each kind would cost and a sentence."""
    lines = [f"{found.name}: {found.grid.pipelines} x {found.grid.stages}, {found.builder}"]
    lines += paragraph(found.said)
    lines += columns(
        [HEAD, *(_known(row) for row in found.rows)], indent=4, right=frozenset({2, 3, 4, 5})
    )
    timed = found.has_times
    what = "what the busiest node would send of one of them in a step" + ", and its time" * timed
    lines += paragraph(f"{what}, by kind; modelled:")
    for row in found.rows:
        lines += paragraph(f"{label(row)}: {row.why}", indent=4)
        lines += [line for x in _costs(row, timed=timed) for line in paragraph(x, indent=6)]
    lines += [line for words in found.notes for line in paragraph(words)]
    return "\n".join(lines)


def label(row: Row) -> str:
    """`0.tokens.weight`, `*.up.weight (12)`, `28 vectors`."""
    if len(row.names) == 1:
        return row.names[0]
    if not row.facts.rows:
        return f"{len(row.names)} vectors"
    return f"*.{row.names[0].partition('.')[2]} ({len(row.names)})"


def _known(row: Row) -> tuple[str, ...]:
    breaks = row.breaks
    few, many = (f"{share:.1%}" for share in (row.facts.density, row.facts.step_density))
    density = few if few == many else f"{few} to {many}"
    if row.lately is not None:
        density += f", lately {row.lately:.1%}"
    bucket = "of its stage" if row.entry.bucket is None else size(row.entry.bucket)
    return (
        label(row),
        shape_words(row.facts.shape) if row.facts.rows else f"to {row.facts.size:,}",
        f"{row.rows:,}" if row.rows else "-",
        "-" if breaks is None else _rows(breaks.timed),
        "-" if breaks is None else _rows(breaks.by_bytes),
        density,
        way_words(row.entry, bucket=False),
        "a layer" if row.entry.bucket == 0 else bucket,
    )


def _rows(rows: float) -> str:
    return f"{rows:,.0f}" if isfinite(rows) else "any"


def _costs(row: Row, *, timed: bool) -> list[str]:
    """`exchange: tree 4.0 MiB 32 ms, rows 0.2 MiB 1.6 ms`; the kind that is taken first."""
    lines = []
    for what, taken, costs in (
        ("exchange", row.entry.exchange, row.exchanges),
        ("ship", row.entry.ship, row.ships),
    ):
        if costs:
            said = (
                f"{one.name} {size(one.sent_bytes)}"
                + (f" {milliseconds(one.seconds)}" if timed else "")
                for one in sorted(costs, key=lambda one: one.name != taken)
            )
            lines.append(f"{what}: {', '.join(said)}")
    return lines


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
