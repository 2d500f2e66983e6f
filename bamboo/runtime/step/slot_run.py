"""The state of one slot's stage on this node, as its owner or as its shadow.

Rule: owner and shadow are the same thing in two roles. A shadow's run holds the replica and what it
has computed ahead. Promoting it changes its role and nothing else: it walks the same program from
the start of its step, and results that are computed already are only sent.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from bamboo.checkpoint.manifest import layer_of
from bamboo.models import Gradients, Tensors, as_leaves, named_parameters
from bamboo.runtime.optim.state import OptimizerState, named_state
from bamboo.runtime.step.bucket_sums import BucketSum
from bamboo.runtime.step.evaluation import Evaluation, settled
from bamboo.runtime.step.exchange import Exchange, Stand
from bamboo.runtime.step.exchange_plan import ExchangePlan
from bamboo.runtime.step.losses import Losses
from bamboo.runtime.step.stage import Pending, Stage
from bamboo.schedule.instruction import Instruction
from bamboo.schedule.one_f_one_b import one_f_one_b
from bamboo.topology.slots import Slot
from bamboo.topology.virtual_nodes import BatchShape


@dataclass(slots=True, kw_only=True)
class Recovery:
    """A failover as its successor sees it; times are by the host's monotonic clock."""

    victim: str
    planned: bool
    seen_s: float
    """When this node saw the victim's connection end, or read the decision."""
    decided_s: float
    promoted_s: float
    version: int
    """The step at which the replica stood when it was promoted."""
    first_operation_s: float = 0.0
    hit_step: int = 0
    already_computed: int = 0
    recomputed: int = 0


@dataclass(slots=True, kw_only=True)
class Reduced:
    """The results of a step that was taken, for slots of other owners that may still lack them."""

    total_square: float
    losses: Losses
    gradient: list[Tensor] = field(default_factory=list)
    """Kept only where another pipeline may ask for it (D > 1)."""
    tied: dict[int, Tensor] = field(default_factory=dict)
    """The sum of all uses of each tied parameter of this stage, by the tie's number."""


