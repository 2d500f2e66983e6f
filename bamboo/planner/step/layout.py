"""The input of a dry run: the nodes of each slot, and the costs of each operation and message.

Rule: both are plain values of the caller; a dry run reads nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bamboo.errors import InputError
from bamboo.ids import NodeId
from bamboo.planner.step.links import Far
from bamboo.schedule.one_f_one_b import Program, one_f_one_b
from bamboo.schedule.redundancy import has_replica
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import stage_modes


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Durations and sizes per stage; an empty tuple means zero for every stage.

    Build one with `Costs.of`, which spreads single figures and checks. Messages between slots of
    one node cost nothing.
    """

    forward_s: tuple[float, ...]
    """One microbatch's forward, also as a redundant one."""
    backward_s: tuple[float, ...]
    exchange_s: tuple[float, ...] = ()
    """Work of the owner to reduce its gradients and hand them over."""
    step_s: tuple[float, ...] = ()
    """Optimizer step of the owner, and of the replica."""
    latency_s: float = 0.0
    """One-way latency of every message."""
    bytes_per_s: float = 0.0
    """Rate of each directed link between two nodes; 0: a message takes its latency only."""
    boundary_bytes: tuple[float, ...] = ()
    """Output of the stage for one microbatch."""
    back_bytes: tuple[float, ...] = ()
    """The gradients of that output, which the next stage sends back."""
    gradient_bytes: tuple[float, ...] = ()
    """All parameter gradients of the stage: what is shipped to the shadow."""
    exchange_bytes: tuple[float, ...] = ()
    """Sent by one owner to each peer of its column; 0 in a grid of one pipeline."""
    links_bytes: tuple[tuple[tuple[float, ...], ...], ...] = ()
    """For each stage, from the owner in each pipeline to that in each other one, where these are
    not the same; empty: they are `exchange_bytes`."""
    rebuild_s: tuple[float, ...] = ()
    """What a shadow of the stage computes for its gradient, beside the optimizer's step."""
    peers_s: tuple[float, ...] = ()
    """Time of the exchange with pipelines that are not simulated, which a node does one after the
    other; 0: all pipelines are simulated."""
    far: Far | None = None
    """Links between zones; None: they are the same as all others."""

    @classmethod
    def of(
        cls,
        stages: int,
        *,
        forward_s: Sequence[float],
        backward_s: Sequence[float],
        exchange_s: Sequence[float] = (),
        step_s: Sequence[float] = (),
        latency_s: float = 0.0,
        bytes_per_s: float = 0.0,
        boundary_bytes: Sequence[float] = (),
        back_bytes: Sequence[float] | None = None,
        gradient_bytes: Sequence[float] = (),
        exchange_bytes: Sequence[float] = (),
        links_bytes: tuple[tuple[tuple[float, ...], ...], ...] = (),
        rebuild_s: Sequence[float] = (),
        peers_s: Sequence[float] = (),
        far: Far | None = None,
    ) -> "Costs":
        """Costs with one figure per stage; a single figure applies to all stages. `back_bytes`
        None: the gradients of an output have its size.

        Raises InputError when a list has another length, or a figure is negative or not finite.
        """
        return cls(
            forward_s=per_stage("forward_s", forward_s, stages),
            backward_s=per_stage("backward_s", backward_s, stages),
            exchange_s=per_stage("exchange_s", exchange_s, stages),
            step_s=per_stage("step_s", step_s, stages),
            latency_s=per_stage("latency_s", (latency_s,), 1)[0],
            bytes_per_s=per_stage("bytes_per_s", (bytes_per_s,), 1)[0],
            boundary_bytes=per_stage("boundary_bytes", boundary_bytes, stages),
            back_bytes=per_stage(
                "back_bytes", boundary_bytes if back_bytes is None else back_bytes, stages
            ),
            gradient_bytes=per_stage("gradient_bytes", gradient_bytes, stages),
            exchange_bytes=per_stage("exchange_bytes", exchange_bytes, stages),
            links_bytes=links_bytes,
            rebuild_s=per_stage("rebuild_s", rebuild_s, stages),
            peers_s=per_stage("peers_s", peers_s, stages),
            far=far,
        )


