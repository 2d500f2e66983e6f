"""Tidies results, `python -m benchmarks.history`: the newest file of each name stays, its long
lists are shortened, and `results/HISTORY.md` has a row for every result that was ever there.

Rule: a row outlives its file. A result that came from another checkout, without a row or next to an
older one, is taken in when the next result is written, or by this command. So are both sides of a
table that git could not merge.
"""

import json
import re
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

TABLE = "HISTORY.md"
LIMIT_BYTES = 50_000
"""Size of one result file. Beyond it, its longest lists of numbers are reduced to count, quartiles
and ends, its longest lists of records to count, first and last."""
SHORTEST_BYTES = 300
"""A shorter list stays as it is."""
KEPT = ("claims", "rows")
"""Lists that are the result itself and are read from the file: they are never shortened."""
FILE = re.compile(r"(?P<name>.+)-(?P<date>\d{4}-\d\d-\d\d)\.json")

HEADLINES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "break-even-k": (
        ("measured K over modelled, 4096 to 4096", "break_even/4096 to 4096/over_modelled"),
        ("by bytes alone over measured", "break_even/4096 to 4096/by_bytes_over"),
    ),
    "checkpoint-default": (("time over none", "ratio/0"),),
    "compare-and-set": (
        ("ms until appended, 4 members", "members/4/append"),
        ("64 members", "members/64/append"),
    ),
    "control-plane": (
        ("us a decision, 16 members", "members/16/us_per_transition"),
        ("4,096 members", "members/4096/us_per_transition"),
    ),
    "cost-of-types": (("s, all types", "wall_s"),),
    "elastic": (
        ("equal over uneven shares, time", "shares/ratio/0"),
        ("stall of growing, steps", "grow/stall_steps"),
    ),
    "executor-vs-torch": (("torch's time over ours, `off`", "variants/off/torch_over_it/0"),),
    "failover-vs-peers": (("goodput", "rows/0/goodput"), ("of the oracle's", "rows/0/of_oracle")),
    "failover-pause": (("ms from the kill to going on", "ms/pause"),),
    "hit-step": (("extra time of `eager` over `stash`", "ratio_of_means"),),
    "mode-per-stage": (("gain as planned", "the p3 trace's/as planned/median"),),
    "mutants-of-core": (("share of mutants killed", "claims/0/found"),),
    "nsdi23": (("value, BERT on the trace", "trace/bert/value"),),
    "plan-vs-real": (("planned over real, deep", "deep/ratios"), ("cpu", "cpu/ratios")),
    "redundancy-overhead": (
        ("step over `off`, equal stages, `stash`", "equal, fast link/modes/stash/ratio_to_off/0"),
        ("`eager`", "equal, fast link/modes/eager/ratio_to_off/0"),
        ("step over `off`, equal stages, `stash`", "equal/modes/stash/ratio_to_off/0"),
        ("`eager`", "equal/modes/eager/ratio_to_off/0"),
    ),
    "strategy-step-time": (("best single builder over `auto`", "best_single/over_auto"),),
    "strategy-bytes": (
        ("bytes of tree over auto, mixed job, D = 2", "mixed/D = 2, fewer/both"),
        ("D = 4", "mixed/D = 4, fewer/both"),
    ),
    "restart-map": (("`auto` over `off`, the median cell", "rows/*/auto_over_off"),),
    "same-as": (("cases unlike an older commit's", "unlike"),),
    "simulated-vs-real": (
        ("simulated over real, steps", "jobs/spare/simulated_to_real/steps"),
        ("dollars", "jobs/spare/simulated_to_real/usd"),
    ),
    "value-on-trace": (
        ("samples per modelled dollar, BERT-large", "jobs/bert-large/values/catalogue/value"),
    ),
    "waterfall": (("ours over checkpoint-restart, value", "of_checkpoint_restart"),),
}
"""The figures of a benchmark: a label, and the path of the figure in the result. `*` is every item,
and of several values the median is shown. A result without any shows its first two claims."""


def tidy(folder: Path) -> None:
    """Keep the newest file of each name, shortened, and a row of the table for each that ever
    existed.

    Raises OSError and ValueError for what cannot be read or written, naming the file. The table is
    written before an older file is deleted.
    """
    rows = dict(table_rows((folder / TABLE).read_text() if (folder / TABLE).exists() else ""))
    newest: dict[str, Path] = {}
    older = []
    for path in sorted(folder.glob("*.json")):  # by date within a name
        if not (named := FILE.fullmatch(path.name)):
            continue
        try:
            body = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path.name} is no result: {error}") from None
        rows[key(named["name"], body["facts"])] = row(named["name"], body)
        if (before := newest.get(named["name"])) is not None:
            older.append(before)
        newest[named["name"]] = path
        if path.stat().st_size > LIMIT_BYTES:
            _write(path, text_of(body))
    _write(folder / TABLE, table(rows))
    for path in older:
        path.unlink()


def text_of(body: Mapping[str, Any]) -> str:
    """The text of a result file. A value without lists or tables in it is on one line, and the
    longest lists are shortened until the whole is within LIMIT_BYTES, or nothing long is left."""
    body = json.loads(json.dumps(body))  # a copy, with the types of JSON alone
    text = _dumped(body)
    while len(text) > LIMIT_BYTES:
        length, holder, place = max(_lists(body), key=lambda one: one[0], default=(0, None, None))
        if length < SHORTEST_BYTES:
            return text
        holder[place] = _shortened(holder[place])
        text = _dumped(body)
    return text


