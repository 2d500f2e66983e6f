"""Which losses a run survives, and how: counted over the copies of every slot, then put in words.

Rule: this follows what `bamboo.core` does with a loss. A slot continues inside the step while its
owner or shadow is there. In every mode but `off` a stage survives while any pipeline has a copy of
it, and the step is then done again. All other losses need a checkpoint. One gap is named and not
counted: copies of different pipelines, or of an owner and a shadow, may be a step apart while the
last messages of a step are in transit, and then the survivors have no step in common.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from math import comb

from bamboo.ids import NodeId
from bamboo.topology.assignment import Assignment

Copies = tuple[frozenset[NodeId], ...]
"""Groups of nodes; no group may be lost as a whole."""


class Outcome(IntEnum):
    """The consequence of a loss for a run, mildest first."""

    INSIDE = 0
    ELSEWHERE = 1
    RESTORED = 2
    ENDED = 3


def copies_of_slots(assignment: Assignment) -> Copies:
    """Owner and shadow of each slot: while one of them is there, only the roles change."""
    pairs = zip(assignment.owners, assignment.shadows, strict=True)
    return tuple(frozenset({owner, shadow or owner}) for owner, shadow in pairs)


def copies_of_stages(assignment: Assignment, mode: str) -> Copies:
    """The nodes that hold a stage: all its owners and shadows, in any pipeline. In mode `off` no
    pipeline takes over from another."""
    slots = copies_of_slots(assignment)
    if mode == "off":
        return slots
    stages = assignment.grid.stages
    return tuple(frozenset().union(*slots[stage::stages]) for stage in range(stages))


def outcome(
    assignment: Assignment, mode: str, victims: Collection[NodeId], *, checkpoint_every: int
) -> Outcome:
    """The consequence of losing all `victims` at the same instant."""
    lost = frozenset(victims)
    if not any(group <= lost for group in copies_of_slots(assignment)):
        return Outcome.INSIDE
    if not any(group <= lost for group in copies_of_stages(assignment, mode)):
        return Outcome.ELSEWHERE
    return Outcome.RESTORED if checkpoint_every > 0 else Outcome.ENDED


def single_loss(assignment: Assignment, mode: str, *, checkpoint_every: int) -> Outcome:
    """The worst consequence of losing a single node."""
    return max(
        outcome(assignment, mode, (node,), checkpoint_every=checkpoint_every)
        for node in assignment.members()
    )


def broken(groups: Copies, nodes: int) -> tuple[int, int]:
    """How many single losses, and how many pairs of `nodes`, take the whole of some group."""
    alone = {group for group in groups if len(group) == 1}
    taken: frozenset[NodeId] = frozenset().union(*alone)
    pairs = {group for group in groups if len(group) == 2 and not group & taken}
    return len(alone), comb(nodes, 2) - comb(nodes - len(alone), 2) + len(pairs)


def survival(
    assignment: Assignment,
    mode: str,
    *,
    checkpoint_every: int,
    zones: Mapping[NodeId, str] | None = None,
) -> tuple[str, ...]:
    """Sentences on which losses are survived, and how. `zones`: the zone of each node."""
    nodes = sorted(assignment.members())

    def becomes(victims: Collection[NodeId]) -> Outcome:
        return outcome(assignment, mode, victims, checkpoint_every=checkpoint_every)

    grid = assignment.grid
    single = single_loss(assignment, mode, checkpoint_every=checkpoint_every)
    words = _words(single, checkpoint_every, by="its shadow")
    which = "the only node" if len(nodes) == 1 else f"any one of the {len(nodes)} nodes"
    notes = [f"The loss of {which} {words}."]
    if single is Outcome.ENDED:
        notes[0] += f" Redundancy is {mode!r}, and no periodic checkpoint is written."
        if mode == "peer":
            stash = ", or redundancy = 'stash'" if grid.stages > 1 else ""
            notes[0] += (
                " A lost stage comes from another pipeline in this mode, and at the start there is "
                f"none: take cluster.pipelines = 2{stash}."
            )
    if single < Outcome.RESTORED:
        notes.append(_pairs(assignment, mode, len(nodes), checkpoint_every))
    if grid.stages > 1:  # else a pipeline is a node
        pipelines = [grid.pipeline(d) for d in range(grid.pipelines)]
        whole = max(becomes([assignment.owner(slot) for slot in ring]) for ring in pipelines)
        which = "the whole pipeline" if grid.pipelines == 1 else "a whole pipeline"
        notes.append(f"The loss of {which} {_words(whole, checkpoint_every)}.")
        if grid.pipelines > 1 and mode != "off":
            notes.append(_gap(checkpoint_every))
    if zones is not None and len(nodes) > 1:
        notes.append(_zone(nodes, zones, becomes, checkpoint_every))
    return tuple(notes)


def _gap(checkpoint_every: int) -> str:
    what = "goes back to the newest checkpoint" if checkpoint_every > 0 else "ends the run"
    return (
        "What is survived from another pipeline but leaves no pipeline whole, and falls into the "
        f"moment in which a step ends, {what}."
    )


def _zone(
    nodes: Sequence[NodeId],
    zones: Mapping[NodeId, str],
    becomes: Callable[[Collection[NodeId]], Outcome],
    every: int,
) -> str:
    by_zone: dict[str, list[NodeId]] = {}
    for node in nodes:
        by_zone.setdefault(zones[node], []).append(node)
    if len(by_zone) == 1:
        where = f"all nodes, which lie in zone {next(iter(by_zone))},"
        return f"The loss of {where} {_words(becomes(nodes), every)}."
    worst = max(becomes(members) for members in by_zone.values())
    return f"The loss of any one of the {len(by_zone)} zones {_words(worst, every)}."


def _pairs(assignment: Assignment, mode: str, nodes: int, checkpoint_every: int) -> str:
    """Counts of all pairs by their consequence, and which pairs need more."""
    _, not_inside = broken(copies_of_slots(assignment), nodes)
    _, nowhere = broken(copies_of_stages(assignment, mode), nodes)
    total = comb(nodes, 2)
    last = Outcome.RESTORED if checkpoint_every > 0 else Outcome.ENDED
    replicas = any(shadow is not None for shadow in assignment.shadows)
    who = "a node and the one that shadows it" if replicas else "all the nodes of one stage"
    if nodes == 2 and assignment.grid.stages == 1:
        who = "both nodes"
    parts = []
    if total > not_inside:
        parts.append(_counted(total - not_inside, "", Outcome.INSIDE))
    if not_inside > nowhere:
        parts.append(_counted(not_inside - nowhere, who if replicas else "", Outcome.ELSEWHERE))
    if nowhere:
        parts.append(_counted(nowhere, who, last))
    pairs = "1 pair" if total == 1 else f"{total} pairs"
    return f"Of the {pairs} of nodes lost at the same instant, {', '.join(parts)}."


def _words(what: Outcome, every: int, *, by: str = "shadows") -> str:
    """The predicate of one loss."""
    steps = "1 step" if every == 1 else f"{every} steps"
    return {
        Outcome.INSIDE: f"is survived inside the step by {by}",
        Outcome.ELSEWHERE: "is survived from another pipeline: the step is done again",
        Outcome.RESTORED: f"is restored from the newest checkpoint: at most {steps}, and those "
        "taken while one is written, are done again",
        Outcome.ENDED: "ends the run",
    }[what]


def _counted(pairs: int, which: str, what: Outcome) -> str:
    """The number of pairs, which they are, and their consequence."""
    be, end = ("is", "ends") if pairs == 1 else ("are", "end")
    words = {
        Outcome.INSIDE: f"{be} survived inside the step",
        Outcome.ELSEWHERE: f"{be} survived from another pipeline",
        Outcome.RESTORED: f"{be} restored from the newest checkpoint",
        Outcome.ENDED: f"{end} the run",
    }[what]
    return f"{pairs} ({which}) {words}" if which else f"{pairs} {words}"
