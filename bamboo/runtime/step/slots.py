"""Builds the run of any slot: its exchange plan, and its stage with fresh or given state."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from torch import Tensor

from bamboo.config.resolve import batch_shape, eval_total
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import Dataset
from bamboo.data.evaluation import EvalData
from bamboo.models import Workload, build_shell
from bamboo.runtime.device.devices import Device, device_of
from bamboo.runtime.device.staging import DataOnDevice, EvalOnDevice
from bamboo.runtime.optim.optimizer import optimizer_of
from bamboo.runtime.optim.state import Layout, layout_of, values_in
from bamboo.runtime.step.evaluation import EvalPlan, Evaluation
from bamboo.runtime.step.exchange_plan import ExchangePlan, SyncSchedule, Tie
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.step.stage import Stage
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import Strategy
from bamboo.topology.sync import entry_of
from bamboo.topology.virtual_nodes import blocks_of

Initial: TypeAlias = Callable[[Iterable[int]], Mapping[str, Tensor]]
"""Layers -> their parameters at step 0, by global name, as tensors that the caller may keep."""


class SlotBuilder:
    """Has all that a node needs to build any slot at step 0; it is the same on every node."""

    def __init__(
        self,
        *,
        job: JobConfig,
        strategy: Strategy,
        workload: Workload,
        dataset: Dataset,
        evaluated: EvalData | None = None,
        shares: tuple[int, ...] = (),
        initial: Initial | None = None,
        device: Device | None = None,
    ) -> None:
        """`initial` gives the parameters that the run begins with; None: the layers draw them.
        `device`: None: the one that the job names."""
        self._initial = initial
        self.device = device or device_of(job.cluster, strategy.placement.cut)
        self.job = job
        self.strategy = strategy
        self.schedule = SyncSchedule(strategy.placement.sync)
        """How the steps are synchronised; the node puts its own in its place."""
        self.workload = workload
        self.dataset = dataset
        self.evaluated = evaluated
        self.optimizer = optimizer_of(job.train, workload, job.segments)
        self.batch = batch_shape(job)
        grid = strategy.placement.grid
        self.shares = shares or equal_shares(self.batch.virtual_nodes, grid.pipelines)

    def laid_out(self, grid: Grid, cut: tuple[int, ...], shares: tuple[int, ...]) -> "SlotBuilder":
        """The builder of another layout, or this one when nothing differs. An empty `cut` means the
        present cut, empty `shares` mean equal ones."""
        held = self.strategy.placement
        cut = cut or held.cut
        shares = shares or equal_shares(self.batch.virtual_nodes, grid.pipelines)
        if (held.grid, held.cut, self.shares) == (grid, cut, shares):
            return self
        placement = replace(held, cut=cut, grid=grid)
        built = SlotBuilder(
            job=self.job,
            strategy=replace(self.strategy, placement=placement),
            workload=self.workload,
            dataset=self.dataset,
            evaluated=self.evaluated,
            shares=shares,
            initial=self._initial,
            device=self.device,
        )
        built.schedule = self.schedule
        return built

    @property
    def replica_on_host(self) -> bool:
        """Whether what the optimizer keeps of a replica lies in the host's memory."""
        return self.job.cluster.moments_on_host

    def layout_of(self, layers: Iterable[int]) -> Layout:
        """The state of these layers. A plain model needs no memory to find out."""
        seed = self.strategy.semantics.seed
        built = ((layer, build_shell(self.workload, layer, seed)) for layer in layers)
        return layout_of(built, self.optimizer.state)

    def room_for(self, layers: Iterable[int]) -> dict[str, Tensor]:
        """Memory for these layers' state, by name, in the order in which it is sent. It is not
        initialised. The optimizer's part lies on the host where a replica keeps it there."""
        return self.layout_of(layers).room(self.device.place, on_host=self.replica_on_host)

    def build(
        self, slot: Slot, *, owner: bool, held: Mapping[str, Tensor] | None = None, step: int = 0
    ) -> SlotRun:
        """A run of `slot` in its initial state, or in the state `held`, by name, as it is before
        `step`: its tensors are taken, not copied. Raises ValueError when one has another shape."""
        values: Mapping[str, Tensor] | None = None if held is None else values_in(held)
        if held is None and self._initial is not None:
            values = self._initial(self.strategy.placement.layers_of(slot.stage))
        stage = Stage(
            self.workload,
            DataOnDevice(self.dataset, self.device.put),
            self.strategy,
            stage=slot.stage,
            values=values,
            place=self.device.place,
            recompute=self.job.cluster.recomputes,
        )
        norms, sync = stage.untrained.norms, self.schedule.at(step)
        plan = ExchangePlan(
            slot=slot,
            grid=self.strategy.placement.grid,
            leaves=self.batch.virtual_nodes,
            blocks=blocks_of(self.shares),
            shapes=(*(p.shape for p in stage.params), *norms.shapes),
            names=(*stage.names, *norms.names),
            counts_in_norm=(*stage.counts_in_norm, *(False for _ in norms.names)),
            ties=tuple(t for t in self._ties() if not t.names & stage.untrained.constant),
            entries=tuple(entry_of(sync, name) for name in stage.names),
            zones=sync.zones,
        )
        on_host = self.replica_on_host
        if held is None:
            params = dict(zip(stage.names, stage.params, strict=True))
            kept = self.optimizer.new_state(params, on_host=on_host and not owner)
        else:
            layout = layout_of(stage.layers, self.optimizer.state)
            kept = layout.optimizer_state(held, on_host=on_host)
        run = SlotRun(
            plan=plan,
            batch=self.batch,
            stage=stage,
            kept=kept,
            owner=owner,
            evaluation=self._evaluation(slot),
            replica_on_host=on_host,
            step=step,
        )
        for from_step, later in self.schedule.after(step):
            run.change_plan(from_step, plan.by(later))
        return run

    def _evaluation(self, slot: Slot) -> Evaluation | None:
        if self.evaluated is None:
            return None
        plan = EvalPlan(
            every_steps=self.job.eval.every_steps,
            total=eval_total(self.job),
            data=EvalOnDevice(self.evaluated, self.device.put),
        )
        block = blocks_of(self.shares)[slot.pipeline]
        grid, virtual_nodes = self.strategy.placement.grid, self.batch.virtual_nodes
        return Evaluation(plan, slot, grid, block=block, virtual_nodes=virtual_nodes)

    def _ties(self) -> tuple[Tie, ...]:
        """The tied parameters, each with all its uses in layer order."""
        uses: dict[tuple[int, str], set[tuple[int, str]]] = {}
        for tie in self.workload.tied:
            owner = (tie.owner_layer, tie.owner_name)
            uses.setdefault(owner, {owner}).add((tie.user_layer, tie.user_name))
        return tuple(
            Tie(
                number=number,
                uses=tuple(sorted(found)),
                stages=tuple(self._stage_of(layer) for layer, _ in sorted(found)),
            )
            for number, (_, found) in enumerate(sorted(uses.items()))
        )

    def _stage_of(self, layer: int) -> int:
        placement = self.strategy.placement
        stages = range(placement.grid.stages)
        return next(p for p in stages if layer in placement.layers_of(p))
