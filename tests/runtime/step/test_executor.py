"""The hot loop: what is ready when, and how it is left."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bamboo.ids import NodeId
from bamboo.models import as_leaves
from bamboo.ports import MessageKey, MessageKind
from bamboo.runtime.device.devices import Cpu
from bamboo.runtime.step.executor import Completed, Executor, Interrupted
from bamboo.runtime.step.operations import Operations
from bamboo.runtime.step.slot_run import Recovery, Reduced, SlotRun
from bamboo.runtime.wire.messages import Mailbox
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from testbed.simulated import SimulatedTransport, Wires, builder_of
from tests.runtime.test_interleavings import job

GRID = Grid(pipelines=1, stages=3)
S0, S1, S2 = GRID.slots()
NODES = (NodeId("a"), NodeId("b"), NodeId("c"))
X = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(1))
WARM_UP = ["0F0", "0F1", "0F2", "0F3"]
"""What the first stage runs before it waits for a gradient."""


class Bench:
    """The executor of one node of three, whose messages the test writes; and its listener."""

    def __init__(self, place: int, mode: str = "stash", **settings: Any) -> None:
        self.job = job(stages=3, redundancy=mode)
        builder = builder_of(self.job)
        self.assignment = Assignment(
            grid=GRID, owners=NODES, shadows=(NODES[2], NODES[0], NODES[1])
        )
        me = NODES[place]
        self.wires = Wires()
        self.transport = SimulatedTransport(self.wires, me)
        self.mailbox = Mailbox(self.transport, me)
        self.mailbox.assign(self.assignment)
        self.transport.reconfigure(generation=1, members={n: n for n in NODES})
        operations = Operations(
            mailbox=self.mailbox,
            device=Cpu(),
            optimizer=builder.optimizer,
            listener=self,
            redundancy=mode,
            clip_norm=1.0,
        )
        self.executor = Executor(
            mailbox=self.mailbox,
            operations=operations,
            listener=self,
            redundancy=mode,
            last_step=2,
            stall_s=settings.get("stall_s", 1e9),
        )
        self.own = builder.build(GRID.slots()[place], owner=True)
        self.shadowed = builder.build(GRID.protected(self.own.slot), owner=False)
        self.executor.owned[self.own.slot] = self.own
        self.executor.shadowed[self.shadowed.slot] = self.shadowed
        self.performed: list[str] = []
        honest = operations.perform

        def perform(run: SlotRun, instruction: Any) -> bool:
            self.performed.append(str(instruction))
            return honest(run, instruction)

        operations.perform = perform  # type: ignore[method-assign]
        self.idled = 0
        self.at_idle: Callable[[], None] = self.leave
        self.leaving = False
        self.executor.ask(attention=lambda: self.leaving)

    def leave(self) -> None:
        self.leaving = True

    def go(self) -> list[str]:
        """Run until nothing is ready; the operations that were run, as text."""
        self.performed.clear()
        self.leaving = False
        self.executor.run()
        return list(self.performed)

    def get(
        self, kind: MessageKind, to: Slot, source: Slot, step: int = 0, index: int = 0, **meta: Any
    ) -> None:
        """A message arrives."""
        key = MessageKey(kind=kind, to=to, source=source, step=step, index=index)
        tensors = [X] if kind in ("act", "grad") else []
        self.mailbox.post_to(self.transport._me, key, tensors, meta)

    # ------------------------------------------------------------------ Listener

    def stepped(self, run: SlotRun, done: Reduced, factor: float) -> None:
        del run, done, factor

    def first_operation(self, run: SlotRun) -> None:
        assert run.recovery is not None
        run.recovery.first_operation_s = 1.0

    def at(self, phase: str, run: SlotRun, microbatch: int) -> None:
        del phase, run, microbatch

    def more_to_ship(self, run: SlotRun) -> bool:
        del run
        return False

    def idle(self) -> None:
        self.idled += 1
        self.at_idle()


# ---------------------------------------------------------------- what is ready


def test_the_first_stage_runs_its_warm_up_from_the_data() -> None:
    bench = Bench(0)
    assert bench.go() == WARM_UP
    assert bench.executor.cursor == "0.0 step 0 at 0B0"
    assert bench.idled == 1


def test_a_later_stage_waits_for_each_input() -> None:
    bench = Bench(1)
    assert bench.go() == []
    bench.get("act", S1, S0, index=1)
    assert bench.go() == [], "microbatch 1 is here, but the order says 0"
    bench.get("act", S1, S0, index=0)
    assert bench.go() == ["1F0", "1F1"]
    bench.get("act", S1, S0, index=2)
    assert bench.go() == ["1F2"]
    bench.get("grad", S1, S2, index=0)
    assert bench.go() == ["1B0"]


def test_the_last_stage_needs_no_gradient() -> None:
    bench = Bench(2)
    for index in range(2):
        bench.get("act", S2, S1, index=index)
    assert bench.go() == ["2F0", "2B0", "2F1", "2B1"]


def test_a_message_of_another_step_is_not_taken() -> None:
    bench = Bench(1)
    bench.get("act", S1, S0, step=1)
    assert bench.go() == []


def test_stash_computes_nothing_ahead() -> None:
    bench = Bench(0, "stash")
    assert not any("FR" in op for op in bench.go())


def test_eager_computes_ahead_what_it_has_sent_itself_and_own_work_first() -> None:
    bench = Bench(0, "eager")
    assert bench.go() == [*WARM_UP, "1FR0", "1FR1", "1FR2", "1FR3"]


def test_the_last_node_computes_stage_0_ahead_from_the_data() -> None:
    bench = Bench(2, "eager")
    assert bench.go() == [f"0FR{m}" for m in range(8)]


def test_of_a_second_replica_nothing_is_computed_ahead() -> None:
    bench = Bench(1, "eager")
    bench.executor.adopt(builder_of(bench.job).build(S0, owner=False))
    assert bench.go() == [], "node c computes stage 0 ahead from the data, when it has its replica"
    bench = Bench(2, "eager")
    bench.executor.adopt(builder_of(bench.job).build(S1, owner=False))
    assert bench.go() == [f"0FR{m}" for m in range(8)]


def test_full_runs_backwards_ahead_as_their_gradients_come() -> None:
    bench = Bench(0, "full")
    bench.go()
    bench.get("grad", S1, S2, index=1)
    assert bench.go() == [], "backwards come in order"
    bench.get("grad", S1, S2, index=0)
    assert bench.go() == ["1BR0", "1BR1"]


def test_gap_computes_ahead_only_what_is_predicted_to_fit() -> None:
    bench = Bench(0, "gap")
    assert bench.go() == WARM_UP
    bench.executor.fill_gaps({4: 2})
    assert bench.go() == ["1FR0", "1FR1"]
    bench.get("grad", S0, S1, index=0)
    assert bench.go() == ["0B0", "0F4"], "the budget was for another wait"


def test_a_shadow_computes_ahead_what_the_mode_of_its_stage_says() -> None:
    assert Bench(0, "full,stash,full").go() == WARM_UP
    assert Bench(0, "stash,eager,stash").go() == [*WARM_UP, "1FR0", "1FR1", "1FR2", "1FR3"]
    bench = Bench(0, "full,gap,full")
    assert bench.go() == WARM_UP
    bench.executor.fill_gaps({4: 1})
    assert bench.go() == ["1FR0"]
    assert Bench(2, "eager,stash,stash").go() == [f"0FR{m}" for m in range(8)]


def test_on_a_grid_of_other_stages_shadows_do_what_the_least_redundant_mode_says() -> None:
    assert Bench(0, "full,eager").go() == [*WARM_UP, "1FR0", "1FR1", "1FR2", "1FR3"]
    assert Bench(0, "full,full,full,stash").go() == WARM_UP


@pytest.mark.parametrize(
    ("redundancy", "also"), [("full,stash,stash", True), ("stash,full,full", False)]
)
def test_a_gradient_also_goes_to_the_shadow_of_a_stage_in_full(redundancy: str, also: bool) -> None:
    """Stage 0, to which stage 1 sends it, is shadowed by the last node."""
    bench = Bench(1, redundancy)
    for index in range(3):
        bench.get("act", S1, S0, index=index)
    bench.get("grad", S1, S2, index=0)
    assert "1B0" in bench.go()
    keys = [message.key for message in bench.wires.queues[NODES[1], NODES[2], False]]
    assert any(key.kind == "grad" and key.to == S0 for key in keys) == also


def test_a_shipped_gradient_is_stepped_whatever_was_computed_ahead() -> None:
    bench = Bench(0, "eager")
    bench.go()
    key = MessageKey(kind="ship", to=S1, source=S1, step=0)
    gradient = [torch.ones_like(p) for p in bench.shadowed.stage.params]
    bench.mailbox.post_to(NODES[0], key, gradient, {"total_square": 4.0, "losses": []})
    before = [p.detach().clone() for p in bench.shadowed.stage.params]
    assert bench.go() == ["1R"]
    assert bench.shadowed.step == 1
    assert not any(
        torch.equal(a, b) for a, b in zip(before, bench.shadowed.stage.params, strict=True)
    )
    assert bench.shadowed.history[0].total_square == 4.0


# ---------------------------------------------------------------- when a step may begin


def finish_step(bench: Bench) -> None:
    """Pretend that the own slot has just taken a step."""
    bench.own.next_step()


def test_nobody_is_more_than_one_step_beyond_what_is_safe() -> None:
    bench = Bench(0)
    finish_step(bench)
    assert bench.go() == WARM_UP, "step 1 may begin while nothing is acknowledged"
    bench = Bench(0)
    finish_step(bench)
    finish_step(bench)
    for slot in (S0, S1):
        bench.get("ack", slot, slot, step=1)
    assert bench.go() == [], "one slot's shadow has nothing of step 0 yet"
    bench.get("ack", S2, S2, step=1)
    assert bench.go() == WARM_UP


def test_hold_lets_a_begun_step_go_on_and_no_other_begin() -> None:
    bench = Bench(0)
    bench.executor.hold_steps(True)
    assert bench.go() == []
    bench.executor.hold_steps(False)
    bench.go()
    bench.executor.hold_steps(True)
    bench.get("grad", S0, S1, index=0)
    assert bench.go() == ["0B0", "0F4"]


def test_a_step_that_one_slot_has_begun_is_begun_by_all_slots_of_the_node() -> None:
    """Else the node would wait for itself: the one cannot end the step without the other."""
    bench = Bench(0)
    bench.executor.owned[S2] = builder_of(bench.job).build(S2, owner=True)
    assert bench.go() == WARM_UP
    bench.executor.hold_steps(True)
    bench.get("act", S2, S1, index=0)
    assert bench.go() == ["2F0", "2B0"]


def test_no_step_begins_after_the_last() -> None:
    bench = Bench(0)
    bench.executor.end_after(-1)
    assert bench.go() == []


# ---------------------------------------------------------------- how it is left


def test_it_ends_when_the_last_step_is_taken_and_all_is_settled() -> None:
    bench = Bench(0)
    bench.executor.end_after(-1)
    bench.executor.ask(settled=lambda: False)
    assert isinstance(bench.executor.run(), Interrupted)
    bench.leaving = False
    bench.executor.ask(settled=lambda: True)
    assert bench.executor.run() == Completed()


def test_lingering_goes_on_until_somebody_calls() -> None:
    bench = Bench(0)
    bench.executor.end_after(-1)
    left = bench.executor.run(linger=True)
    assert isinstance(left, Interrupted)
    assert left.cause == "attention"


def test_attention_comes_before_the_next_operation() -> None:
    bench = Bench(0)
    bench.leaving = True
    left = bench.executor.run()
    assert left == Interrupted(cursor="0.0 step 0 at 0F0", cause="attention")
    assert bench.performed == []


def test_a_loop_in_which_nothing_moves_says_where_it_stands() -> None:
    bench = Bench(1, stall_s=0.01)
    bench.at_idle = lambda: None
    assert bench.executor.run() == Interrupted(cursor="0.1 step 0 at 1F0", cause="stalled")


def test_a_held_loop_does_not_stall() -> None:
    bench = Bench(1, stall_s=0.0)
    bench.executor.hold_steps(True)

    def leave_after_a_while() -> None:
        bench.leaving = bench.idled > 20

    bench.at_idle = leave_after_a_while
    left = bench.executor.run()
    assert isinstance(left, Interrupted)
    assert left.cause == "attention"


def test_a_gradient_that_is_not_finite_stops_before_the_step() -> None:
    bench = Bench(2)
    for index in range(8):
        bench.get("act", S2, S1, index=index)
    for stage, slot in ((0, S0), (1, S1)):
        bench.get("squares", S2, slot, index=stage, squares=[float("inf")])
    before = {n: t.clone() for n, t in bench.own.tensors().items()}
    left = bench.executor.run()
    assert isinstance(left, Interrupted)
    assert (left.cause, left.run, left.cursor) == ("non-finite", bench.own, "0.2 step 0 at 2S")
    assert bench.own.step == 0
    assert all(torch.equal(t, before[n]) for n, t in bench.own.tensors().items())


# ---------------------------------------------------------------- a promoted slot


@pytest.mark.parametrize("ahead", [0, 2, 8])
def test_a_promoted_slot_sends_what_is_there_and_computes_the_rest(ahead: int) -> None:
    bench = Bench(0, "eager")
    draw = random.Random(ahead)
    for local in range(8):
        key = MessageKey(kind="act", to=S1, source=S0, step=0, index=local)
        bench.mailbox.post(key, [X * draw.random()])
    run = bench.executor.shadowed.pop(S1)
    for local in range(ahead):
        kept = bench.mailbox.kept(MessageKey(kind="act", to=S1, source=S0, step=0, index=local))
        assert kept is not None
        run.forward(local, as_leaves((kept.tensors[0].requires_grad_(),)))
    run.owner = True
    run.recovery = Recovery(
        victim="b", planned=False, seen_s=0.0, decided_s=0.0, promoted_s=0.0, version=0
    )
    bench.executor.owned[S1] = run
    bench.mailbox.assign(bench.assignment.replace(owners={S1: NODES[0]}, shadows={S1: None}))
    bench.mailbox.resend(S1)
    done = bench.go()
    own = [op for op in done if op.startswith("1")]
    assert own == ["1F0", "1F1", "1F2"], "then gradients are needed"
    assert run.recovery.recomputed == max(0, 3 - ahead)
    assert run.recovery.first_operation_s == 1.0
    sent = [
        m.key.index for m in bench.wires.queues[NODES[0], NODES[2], False] if m.key.kind == "act"
    ]
    assert sent == [0, 1, 2]
