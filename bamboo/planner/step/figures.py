"""Figures of a dry run: step time, bubbles, peak stash, what was computed ahead, gap budgets.

Rule: times are read from the timeline, not from formulas; the one formula here is the lower bound
that no timeline may beat.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from bamboo.ids import NodeId
from bamboo.planner.step.dry_run import dry_run
from bamboo.planner.step.layout import Costs, Layout
from bamboo.planner.step.standing import Budgets
from bamboo.planner.step.timeline import Ran, Timeline
from bamboo.schedule.redundancy import GAP_SLACK, Gap, ahead_of_need, gap_budget
from bamboo.topology.slots import Slot

STEADY_STEPS = 5
"""Steps of a dry run that give a step time, of which the first does not count. The remaining number
is even, because every other step is longer if shadows compute all they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """The worst slot of one stage: peak counts, over the whole dry run."""

    stage: int
    peak_in_flight: int
    """Microbatches that have run forward but not backward: activations held by the owner."""
    peak_outputs: int
    """Stashed outputs, of up to two steps (0 without a replica and on the last stage)."""
    peak_gradients: int
    """Stashed gradients of the input (0 without a replica and on stage 0)."""
    peak_ahead: int
    """Microbatches whose redundant forward a shadow of this stage holds."""
    ahead_forwards: float
    """Redundant forwards that a shadow of this stage finished, per step."""
    ahead_backwards: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """The time of one node, per step in steady state."""

    useful_s: float
    redundant_s: float
    """Time spent on FR, BR and R."""
    idle_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a schedule costs, over `steps` whole steps in steady state."""

    step_s: float
    bound_s: float
    """A lower bound for any schedule of these programs with one node per stage."""
    bubble: float
    """Share of the nodes' time in which nothing useful ran (redundant work is not useful)."""
    redundant: float
    """Share of the nodes' time spent on FR, BR and R."""
    busy: tuple[float, ...]
    """For each number of nodes from 0 on, the share of the time in which that many computed."""
    stages: tuple[StageFigures, ...]


def step_time_s(timeline: Timeline) -> float:
    """Seconds per step: of the only step, or the mean of all but the first."""
    commit_ns = timeline.commit_ns
    if len(commit_ns) == 1:
        return commit_ns[0] / 1e9
    return (commit_ns[-1] - commit_ns[0]) / (len(commit_ns) - 1) / 1e9


def bound_s(layout: Layout, costs: Costs) -> float:
    """The least time of the forwards and backwards of one step, whatever the owners: the slowest
    stage runs all its microbatches, after the first has come down to it and before the last has
    gone back up. Messages are left out."""
    stages = layout.assignment.grid.stages
    forward, backward = costs.forward_s, costs.backward_s
    count = max(row[0].microbatches for row in layout.programs)
    return max(
        sum(forward[:s]) + count * (forward[s] + backward[s]) + sum(backward[:s])
        for s in range(stages)
    )


def figures(timeline: Timeline, costs: Costs) -> Figures:
    """Read the figures of a timeline; with several steps the first is left out of the shares."""
    spent = _spent_ns(timeline)
    useful_ns = sum(useful for useful, _ in spent.values())
    redundant_ns = sum(redundant for _, redundant in spent.values())
    nodes = len(set(timeline.layout.assignment.owners))
    capacity_ns = nodes * _window_ns(timeline)[1]
    grid = timeline.layout.assignment.grid
    return Figures(
        step_s=step_time_s(timeline),
        bound_s=bound_s(timeline.layout, costs),
        bubble=1.0 - useful_ns / capacity_ns if capacity_ns else 0.0,
        redundant=redundant_ns / capacity_ns if capacity_ns else 0.0,
        busy=busy(timeline),
        stages=tuple(_stage_figures(timeline, grid.column(s)) for s in range(grid.stages)),
    )


