"""The screen of a running launch: head, bar, nodes, the last preemptions; and its plain lines.

Pure: `screen` gives a rich renderable, `step_line` and `node_line` give text for when standard
output is no terminal.
"""

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bamboo.core.state import Phase
from cli.progress import OPERATIONS, Progress, node_rows
from cli.views.preemption import preemption_line
from cli.views.quantities import clock, rate, size, usd

SHOWN_PREEMPTIONS = 6


def screen(progress: Progress) -> RenderableType:
    """All of it, for a terminal of any width."""
    parts: list[RenderableType] = [_head(progress), _bar(progress), _figures(progress)]
    if progress.state.nodes:
        parts.append(_nodes(progress))
    parts += [
        Text("! " + preemption_line(p), style="yellow")
        for p in progress.preemptions[-SHOWN_PREEMPTIONS:]
    ]
    return Group(*parts)


def _head(progress: Progress) -> RenderableType:
    state = progress.state
    style = "green" if state.phase in (Phase.RUNNING, Phase.FORMING) else "yellow"
    return Text.assemble(
        (progress.run, "bold"),
        "  ",
        (state.phase.value, style),
        f"  generation {state.generation}  {progress.sentence}",
    )


def _bar(progress: Progress) -> RenderableType:
    left = progress.remaining_s
    grid = Table.grid(padding=(0, 1))
    grid.add_row(
        Text(f"step {progress.step}/{progress.steps}"),
        ProgressBar(total=progress.steps, completed=progress.step, width=30),
        Text(f"{clock(progress.now_s - progress.started_at_s)} passed"),
        Text("" if left is None or progress.finished else f"{clock(left)} to go"),
    )
    return grid


def figures(progress: Progress) -> str:
    """`loss 3.2101  1,234 tokens/s  $0.0012 so far (modelled)  1,000,000 tokens/$`."""
    loss = "-" if progress.loss is None else f"{progress.loss:.4f}"
    return (
        f"loss {loss}  {rate(progress.tokens_per_s)} tokens/s  "
        f"{usd(progress.usd)} so far (modelled)  {rate(progress.tokens_per_usd)} tokens/$"
    )


def _figures(progress: Progress) -> RenderableType:
    return Text(figures(progress))


def _nodes(progress: Progress) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("node", "zone", "status", "owns", "shadows"):
        table.add_column(title, no_wrap=True)
    for title in (*OPERATIONS, "tensors"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("shadowed by", no_wrap=True)
    for row in node_rows(progress):
        gone = row["status"] in ("gone", "left")
        table.add_row(
            row["id"],
            row["zone"],
            row["status"],
            " ".join(row["owns"]),
            " ".join(row["shadows"]),
            *(str(row["operations"][op]) for op in OPERATIONS),
            size(row["tensor_bytes"]),
            shadowed_by(progress, row["owns"]),
            style="dim" if gone else "",
        )
    return table


def shadowed_by(progress: Progress, owned: list[str]) -> str:
    """The nodes that hold the replicas of these slots; `nobody` where one has none."""
    assignment = progress.state.assignment
    if assignment is None:
        return ""
    names = [
        assignment.shadow(slot) or "nobody"
        for slot in assignment.grid.slots()
        if str(slot) in owned
    ]
    return " ".join(names)


def step_line(progress: Progress) -> str:
    """One plain line for one step."""
    left = progress.remaining_s
    tail = "" if left is None or progress.finished else f"  {clock(left)} to go"
    return f"step {progress.step}/{progress.steps}  {figures(progress)}{tail}"


def decision_line(progress: Progress, reason: str) -> str:
    """One plain line for one decision."""
    state = progress.state
    return f"{state.phase.value}, generation {state.generation}: {reason}"
