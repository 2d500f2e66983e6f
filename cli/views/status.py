"""`bamboo status` and `bamboo list` as text, from the same values that `--json` prints; and what
runs take on the disk."""

from collections.abc import Mapping, Sequence
from typing import Any

from bamboo.quantities import rate, size, usd
from cli.echo import columns, paragraph, terminal_width
from cli.views.metrics import evaluation_words, metric_words


def status_text(body: Mapping[str, Any]) -> str:
    """A few lines: the state of the run, its figures, and what each node does."""
    loss = "-" if body["loss"] is None else f"{body['loss']:.4f}"
    # A receipt of an older release has tokens alone.
    text = None not in (body["tokens_per_s"], body["tokens_per_usd"])
    unit = "tokens" if text else "samples"
    figures = ", ".join([f"loss {loss}", *metric_words(body.get("metrics", {}))])
    outcome = f" ({body['outcome']})" if body["outcome"] else ""
    lines = [
        f"{body['run']}: {body['phase']}{outcome}, generation {body['generation']}, "
        f"version {body['version']}",
        *whole(body["sentence"]),
        *whole(
            f"step {body['step']}/{body['steps']}, {figures}, "
            f"{rate(body[f'{unit}_per_s'])} {unit}/s over the last ten steps, {usd(body['usd'])} "
            f"{'in all' if body['outcome'] else 'so far'}, "
            f"{rate(body[f'{unit}_per_usd'])} {unit}/$"
        ),
    ]
    if evaluated := evaluation_words(body.get("evaluation")):
        lines += whole(evaluated)
    if body["outcome"] and not body["ended"]:
        lines.append("  its receipt is not written yet: what the run left is looked for and ended")
    if not body.get("led", True):
        lines += whole(
            f"it has no launcher, so a lost node is not replaced; `bamboo attach {body['run']}` "
            "starts one"
        )
    rows = [("node", "zone", "status", "owns", "shadows", "F", "B", "FR", "BR", "tensors")]
    rows += [
        (
            node["id"],
            node["zone"],
            node["status"],
            " ".join(node["owns"]),
            " ".join(node["shadows"]),
            *(str(node["operations"][op]) for op in ("F", "B", "FR", "BR")),
            size(node["tensor_bytes"]),
        )
        for node in body["nodes"]
    ]
    if len(rows) > 1:
        lines += columns(rows, right=frozenset({5, 6, 7, 8, 9}))
    return "\n".join(lines)


def whole(text: str) -> list[str]:
    """The lines of a sentence: folded on a terminal, else one, which a script finds whole."""
    return paragraph(text, width=terminal_width() or len(text) + 2)


def list_text(runs: Sequence[Mapping[str, Any]]) -> str:
    """One line per run, newest last; then what is wrong with those that are damaged."""
    rows = [("run", "started", "state", "step", "cost", "disk")]
    rows += [
        (
            r["run"],
            r["started"] or "-",
            r["outcome"] or r["phase"],
            "-" if r["step"] is None else f"{r['step']}/{r['steps']}",
            "-" if r["usd"] is None else usd(r["usd"]),
            size(r["disk_bytes"]),
        )
        for r in runs
    ]
    lines = columns(rows, indent=0, right=frozenset({3, 4, 5}))
    return "\n".join([*lines, *(f"{r['run']}: {r['damage']}" for r in runs if r["damage"])])


def data_text(data: Sequence[Mapping[str, Any]]) -> str:
    """One line for the tokens of each digest."""
    rows = [("data", "size", "state", "read by")]
    rows += [
        (
            one["digest"][:12],
            size(one["size_bytes"]),
            "whole" if one["whole"] else "not whole",
            ", ".join(one["runs"]) or "-",
        )
        for one in data
    ]
    return "\n".join(columns(rows, indent=0, right=frozenset({1})))


def parts_text(parts: Mapping[str, int]) -> str:
    """`1.0 GiB: final 978.1 MiB, checkpoints 40.2 MiB, books 1.2 MiB`."""
    words = ", ".join(f"{name} {size(held)}" for name, held in parts.items())
    return f"{size(sum(parts.values()))}: {words}" if parts else "0 B"


def removed_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each run that is to be removed."""
    table = [("run", "disk"), *((str(row["run"]), size(row["bytes"])) for row in rows)]
    return "\n".join(columns(table, indent=0, right=frozenset({1})))