def node_figures(timeline: Timeline) -> dict[NodeId, NodeFigures]:
    """The figures of each node; with several steps the first does not count."""
    _, window_ns = _window_ns(timeline)
    steps_ns = max(timeline.steps - 1, 1) * 1e9
    return {
        node: NodeFigures(
            useful_s=useful_ns / steps_ns,
            redundant_s=redundant_ns / steps_ns,
            idle_s=(window_ns - useful_ns - redundant_ns) / steps_ns,
        )
        for node, (useful_ns, redundant_ns) in _spent_ns(timeline).items()
    }


def _window_ns(timeline: Timeline) -> tuple[int, int]:
    """The beginning and the length of the steady state."""
    start_ns = timeline.commit_ns[0] if timeline.steps > 1 else 0
    return start_ns, timeline.commit_ns[-1] - start_ns


def _spent_ns(timeline: Timeline) -> dict[NodeId, tuple[int, int]]:
    """Useful and redundant time of each node in steady state."""
    start_ns, _ = _window_ns(timeline)
    spent = dict.fromkeys(sorted(set(timeline.layout.assignment.owners)), (0, 0))
    for ran in timeline.ran:
        inside_ns = min(ran.end_ns, timeline.commit_ns[-1]) - max(ran.start_ns, start_ns)
        if inside_ns > 0:
            useful_ns, redundant_ns = spent.get(ran.node, (0, 0))
            if ran.instruction.kind in ("F", "B", "X", "S"):
                spent[ran.node] = (useful_ns + inside_ns, redundant_ns)
            else:
                spent[ran.node] = (useful_ns, redundant_ns + inside_ns)
    return spent


def busy(timeline: Timeline) -> tuple[float, ...]:
    """`Figures.busy`, in steady state; empty if no time passes."""
    nodes = len(set(timeline.layout.assignment.owners))
    start_ns, window_ns = _window_ns(timeline)
    if not window_ns:
        return ()
    changes: list[tuple[int, int]] = [(start_ns + window_ns, 0)]
    for ran in timeline.ran:
        begin_ns = max(ran.start_ns, start_ns)
        end_ns = min(ran.end_ns, start_ns + window_ns)
        if begin_ns < end_ns:
            changes += [(begin_ns, 1), (end_ns, -1)]
    spent_ns = [0] * (nodes + 1)
    at_ns, level = start_ns, 0
    for now_ns, change in sorted(changes):
        spent_ns[level] += now_ns - at_ns
        at_ns, level = now_ns, level + change
    return tuple(one_ns / window_ns for one_ns in spent_ns)


def _stage_figures(timeline: Timeline, column: tuple[Slot, ...]) -> StageFigures:
    by_slot = {slot: [r for r in timeline.ran if r.slot == slot] for slot in column}
    grid = timeline.layout.assignment.grid
    stashes = any(node is not None for node in timeline.layout.assignment.shadows)
    stage = column[0].stage

    def peak(gains: str, losses: str, *, until_settled: bool = False) -> int:
        return max(_peak(timeline, ran, gains, losses, until_settled) for ran in by_slot.values())

    def per_step(kind: str) -> float:
        counts = [sum(r.instruction.kind == kind for r in ran) for ran in by_slot.values()]
        return sum(counts) / len(counts) / timeline.steps

    return StageFigures(
        stage=stage,
        peak_in_flight=peak("F", "B"),
        peak_outputs=peak("F", "", until_settled=True)
        if stashes and stage < grid.stages - 1
        else 0,
        peak_gradients=peak("B", "", until_settled=True) if stashes and stage > 0 else 0,
        peak_ahead=_peak_ahead(timeline, by_slot.values()),
        ahead_forwards=per_step("FR"),
        ahead_backwards=per_step("BR"),
    )


def _peak(timeline: Timeline, ran: list[Ran], gains: str, losses: str, until_settled: bool) -> int:
    """The most things held at once: one more when a `gains` ends, one less when a `losses` ends
    or, for a stash, when the step of the gain is settled everywhere."""
    changes: list[tuple[int, int]] = []
    for one in ran:
        if one.instruction.kind == gains:
            changes.append((one.end_ns, 1))
            if until_settled:
                changes.append((max(timeline.settled_ns[one.step], one.end_ns), -1))
        elif one.instruction.kind == losses:
            changes.append((one.end_ns, -1))
    return _highest(changes)