def _dumped(value: Any, margin: str = "") -> str:
    items = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not any(isinstance(x, dict | list) for x in items):
        return json.dumps(value) + ("" if margin else "\n")
    inner = margin + " "
    names = [f"{json.dumps(name)}: " for name in value] if isinstance(value, dict) else None
    lines = [
        inner + (names[n] if names else "") + _dumped(item, inner) for n, item in enumerate(items)
    ]
    begin, end = "{}" if names else "[]"
    return "\n".join([begin, ",\n".join(lines), margin + end]) + ("" if margin else "\n")


def _lists(value: Any) -> Iterator[tuple[int, Any, Any]]:
    """Each list of plain numbers or of flat records, as (its bytes, its container, its key)."""
    for place, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if place in KEPT:
            continue
        if isinstance(item, list) and len(item) > 2 and (_numbers(item) or _records(item)):
            yield len(json.dumps(item)), value, place
        elif isinstance(item, dict | list):
            yield from _lists(item)


def _numbers(items: list[Any]) -> bool:
    return all(type(one) in (int, float) for one in items)


def _records(items: list[Any]) -> bool:
    return all(
        isinstance(one, dict) and not any(isinstance(x, dict | list) for x in one.values())
        for one in items
    )


def _shortened(items: list[Any]) -> dict[str, Any]:
    if not _numbers(items):
        return {"count": len(items), "first": items[0], "last": items[-1]}
    low, middle, high = statistics.quantiles(items, n=4, method="inclusive")
    figures = {"least": min(items), "first_quartile": low, "median": middle}
    return {"count": len(items), **figures, "third_quartile": high, "most": max(items)}


Key = tuple[str, str, str]
"""The name of a result with its parts, its date, and the commit on which it began. A benchmark that
writes its result after each case has one row."""


def key(name: str, facts: Mapping[str, Any]) -> Key:
    """The key of one result."""
    return name, facts["date"], str(facts.get("commit", "")).partition(" to ")[0]


def row(name: str, body: Mapping[str, Any]) -> str:
    """The line of the table for one result."""
    facts = body["facts"]
    load = facts.get("load_average_1min_before", facts.get("load_average_1min", ""))
    memory = f", {facts['memory_gib']} GiB" if "memory_gib" in facts else ""
    machine = f"{facts.get('cpu', '')}, {facts.get('cores', '?')} cores{memory}"
    cells = (name, facts["date"], facts.get("commit", ""), machine, load, headline(name, body))
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"


def headline(name: str, body: Mapping[str, Any]) -> str:
    """One or two figures of a result; "" where none is known."""
    known = next((HEADLINES[start] for start in _longest_first() if name.startswith(start)), ())
    found = [(label, list(_at(body, where.split("/")))) for label, where in known]
    told = [f"{label} {_figure(statistics.median(v))}" for label, v in found if v]
    if not told:
        claims = body.get("claims", [])
        told = [f"{claim['about']} {_figure(claim['found'])}" for claim in claims]
    return "; ".join(told[:2])


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _longest_first() -> list[str]:
    return sorted(HEADLINES, key=len, reverse=True)


def _at(value: Any, path: list[str]) -> Iterator[float]:
    """Every number at a path, those of a list one by one."""
    if isinstance(value, list) and path and path[0].isdecimal():
        yield from (n for item in value[int(path[0]) :][:1] for n in _at(item, path[1:]))
    elif path[:1] == ["*"] or (not path and isinstance(value, list)):
        yield from (n for item in value for n in _at(item, path[1:]))
    elif path and isinstance(value, dict) and path[0] in value:
        yield from _at(value[path[0]], path[1:])
    elif not path and isinstance(value, dict) and "median" in value:
        yield value["median"]  # a list that was shortened
    elif not path and isinstance(value, int | float):
        yield value


HEAD = """\
# Results that were measured

Made by `python -m benchmarks.history`, and by every benchmark that writes its result; do not edit.
The newest file of each benchmark and its parts lies beside this page; older ones are in git. `load`
is the load average of a minute before the benchmark began, or, where its file has none, when it
ended. A commit with `-dirty` had changes that were not committed. Figures are medians unless they
say otherwise. Results of one benchmark on one day and one commit are one row, that of the last.

| benchmark, parts | date | commit | machine | load | figures |
|---|---|---|---|---|---|
"""


def table(rows: Mapping[Key, str]) -> str:
    """All rows by benchmark, the newest of each first."""
    by_date = sorted(rows, key=lambda one: one[1:], reverse=True)
    return HEAD + "".join(rows[one] + "\n" for one in sorted(by_date, key=lambda one: one[0]))


def table_rows(text: str) -> Iterator[tuple[Key, str]]:
    """The rows of a table that `table` wrote."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and re.fullmatch(r"\d{4}-\d\d-\d\d", cells[1]):
            yield key(cells[0], {"date": cells[1], "commit": cells[2]}), line


def _write(path: Path, text: str) -> None:
    aside = path.with_suffix(".tmp")
    aside.write_text(text)
    aside.replace(path)


if __name__ == "__main__":
    tidy(Path(__file__).parent / "results")
    sys.exit(0)
