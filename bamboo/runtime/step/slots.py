"""Builds the run of any slot: its exchange plan, and its stage with fresh or given state."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from bamboo.config.resolve import batch_shape
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import Dataset
from bamboo.models import ModelSpec, build_shell, named_parameters
from bamboo.runtime.device.devices import Device, device_of
from bamboo.runtime.device.staging import HOST, DataOnDevice
from bamboo.runtime.step.exchange import ExchangePlan, Tie
from bamboo.runtime.step.optimizer import AdamW, Moments
from bamboo.runtime.step.slot_run import KINDS, SlotRun
from bamboo.runtime.step.stage import Stage
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import Strategy
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
        spec: ModelSpec,
        dataset: Dataset,
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
        self.spec = spec
        self.dataset = dataset
        self.optimizer = AdamW(job.train, job.segments)
        self.batch = batch_shape(job)
        self.tokens = job.train.batch * job.model.context
        """Tokens in a whole step."""
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
        return SlotBuilder(
            job=self.job,
            strategy=replace(self.strategy, placement=placement),
            spec=self.spec,
            dataset=self.dataset,
            shares=shares,
            initial=self._initial,
            device=self.device,
        )

    def room_for(self, layers: Iterable[int]) -> dict[str, Tensor]:
        """Memory for these layers' parameters and moments, by name, in the order in which they are
        sent. It is not initialised. Moments lie on the host where a replica keeps them there."""
        built = self._named(layers)
        parameters = self.device.place
        moments = HOST if self.job.cluster.moments_on_host else parameters
        return {
            f"{kind}/{name}": torch.empty(p.shape, device=place)
            for kind, place in zip(KINDS, (parameters, moments, moments), strict=True)
            for name, p in built
        }

    def parameter_bytes(self, layers: Iterable[int]) -> int:
        """Bytes of these layers' parameters. A plain model needs no memory to find out."""
        return sum(p.nbytes for _, p in self._named(layers))

    def _named(self, layers: Iterable[int]) -> Sequence[tuple[str, Tensor]]:
        """The parameters by name; those of a plain model have a shape and no memory."""
        seed = self.strategy.semantics.seed
        return named_parameters((layer, build_shell(self.spec, layer, seed)) for layer in layers)

    def build(
        self, slot: Slot, *, owner: bool, held: Mapping[str, Tensor] | None = None, step: int = 0
    ) -> SlotRun:
        """A run of `slot` with its initial parameters and zero moments, or with the parameters and
        moments `held`, by name, as they are before `step`: these are taken, not copied. Raises
        ValueError when one of them has another shape."""
        values: Mapping[str, Tensor] | None = None if held is None else of_kind(held, KINDS[0])
        if held is None and self._initial is not None:
            values = self._initial(self.strategy.placement.layers_of(slot.stage))
        stage = Stage(
            self.spec,
            DataOnDevice(self.dataset, self.device.put),
            self.strategy,
            stage=slot.stage,
            tokens=self.tokens,
            values=values,
            place=self.device.place,
            recompute=self.job.cluster.recomputes,
        )
        grid = self.strategy.placement.grid
        plan = ExchangePlan(
            slot=slot,
            grid=grid,
            leaves=self.batch.virtual_nodes,
            blocks=blocks_of(self.shares),
            shapes=tuple(p.shape for p in stage.params),
            names=tuple(stage.names),
            counts_in_norm=tuple(stage.counts_in_norm),
            ties=self._ties(),
        )
        on_host = self.job.cluster.moments_on_host
        if held is None:
            moments = self.optimizer.new_state(stage.params, on_host=on_host and not owner)
        else:
            first, second = (of_kind(held, kind) for kind in KINDS[1:])
            moments = Moments(
                exp_avg=[first[name] for name in stage.names],
                exp_avg_sq=[second[name] for name in stage.names],
                on_host=on_host,
            )
        return SlotRun(
            plan=plan,
            batch=self.batch,
            stage=stage,
            moments=moments,
            owner=owner,
            replica_on_host=on_host,
            step=step,
        )

    def _ties(self) -> tuple[Tie, ...]:
        """The tied parameters, each with all its uses in layer order."""
        uses: dict[tuple[int, str], set[tuple[int, str]]] = {}
        for tie in self.spec.tied:
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


def of_kind(held: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """The tensors of one kind, by the name of their parameter."""
    prefix = f"{kind}/"
    return {n.removeprefix(prefix): x for n, x in held.items() if n.startswith(prefix)}