def _peak_ahead(timeline: Timeline, slots: Iterable[list[Ran]]) -> int:
    """Redundant forwards are held until the step commits."""
    peaks = [0]
    for ran in slots:
        changes: list[tuple[int, int]] = []
        for one in ran:
            if one.instruction.kind == "FR":
                changes.append((one.end_ns, 1))
                changes.append((max(timeline.commit_ns[one.step], one.end_ns), -1))
        peaks.append(_highest(changes))
    return max(peaks)


def computed_ahead(timeline: Timeline) -> tuple[tuple[float, float], ...]:
    """The shares of each stage's forwards and backwards in the first step that its shadows had done
    at the end of the step."""
    modes = timeline.layout.modes
    if not any(ahead_of_need(mode, stage=0, microbatches=1) for mode in set(modes)):
        return ((0.0, 0.0),) * len(modes)
    end_ns = timeline.commit_ns[0]
    done = Counter(
        (one.slot.stage, one.instruction.kind)
        for one in timeline.ran
        if one.step == 0 and one.end_ns <= end_ns
    )
    return tuple(
        (done[stage, "FR"] / max(done[stage, "F"], 1), done[stage, "BR"] / max(done[stage, "B"], 1))
        for stage in range(len(modes))
    )


def _highest(changes: list[tuple[int, int]]) -> int:
    level = highest = 0
    for _, change in sorted(changes):
        level += change
        highest = max(highest, level)
    return highest


def gaps(timeline: Timeline) -> dict[NodeId, tuple[Gap, ...]]:
    """The waits of each node in the last step, by the cursor of its first own slot."""
    last = timeline.steps - 1
    start_ns = timeline.commit_ns[last - 1] if last else 0
    by_node: dict[NodeId, list[Gap]] = {n: [] for n in timeline.layout.assignment.owners}
    free_ns: dict[NodeId, int] = dict.fromkeys(by_node, start_ns)
    for ran in timeline.ran:
        if ran.end_ns <= start_ns:
            continue
        waited_ns = ran.start_ns - free_ns[ran.node]
        if waited_ns > 0 and ran.start_ns <= timeline.commit_ns[last]:
            by_node[ran.node].append(Gap(cursor=ran.host_cursor, length_s=waited_ns / 1e9))
        free_ns[ran.node] = max(free_ns[ran.node], ran.end_ns)
    return {node: tuple(found) for node, found in by_node.items()}


def gap_budgets(layout: Layout, costs: Costs) -> Budgets:
    """How many redundant forwards of each shadowed slot in mode `gap` fit where, by the cursor of
    the node's first own slot. The prediction is a dry run of the same layout that computes nothing
    ahead."""
    calm = Layout(assignment=layout.assignment, programs=layout.programs, mode="stash")
    waits = gaps(dry_run(calm, costs, steps=STEADY_STEPS))
    assignment = layout.assignment
    budgets: dict[Slot, dict[int, int]] = {}
    for slot in assignment.grid.slots():
        shadow = assignment.shadow(slot)
        if shadow is None or layout.modes[slot.stage] != "gap":
            continue
        before = assignment.grid.protector(slot)
        hosted = slot.stage > 0 and assignment.owned_by(shadow)[0] == before
        budgets[slot] = gap_budget(
            gaps=waits[shadow],
            forward_s=costs.forward_s[slot.stage],
            microbatches=layout.program(slot).microbatches,
            host=layout.program(before) if hosted else None,
            slack_s=GAP_SLACK * costs.forward_s[slot.stage],
        )
    return budgets


def plan_run(layout: Layout, costs: Costs, *, steps: int = STEADY_STEPS) -> Timeline:
    """The dry run of a layout in its own modes, with the gap budgets that these need."""
    budgets = gap_budgets(layout, costs) if "gap" in layout.modes else None
    return dry_run(layout, costs, steps=steps, budgets=budgets)
