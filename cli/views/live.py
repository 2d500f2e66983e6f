"""The screen of a running launch: head, bar, nodes, the last preemptions; and its plain lines.

Pure: `screen` gives a rich renderable, `step_line` and `decision_line` give text for when standard
output is not a terminal.
"""

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bamboo.core import events
from bamboo.core.proposals import chosen_in
from bamboo.core.state import Attestation, NodeStatus, Outcome, Phase, State
from bamboo.ids import NodeId
from bamboo.quantities import clock, rate, size, usd
from bamboo.runs.node_names import with_short_names
from bamboo.runs.preemption_lines import short_preemption_line
from bamboo.runs.progress import OPERATIONS, Progress, node_rows
from cli.echo import printable
from cli.views.metrics import evaluation_words, metric_words
from cli.views.trace import trace_figures

SHOWN_PREEMPTIONS = 6
SPARED = ("tensors", "zone")
"""Columns of the nodes' table that a narrow terminal leaves out, the first one first."""
NAME = 10
"""Characters of a node's id on the screen: enough to tell nodes apart and to name one to `logs`."""


def screen(progress: Progress) -> RenderableType:
    """All of it, for a terminal of any width."""
    parts: list[RenderableType] = [_head(progress), _bar(progress), _figures(progress)]
    if progress.state.nodes:
        parts.append(_Nodes(progress))
    parts += [
        Text("! " + printable(short_preemption_line(p, progress)), style="yellow")
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
        f"  generation {state.generation}  {printable(progress.sentence)}",
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
    """`loss 3.2101  1,234 tokens/s lately  $0.0012 so far (modelled)  1,000,000 tokens/$`;
    lately: over the last ten steps. Where the data are no text, samples stand for tokens."""
    parts = [] if progress.loss is None else [f"loss {progress.loss:.4f}"]
    parts += metric_words(progress.metrics)
    text = progress.tokens_per_step > 0
    unit = "tokens" if text else "samples"
    per_s = progress.tokens_per_s if text else progress.samples_per_s
    per_usd = progress.tokens_per_usd if text else progress.samples_per_usd
    if per_s:
        parts.append(f"{rate(per_s)} {unit}/s lately")
    parts.append(f"{usd(progress.usd)} so far{' (modelled)' if progress.modelled else ''}")
    if per_usd:
        parts.append(f"{rate(per_usd)} {unit}/$")
    if progress.trace is not None:
        parts.append(trace_figures(progress.trace))
    return "  ".join(parts)


def _figures(progress: Progress) -> RenderableType:
    return Text("\n".join(filter(None, (figures(progress), evaluation_line(progress)))))


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The table of nodes, with as many columns as fit the terminal."""

    progress: Progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        for spared in range(len(SPARED) + 1):
            table = _nodes(self.progress, without=SPARED[:spared])
            wanted = Measurement.get(console, options.update(max_width=1000), table).maximum
            if wanted <= options.max_width:
                break
        yield table


def _nodes(progress: Progress, *, without: Collection[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in (t for t in ("node", "zone", "status", "owns") if t not in without):
        table.add_column(title, no_wrap=True)
    for title in (t for t in (*OPERATIONS, "tensors") if t not in without):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("shadowed by", no_wrap=True)
    for row in node_rows(progress):
        cells = {
            "node": row["id"][:NAME],
            "zone": row["zone"],
            "status": row["status"],
            "owns": " ".join(row["owns"]),
            **{op: str(row["operations"][op]) for op in OPERATIONS},
            "tensors": size(row["tensor_bytes"]),
            "shadowed by": shadowed_by(progress, row["owns"]),
        }
        gone = row["status"] in ("gone", "left")
        table.add_row(
            *(Text(printable(c)) for title, c in cells.items() if title not in without),
            style="dim" if gone else "",
        )
    return table


def shadowed_by(progress: Progress, owned: list[str]) -> str:
    """The nodes that hold the replicas of these slots, shortened; `nobody` where one has none."""
    assignment = progress.state.assignment
    if assignment is None:
        return ""
    names = [
        (assignment.shadow(slot) or "nobody")[:NAME]
        for slot in assignment.grid.slots()
        if str(slot) in owned
    ]
    return " ".join(names)


def evaluation_line(progress: Progress) -> str:
    """The newest evaluation in words; "" before the first one."""
    found = progress.evaluation
    return "" if found is None else evaluation_words(asdict(found))


def step_line(progress: Progress) -> str:
    """One plain line for one step."""
    left = progress.remaining_s
    tail = "" if left is None or progress.finished else f"  {clock(left)} to go"
    return f"step {progress.step}/{progress.steps}  {figures(progress)}{tail}"


def told_of(after: State, event: events.Event, reason: str) -> str:
    """The sentence for a decision; "" for an intermediate one, which is only in the log.

    A reconfiguration has a decision for each node that stops, reports what it holds and gets what
    it lacks. Only the result is printed: where all go on, and that they do.
    """
    reconfiguration = after.reconfiguration
    match event:
        case events.NodeLeft() | events.ShardSaved() | events.BoundaryReady():
            return ""
        case events.Quiesced() if reconfiguration is not None:
            said = {report.node for report in reconfiguration.reports}
            live = {node.id for node in after.live_nodes()}
            awaited = reconfiguration.base is None and not said.issuperset(
                live.intersection(reconfiguration.asked)
            )
            return "" if awaited else reason.partition("; ")[2] or reason
        case events.LayoutBuilt() if reconfiguration is not None:
            return ""
        case events.Prepared():
            return "" if reconfiguration is None else reason.partition("; ")[2] or reason
        case events.StopReady():
            return "" if after.stop_at_step is None else reason.partition("; ")[2] or reason
        case events.NodeFinished() if after.phase is not Phase.FINISHED:
            return ""
        case _:
            return reason


def decision_line(progress: Progress, reason: str) -> str:
    """One plain line for one decision."""
    state = progress.state
    return f"{state.phase.value}, generation {state.generation}: {reason}"


_OF_A_PREEMPTION = (
    events.PeerLost,
    events.NoticeReceived,
    events.HandedOver,
    events.CaughtUp,
    events.ReplicaJoined,
    events.Yielded,
)
"""A preemption's own line covers these, where the run goes on by itself."""
_GOES_ON = (Phase.RUNNING, Phase.FAILING_OVER, Phase.DEGRADED)


def briefly_told_of(after: State, event: events.Event, reason: str) -> str:
    """The sentence for a decision; "" for an intermediate one, for the parts of a start, an
    evaluation, a calm end, and a preemption that a failover handles."""
    if _is_said_otherwise(after, event):
        return ""
    if after.emergency is not None and after.emergency.since == after.version:
        return reason  # it found state that will be lost with all its holders
    if isinstance(event, _OF_A_PREEMPTION) and after.phase in _GOES_ON:
        stays = isinstance(event, events.NoticeReceived) and not _drains(after, event.node)
        return reason if stays else ""
    if isinstance(event, events.NodeJoined) and after.phase in _GOES_ON and "starts" not in reason:
        return ""
    if isinstance(event, events.StrategyReady):
        return chosen_in(reason) or reason
    if isinstance(event, events.CheckpointDone) and after.phase in _GOES_ON:
        return ""  # a long run has hundreds of them
    return told_of(after, event, reason)


def _is_said_otherwise(after: State, event: events.Event) -> bool:
    """Whether another line has what a person wants of it: how many nodes have come to a start, an
    evaluation's loss, a calm end."""
    match event:
        case events.Attested():
            return after.attested == Attestation(node=event.node, numerics=event.numerics)
        case events.NodeJoined():
            return after.phase is Phase.FORMING
        case events.EvaluationDone():
            return after.stop_reason is None
        case events.StrategyProposed() | events.StrategyReady():
            return after.proposal is not None
        case events.NodeFinished():
            return after.outcome is Outcome.DONE and after.stop_reason is None
        case _:
            return False


def _drains(state: State, node: NodeId) -> bool:
    found = state.node(node)
    return found is not None and found.status in (NodeStatus.DRAINING, NodeStatus.LEFT)


def forming_line(progress: Progress) -> str:
    """How many nodes have come so far; "" once they train."""
    state = progress.state
    if state.phase is not Phase.FORMING:
        return ""
    passed_s = progress.now_s - progress.started_at_s
    here = f"{len(state.live_nodes())} of {state.grid.size} nodes after {passed_s:.0f} s"
    return f"forming: {here}; each boots first, and imports the job's code"


def brief_decision_line(progress: Progress, reason: str) -> str:
    """One plain line for one decision, with short names."""
    nodes = [node.id for node in progress.state.nodes]
    return f"{progress.state.phase.value}: {with_short_names(reason, nodes)}"