class SlotRun:
    """One slot and its state. `step` is the step that it is in, which is also the number of steps
    that its parameters have taken."""

    def __init__(
        self,
        *,
        plan: ExchangePlan,
        batch: BatchShape,
        stage: Stage,
        kept: OptimizerState,
        owner: bool,
        evaluation: Evaluation | None = None,
        replica_on_host: bool = False,
        step: int = 0,
    ) -> None:
        self.slot: Slot = plan.slot
        self._plans = {step: plan}
        """By the first step that each is for."""
        self.plan = plan
        """That of the present step."""
        self.stage = stage
        self.kept = kept
        """What the optimizer keeps of its parameters."""
        self.owner = owner
        self.replica_on_host = replica_on_host
        """Whether `kept` lies on the host while this is a replica."""
        self.beside = False
        """Whether its node owned another slot when it took this one over. `kept` then stays where
        it is: the plan has no room on the device for that of two slots."""
        self.batch = batch
        self.microbatches: Sequence[int] = batch.microbatches_of(plan.blocks[self.slot.pipeline])
        """Global index by local index."""
        stage_number = self.slot.stage
        program = one_f_one_b(plan.grid.stages, len(self.microbatches))[stage_number]
        self.program: tuple[Instruction, ...] = (
            *program.instructions,
            Instruction(stage=stage_number, kind="X"),
            Instruction(stage=stage_number, kind="S"),
        )
        count = range(len(self.microbatches))
        self.ahead_forward = [
            Instruction(stage=stage_number, kind="FR", microbatch=m) for m in count
        ]
        self.ahead_backward = [
            Instruction(stage=stage_number, kind="BR", microbatch=m) for m in count
        ]
        self.replica_step = Instruction(stage=stage_number, kind="R")
        self.evaluation = evaluation
        self.recovery: Recovery | None = None
        self.joining = False
        """Whether it is a replica that follows its owner and is not its shadow yet."""
        self.history: dict[int, Reduced] = {}
        self.graph_bytes = 0
        """Bytes that a microbatch keeps between forward and backward, measured on the first."""
        self._measured = False
        self.peak_graphs = 0
        self.step = step - 1
        self.next_step()

    def next_step(self) -> None:
        """Enter the next step: the parameters have just been stepped, or are new."""
        self.step += 1
        self._exchange_by_plan()
        self.cursor = 0
        self.pending: dict[int, Pending] = {}
        self.backed: dict[int, Gradients] = {}
        """Input gradients of the redundant backwards that the shadow has run."""
        if self.evaluation is not None:
            self.evaluation.begin()
        self.entered_s = time.monotonic()
        self.shipped = False
        """Whether the gradient of this step went to the shadow before the step is taken."""
        self._losses: dict[int, Tensor] = {}
        self._metrics: dict[int, Mapping[str, Tensor]] = {}

    def change_plan(self, from_step: int, plan: ExchangePlan) -> None:
        """Exchange by this plan from a step on of which nothing is computed here yet. A replica
        whose state was copied beyond that step may read the decision later than its owner."""
        built_at = min(self._plans)
        self._plans = {s: held for s, held in self._plans.items() if s < from_step}
        self._plans[from_step] = plan
        if from_step <= self.step:
            begun = self.cursor or self.pending or max(from_step, built_at) < self.step
            assert not begun, f"step {self.step} has begun, and a plan is from {from_step} on"
            self._exchange_by_plan()

    def _exchange_by_plan(self) -> None:
        plan = self._plan_of(self.step)
        if plan is not self.plan or self.step == min(self._plans):
            self.stage.factors.record([plan.names[p] for p in sorted(plan.recorded)])
        self.plan = plan
        self.exchange = Exchange(plan, self.step)

    def _plan_of(self, step: int) -> ExchangePlan:
        return self._plans[max(s for s in self._plans if s <= step)]

    def tensors_of(self, layer: int) -> dict[str, Tensor]:
        """The state of one layer, in the order of `SlotBuilder.room_for`."""
        return {n: tensor for n, tensor in self.tensors().items() if layer_of(n) == layer}

    def settle_losses(self) -> None:
        """Read the losses of this step from the device, once all backwards are issued."""
        self.exchange.losses.take(settled(self._losses, self._metrics).meta())
        self._losses = {}
        self._metrics = {}

    @property
    def head(self) -> Instruction:
        """The operation that the owner runs next."""
        return self.program[self.cursor]

    @property
    def evaluating(self) -> Evaluation:
        """The same as `evaluation`, in a run that evaluates."""
        assert self.evaluation is not None, "asked only where the job evaluates"
        return self.evaluation

    @property
    def recovering(self) -> bool:
        """Whether this slot was promoted and has not caught up yet."""
        return self.recovery is not None

    def forward(self, local: int, x: Tensors) -> Pending:
        """Compute the forward of a local microbatch, unless it was computed already."""
        microbatch = self.microbatches[local]
        cuts = self.plan.cuts if local == len(self.microbatches) - 1 else ()
        if not self._measured:
            self._measured = True
            pending, self.graph_bytes = self.stage.measured_forward(x, self.step, microbatch, cuts)
        else:
            pending = self.stage.forward(x, self.step, microbatch, cuts)
        self.pending[local] = pending
        self.peak_graphs = max(self.peak_graphs, len(self.pending) - len(self.backed))
        return pending

    def backward(self, local: int, gradients: Gradients | None) -> Gradients:
        """Compute the backward of a local microbatch; backwards come in order. A virtual node whose
        last backward this is goes to the exchange."""
        out: Gradients = ()
        for _, run_part in self.backward_parts(local, gradients):
            out = run_part()
        return out

    def backward_parts(
        self, local: int, gradients: Gradients | None
    ) -> Iterator[tuple[range, Callable[[], Gradients]]]:
        """The same in parts, as `Stage.backward_parts`; a bucket goes to the exchange with the part
        that passes its lowest layer."""
        unfilled = list(self.exchange.sums)
        for layers, run_part in self.stage.backward_parts(self.pending[local], gradients):
            last = layers.start == self.stage.layers[0][0]
            passed = [x for x in unfilled if last or x.bucket.lowest >= layers.start]
            unfilled = [x for x in unfilled if x not in passed]
            yield layers, partial(self._back, local, run_part, passed, last)

    def _back(
        self,
        local: int,
        run_part: Callable[[], Gradients],
        passed: Sequence[BucketSum],
        last: bool,
    ) -> Gradients:
        """Run a part, and give the buckets that it has passed the gradients of a virtual node, if
        this microbatch is its last."""
        out = run_part()
        microbatch = self.microbatches[local]
        if (microbatch + 1) % self.batch.microbatches == 0:
            trained = len(self.stage.params)
            statistics = self.stage.untrained.take() if last else ()
            for one in passed:
                places = one.bucket.positions
                gradients = self.stage.take_gradients(p for p in places if p < trained)
                gradients += [statistics[p - trained] for p in places if p >= trained]
                virtual_node = self.batch.virtual_node_of(microbatch)
                self._keep_factors(places, virtual_node)
                one.add_leaf(virtual_node, gradients)
        if last:
            self._end_backward(local)
        return out

    def _keep_factors(self, positions: Sequence[int], virtual_node: int) -> None:
        named = {self.plan.names[p]: p for p in positions if p in self.plan.recorded}
        for name, found in self.stage.factors.take(named).items():
            self.exchange.shared.factors[named[name], virtual_node] = found

    def _end_backward(self, local: int) -> None:
        pending = self.pending[local]
        microbatch = self.microbatches[local]
        if pending.loss is not None:
            self._losses[microbatch] = pending.loss.detach()
        if pending.metrics:
            self._metrics[microbatch] = pending.metrics
        self.pending[local] = Pending(input=(), output=as_leaves(pending.output), loss=None)

    def reduced(self, total_square: float, losses: Losses, keep: bool) -> Reduced:
        """Record the results of this step; `keep`: keep the gradient too."""
        gradient = self.exchange.gradient if keep else []
        tied = self.exchange.tied_totals()
        if not keep:  # a tensor that was received lies in a frame with others, which must not stay
            tied = {number: total.clone() for number, total in tied.items()}
        found = Reduced(total_square=total_square, losses=losses, gradient=gradient, tied=tied)
        self.history[self.step] = found
        return found

    def forget(self, step: int) -> None:
        """Drop the results of steps before `step` and before the run's own step: nobody will ask
        for them."""
        for old in [s for s in self.history if s < min(step, self.step)]:
            del self.history[old]

    def tensors(self) -> dict[str, Tensor]:
        """All of its state, named as in the final files."""
        params = {name: p.detach() for name, p in named_parameters(self.stage.layers)}
        return named_state(params, self.kept.tensors, self.stage.untrained.buffers)

    @property
    def exchanged(self) -> bool:
        """Whether the exchange of this step is done and its squares are sent."""
        return self.exchange.stand is Stand.DONE
