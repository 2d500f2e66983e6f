"""A schedule as text: a grid with a row per node and time to the right, and its figures.

Rule: it returns plain strings; the caller decides where and in which colour they are shown.
"""

import math
from collections.abc import Sequence

from bamboo.ids import NodeId
from bamboo.planner.step.figures import Figures
from bamboo.planner.step.timeline import Ran, Timeline

MAX_COLUMNS = 120
IDLE, GOES_ON = ".", "-"


def grid_text(timeline: Timeline, *, step: int = 0, max_columns: int = MAX_COLUMNS) -> str:
    """The grid of one step. A cell holds the operation that begins there (`F0`, `FR1`), `-` while
    it continues, `.` while the node waits. On nodes that run two stages, operations of a stage that
    the node does not own from the start carry their stage (`3F0`).

    A column is the longest time of which all durations are multiples. If that needs more than
    `max_columns`, columns are coarser, and operations shorter than one may share or miss it.
    Operations that take no time are left out.
    """
    start_ns = timeline.commit_ns[step - 1] if step else 0
    end_ns = timeline.commit_ns[step]
    ran = [r for r in timeline.ran if r.end_ns > max(r.start_ns, start_ns) and r.start_ns < end_ns]
    column_ns = _column_ns(ran, start_ns, end_ns, max_columns)
    columns = math.ceil((end_ns - start_ns) / column_ns)
    rows: dict[str, list[str]] = {}
    for node, slots in _nodes(timeline).items():
        cells = [IDLE] * columns
        for one in ran:
            if one.node == node:
                text = str(one.instruction) if len(slots) > 1 else one.instruction.short
                _place(cells, one, text, start_ns, column_ns)
        rows["+".join(slots)] = cells
    width = max((len(cell) for cells in rows.values() for cell in cells), default=1)
    label_width = max(len("stage"), *(len(label) for label in rows))
    lines = [f"{'stage':<{label_width}}  one column is {column_ns / 1e6:g} ms"]
    for label, cells in rows.items():
        body = " ".join(f"{cell:<{width}}" for cell in cells).rstrip()
        lines.append(f"{label:<{label_width}}  {body}")
    return "\n".join(lines) + "\n"


def _nodes(timeline: Timeline) -> dict[NodeId, list[str]]:
    """Each node's own slots as labels: the stage, or `pipeline.stage` when there are several."""
    assignment = timeline.layout.assignment
    out: dict[NodeId, list[str]] = {}
    for slot in assignment.grid.slots():
        label = str(slot) if assignment.grid.pipelines > 1 else str(slot.stage)
        out.setdefault(assignment.owner(slot), []).append(label)
    return out


def _column_ns(ran: Sequence[Ran], start_ns: int, end_ns: int, max_columns: int) -> int:
    exact = math.gcd(
        end_ns - start_ns, *(t - start_ns for r in ran for t in (r.start_ns, r.end_ns))
    )
    if exact and (end_ns - start_ns) // exact <= max_columns:
        return exact
    return max(1, math.ceil((end_ns - start_ns) / max_columns))


def _place(cells: list[str], ran: Ran, text: str, start_ns: int, column_ns: int) -> None:
    first = max(0, (ran.start_ns - start_ns) // column_ns)
    stop = min(len(cells), math.ceil((ran.end_ns - start_ns) / column_ns))
    for column in range(first, stop):
        if column == first:
            cells[column] = text
        elif cells[column] == IDLE:
            cells[column] = GOES_ON


def figures_text(figures: Figures) -> str:
    """The figures as lines: the step, then a table with a row per stage."""
    over = figures.step_s / figures.bound_s - 1.0 if figures.bound_s else 0.0
    lines = [
        f"step time      {figures.step_s * 1e3:.1f} ms "
        f"({over:+.1%} over the bound of {figures.bound_s * 1e3:.1f} ms)",
        f"bubble         {figures.bubble:.1%} of the nodes' time without useful work",
        f"redundant      {figures.redundant:.1%} of the nodes' time",
        "",
        "stage  in flight  outputs  gradients  held ahead  FR/step  BR/step",
    ]
    lines.extend(
        f"{s.stage:>5}  {s.peak_in_flight:>9}  {s.peak_outputs:>7}  {s.peak_gradients:>9}  "
        f"{s.peak_ahead:>10}  {s.ahead_forwards:>7.1f}  {s.ahead_backwards:>7.1f}"
        for s in figures.stages
    )
    return "\n".join(lines) + "\n"