def exchanged_bytes(costs: Costs, stage: int, source: int, to: int) -> float:
    """Bytes of a step from a stage's owner in one pipeline to that in another one."""
    if costs.links_bytes:
        return costs.links_bytes[stage][source][to]
    return at_stage(costs.exchange_bytes, stage)


def per_stage(name: str, figures: Sequence[float], stages: int) -> tuple[float, ...]:
    """One figure per stage: no figure means zeros, a single one applies to all stages.

    Raises InputError on another count and on figures that are negative or not finite.
    """
    if len(figures) not in (0, 1, stages):
        raise InputError(
            f"{name} has {len(figures)} figures for {stages} stages; give one for all, or {stages}"
        )
    for figure in figures:
        if not math.isfinite(figure) or figure < 0:
            raise InputError(f"{name} has the figure {figure}; give finite figures of at least 0")
    if len(figures) == stages:
        return tuple(map(float, figures))
    return (float(figures[0]) if figures else 0.0,) * stages


def at_stage(figures: Sequence[float], stage: int) -> float:
    """The figure of one stage; zero if there are none."""
    return figures[stage] if figures else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Owners and shadows of the grid, each stage's program, and the redundancy mode."""

    assignment: Assignment
    programs: tuple[tuple[Program, ...], ...]
    """For each pipeline, the program of each stage."""
    mode: str
    """One mode for all stages, or one for each (`strategy.modes_of`)."""

    def __post_init__(self) -> None:
        stage_modes(self.mode, self.assignment.grid.stages)  # raises for an unknown mode
        grid = self.assignment.grid
        if len(self.programs) != grid.pipelines or any(
            [program.stage for program in row] != list(range(grid.stages)) for row in self.programs
        ):
            raise ValueError(f"a layout needs one program for each slot of {grid}")
        for row in self.programs:
            counts = [program.microbatches for program in row]
            if len(set(counts)) != 1:
                raise ValueError(
                    f"the stages of one pipeline must run the same microbatches, not {counts}"
                )

    @property
    def modes(self) -> tuple[str, ...]:
        """The mode of each stage."""
        return stage_modes(self.mode, self.assignment.grid.stages)

    def program(self, slot: Slot) -> Program:
        return self.programs[slot.pipeline][slot.stage]


def layout_of(grid: Grid, *, microbatches: Sequence[int], mode: str) -> Layout:
    """The layout at the start: one node per slot, shadowed by its predecessor.

    `microbatches` is per pipeline, or one figure for all. Nodes are named like their slot (`0.2`).
    Raises ValueError when the counts do not match the grid or the mode is unknown.
    """
    counts = tuple(microbatches)
    if len(counts) == 1:
        counts *= grid.pipelines
    if len(counts) != grid.pipelines:
        raise ValueError(f"{len(counts)} microbatch counts for {grid.pipelines} pipelines")
    replica = has_replica(mode)
    slots = grid.slots()
    return Layout(
        assignment=Assignment(
            grid=grid,
            owners=tuple(NodeId(str(slot)) for slot in slots),
            shadows=tuple(NodeId(str(grid.protector(slot))) if replica else None for slot in slots),
        ),
        programs=tuple(one_f_one_b(grid.stages, count) for count in counts),
        mode=mode,
    )


def merged(layout: Layout, victim: NodeId) -> Layout:
    """The layout after `victim` was lost: its slots go to their shadows (merged nodes), and slots
    that it shadowed have no shadow. Raises ValueError if one of its slots has no live copy."""
    before = layout.assignment
    owned = before.owned_by(victim)
    owners: dict[Slot, NodeId] = {}
    for slot in owned:
        shadow = before.shadow(slot)
        if shadow is None or shadow == victim:
            raise ValueError(f"slot {slot} of {victim} has no live copy")
        owners[slot] = shadow
    shadows: dict[Slot, NodeId | None] = dict.fromkeys((*owned, *before.shadowed_by(victim)))
    return Layout(
        assignment=before.replace(owners=owners, shadows=shadows),
        programs=layout.programs,
        mode=layout.mode,
    )
