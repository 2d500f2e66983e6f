"""The plans that a job could have and that fit: grid, redundancy, microbatch, cut, bytes.

Rule: every candidate keeps the job's batch and its virtual nodes, so each sample is used in the
same place. All candidates with the job's own microbatch size give the same bits as the job. The
order of sums within a virtual node follows the microbatches, so another size is another run, and
the candidate says so. A cut is the job's own or the one balanced by time; if its bytes do not fit,
it is the best cut that does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log

from bamboo.errors import InputError
from bamboo.planner.layers.bounded import (
    MOST_BYTES,
    Bounds,
    FitsNowhere,
    bounded_cut,
    bounded_partition,
)
from bamboo.planner.layers.memory import StageBytes, memory_report
from bamboo.planner.profiles.workload import (
    NO_SAVING,
    Saving,
    WorkloadFigures,
    saved,
    with_microbatch,
)
from bamboo.planner.step.step_floor import StepFloor
from bamboo.quantities import size
from bamboo.schedule.redundancy import has_replica
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import (
    AUTO,
    DEVICE,
    HOST,
    LAYER,
    OFF,
    REDUNDANCY_MODES,
    can_have,
    how_redundant,
    on_stages,
)

SAVING_KEYS = ("recompute", "replica_moments")
"""Keys of `cluster` that say what may save memory."""
RECOMPUTE = {OFF: (False,), LAYER: (True,), AUTO: (False, True)}
"""By `cluster.recompute`: whether a plan's layers may be computed again."""
HOST_MOMENTS = {DEVICE: (False,), HOST: (True,), AUTO: (False, True)}
"""By `cluster.replica_moments`: whether the moments of replicas may lie on the host."""
NEAREST = 3
MOST_FORWARDS = 20_000
"""Forwards of one pipeline in a step, each of which a dry run simulates: a microbatch size that
needs more is left out, unless it is the job's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One plan that fits, before its value is known."""

    grid: Grid
    mode: str
    microbatch: int
    """Samples."""
    cut: tuple[int, ...]
    memory: tuple[StageBytes, ...]
    same_bits: bool
    """Whether it gives the same bits as the job as written."""
    saving: Saving = NO_SAVING

    @property
    def name(self) -> str:
        """`2 x 4 stash, microbatches of 8, recompute layer`."""
        return f"{self.grid.pipelines} x {self.grid.stages} {self.mode}, " + ", ".join(
            (f"microbatches of {self.microbatch}", *saving_words(self.saving))
        )

    @property
    def most_bytes(self) -> int:
        """Bytes of its fullest node."""
        return max(stage.total for stage in self.memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The limits and alternatives of a choice."""

    memory_bytes: int
    """Memory of one node."""
    nodes: range
    """How many nodes a grid may have."""
    grids: tuple[Grid, ...] = ()
    """Empty: every grid with a number of nodes in `nodes`."""
    modes: tuple[str, ...] = REDUNDANCY_MODES
    microbatches: tuple[int, ...] = ()
    """Samples; empty: every size that keeps the batch and the virtual nodes."""
    savings: tuple[Saving, ...] = ()
    """See `savings_of`; empty: as the workload has it."""
    cut: tuple[int, ...] = ()
    """The first layer of each stage, where the job says it; empty: any cut."""
    host_bytes: int = MOST_BYTES
    """Memory of a node's host, for what lies there beside a GPU."""
    operation_s: float = 0.0
    """Least time of a forward or backward of a layer, however few samples it has. It makes small
    microbatches slow; with 0 they only have smaller bubbles."""


class JobFitsNowhere(FitsNowhere):
    """The job as written does not fit; `nearest` are plans that do, nearest first."""

    def __init__(
        self,
        cause: FitsNowhere,
        nearest: Sequence[Choice],
        elsewhere: Sequence[tuple[str, Choice]] = (),
    ) -> None:
        """`elsewhere`: plans that fit another instance type, with its name."""
        named = [("", one) for one in nearest] + [(f" on {kind}", one) for kind, one in elsewhere]
        names = "; ".join(f"{x.name}{on} ({size(x.most_bytes, digits=2)})" for on, x in named)
        hint = f"nearest plans that fit: {names}" if names else "no plan in reach fits either"
        super().__init__(
            f"{cause}; {hint}",
            layer=cause.layer,
            needs_bytes=cause.needs_bytes,
            limit_bytes=cause.limit_bytes,
        )
        self.cause = cause
        self.nearest = tuple(nearest)


def savings_of(recompute: str, replica_moments: str) -> tuple[Saving, ...]:
    """What plans may do to save memory, by these keys of `cluster`: the first that fits is taken.
    Copies of moments come before computing again, because they take less time."""
    return tuple(
        Saving(recompute=again, host_moments=on_host)
        for again in RECOMPUTE[recompute]
        for on_host in HOST_MOMENTS[replica_moments]
    )


def keys_of(savings: Sequence[Saving]) -> dict[str, str]:
    """The values of SAVING_KEYS for which `savings_of` gives these."""
    able = ({one.recompute for one in savings}, {one.host_moments for one in savings})
    return {
        key: next(value for value, found in values.items() if set(found) == may)
        for key, values, may in zip(SAVING_KEYS, (RECOMPUTE, HOST_MOMENTS), able, strict=True)
    }


def saving_words(saving: Saving) -> list[str]:
    """`recompute layer`, `replica_moments host`: the keys that are set."""
    again = [f"recompute {LAYER}"] if saving.recompute else []
    return again + ([f"replica_moments {HOST}"] if saving.host_moments else [])


def microbatches_of(workload: WorkloadFigures) -> tuple[int, ...]:
    """All sizes that keep the batch and the virtual nodes, largest first: the divisors of the
    samples of a virtual node."""
    samples = workload.batch // workload.shape.virtual_nodes
    return tuple(each for each in range(samples, 0, -1) if samples % each == 0)


def grids_of(workload: WorkloadFigures, nodes: range) -> tuple[Grid, ...]:
    """Every D x P with this number of nodes: at most as many stages as layers and at most as many
    pipelines as virtual nodes."""
    most = max(nodes, default=0)
    return tuple(
        Grid(pipelines=pipelines, stages=stages)
        for stages in range(1, min(len(workload.layers), most) + 1)
        for pipelines in range(1, min(workload.shape.virtual_nodes, most // stages) + 1)
        if pipelines * stages in nodes
    )


class Candidates:
    """All plans of one workload, which is the job as written, that fit the limits of a room."""

    def __init__(self, workload: WorkloadFigures, room: Room) -> None:
        self.room = room
        self._savings = room.savings or (workload.saving,)
        self._job = saved(workload, NO_SAVING)
        self._works = {(workload.microbatch, NO_SAVING): self._job}
        self._cuts: dict[int, tuple[int, ...]] = {}

    def work(self, microbatch: int, saving: Saving = NO_SAVING) -> WorkloadFigures:
        """The workload in microbatches of that size."""
        key = (microbatch, saving)
        if key not in self._works:
            if saving != NO_SAVING:
                made = saved(self.work(microbatch), saving)
            else:
                made = with_microbatch(self._job, microbatch, operation_s=self.room.operation_s)
            self._works[key] = made
        return self._works[key]

    def grids(self) -> tuple[Grid, ...]:
        """The grids of the room that the job can have."""
        possible = grids_of(self._job, self.room.nodes)
        return tuple(one for one in possible if not self.room.grids or one in self.room.grids)

    def all(self) -> Iterator[Choice]:
        """Every plan of the room that fits. `peer` needs a second pipeline: with one pipeline it is
        the same as `off`. Replicas need a second stage."""
        sizes = self.room.microbatches or microbatches_of(self._job)
        own = self._job.microbatch
        for grid in self.grids():
            forwards = -(-self._job.batch // grid.pipelines) * grid.stages
            possible = [x for x in sizes if x == own or forwards / x <= MOST_FORWARDS]
            for mode in self.room.modes:
                if not can_have(mode, grid):
                    continue
                for microbatch in possible:
                    found = self.choice(grid, mode, microbatch)
                    if found is not None:
                        yield found

    def choice(self, grid: Grid, mode: str, microbatch: int) -> Choice | None:
        """The plan with the best cut that fits; None if no cut does. Modes by stage for another
        number of stages become one mode, see `on_stages`. Where the room leaves it open, memory is
        saved only if no cut fits without, or not the job's own."""
        mode = on_stages(mode, grid.stages)
        named = len(self.room.cut) == grid.stages
        found: list[Choice] = []
        for saving in self._able(mode):
            one = self._choice(grid, mode, self.work(microbatch, saving))
            found += [one] if one is not None else []
            if one is not None and (not named or one.cut[:-1] == self.room.cut):
                return one
        return found[0] if found else None

    def _able(self, mode: str) -> Sequence[Saving]:
        """The savings of the room that save anything: moments of replicas where there are some, and
        another memory for them."""
        if has_replica(mode) and self._job.host_bytes_per_s:
            return self._savings
        return tuple(dict.fromkeys(replace(one, host_moments=False) for one in self._savings))

    def _choice(self, grid: Grid, mode: str, work: WorkloadFigures) -> Choice | None:
        if grid.stages not in self._cuts:
            self._cuts[grid.stages] = self._job.cut(grid.stages)
        cut: tuple[int, ...] | None = self._cuts[grid.stages]
        memory = self._memory(work, grid, mode, self._cuts[grid.stages])
        if max(stage.total for stage in memory) > self.room.memory_bytes:
            cut = bounded_cut(work.layers, work.both_s, self._bounds(work, grid, mode))
            if cut is None:
                return None
            memory = self._memory(work, grid, mode, cut)
        if max(stage.host for stage in memory) > self.room.host_bytes:
            return None
        return Choice(
            grid=grid,
            mode=mode,
            microbatch=work.microbatch,
            cut=cut or (),
            memory=memory,
            same_bits=work.microbatch == self._job.microbatch,
            saving=work.saving,
        )

    def asked(self, grid: Grid, mode: str) -> Choice:
        """The job as written, with the best cut that fits.

        Raises JobFitsNowhere, with the layer, the bytes and at most three plans that fit and
        change different things: those in which the fewest of redundancy, microbatch, saving, stages
        and pipelines differ; then those with the nearest number of nodes, redundancy, microbatch
        and stages.
        """
        found = self.choice(grid, mode, self._job.microbatch)
        if found is not None:
            return found
        raise JobFitsNowhere(
            self._cause(self._job.microbatch, grid, mode), self.nearest(grid, mode)
        )

    def _cause(self, microbatch: int, grid: Grid, mode: str) -> FitsNowhere:
        """Why no cut fits, whatever saves memory: the device's memory, or else the host's."""
        able = self._able(mode)
        work = self.work(microbatch, able[-1])
        try:
            cut = bounded_partition(work.layers, work.both_s, self._bounds(work, grid, mode))
        except FitsNowhere as cause:
            return cause
        full = max(self._memory(work, grid, mode, cut), key=lambda stage: stage.host)
        return FitsNowhere(
            f"stage {full.stage} does not fit: beside its GPU the node keeps {full.host:,} bytes "
            f"({size(full.host, digits=2)}) in the host's memory with redundancy {mode!r}, which "
            "are messages of two steps and what moments of the replica lie there, and that has "
            f"{self.room.host_bytes:,} ({size(self.room.host_bytes, digits=2)}) for tensors; "
            "take more stages, less redundancy, replica_moments device or more host memory",
            layer=cut[full.stage],
            needs_bytes=full.host,
            limit_bytes=self.room.host_bytes,
        )

    def nearest(self, grid: Grid, mode: str) -> list[Choice]:
        """At most NEAREST plans that fit, nearest first, whatever they do to save memory. Each
        changes something else: of those that change the same, such as the stages alone, the nearest
        stands for all."""
        able = Candidates(self._job, replace(self.room, savings=savings_of(AUTO, AUTO)))
        found: dict[tuple[bool, ...], Choice] = {}
        for one in sorted(able.all(), key=lambda one: self._distance(one, grid, mode)):
            found.setdefault(self._changed(one, grid, mode), one)
        return list(found.values())[:NEAREST]

    def nothing(self) -> FitsNowhere:
        """Why no plan of the room fits: the reason for the one with the most stages, the least
        redundancy and the smallest microbatches.

        Raises InputError when the room has no plan at all.
        """
        mode = min(self.room.modes, key=how_redundant)
        grids = [grid for grid in self.grids() if can_have(mode, grid)]
        if not grids:
            fewest, most = self.room.nodes.start, self.room.nodes.stop - 1
            layers, virtual_nodes = len(self._job.layers), self._job.shape.virtual_nodes
            remedy = "allow for another number"
            if most < (1 if mode == "off" else 2):
                remedy = "allow for more nodes"
            elif fewest > layers * virtual_nodes:
                remedy = f"take {layers * virtual_nodes} nodes at most"
            nodes = f"{most}" if fewest == most else f"{fewest} to {most}"
            raise InputError(
                f"{layers} layers and {virtual_nodes} virtual nodes have no grid "
                f"of {nodes} nodes with redundancy {mode!r}; a stage has at least a layer, 'peer' "
                f"needs two pipelines, and a replica two stages: {remedy}"
            )
        grid = max(grids, key=lambda one: (one.stages, one.pipelines))
        least = min(self.room.microbatches or microbatches_of(self._job))
        return JobFitsNowhere(self._cause(least, grid, mode), ())

    def _bounds(self, work: WorkloadFigures, grid: Grid, mode: str) -> Bounds:
        limit = self.room.memory_bytes
        return Bounds(grid=grid, shape=work.shape, mode=mode, limit_bytes=limit)

    @staticmethod
    def _memory(
        work: WorkloadFigures, grid: Grid, mode: str, cut: Sequence[int]
    ) -> tuple[StageBytes, ...]:
        held = StepFloor(replace(work, cuts={grid.stages: tuple(cut)}), mode).held_factors(grid)
        return memory_report(
            work.layers, cut=cut, grid=grid, shape=work.shape, mode=mode, factors=held
        )

    def _changed(self, one: Choice, grid: Grid, mode: str) -> tuple[bool, ...]:
        return (
            one.mode != mode,
            not one.same_bits,
            one.saving not in self._able(one.mode),
            one.grid.stages != grid.stages,
            one.grid.pipelines != grid.pipelines,
        )

    def _distance(self, one: Choice, grid: Grid, mode: str) -> tuple[float, ...]:
        return (
            sum(self._changed(one, grid, mode)),
            abs(one.grid.size - grid.size),
            abs(how_redundant(one.mode) - how_redundant(mode)),
            abs(log(one.microbatch / self._job.microbatch)),
            abs(one.grid.stages - grid.stages),
            one.grid.stages,
            one.microbatch,
        )
