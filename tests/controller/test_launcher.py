"""The launcher's loop against a store in memory: what it reads, does and writes in each case."""

import json

import pytest

from bamboo.config.tree import BudgetConfig, ChaosConfig, Kill
from bamboo.coord.codec import PriceRecord, ValueRecord, read_ledger
from bamboo.core import events
from bamboo.core.state import Outcome, Phase
from bamboo.errors import BambooError
from bamboo.ids import NodeId
from bamboo.runs.books import DUTY
from tests.controller.world import World, caught_up, finished, job, joined, left, lost, node, step


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script plays in the loop's own thread, so a wait for a decision would be for nothing."""
    monkeypatch.setattr("bamboo.controller.launcher.TURN_S", 0.0)


def test_a_calm_run() -> None:
    world = World(
        job(),
        [
            joined(),
            step(0, 5.0),
            step(1, 4.0),
            [step(2, 3.0), finished(2, 0, 1, 2, 3)],
            left(0, 1, 2, 3),
        ],
    )
    end = world.launcher.run()
    assert end.outcome is Outcome.DONE
    assert (end.step, end.first_loss, end.loss) == (3, 5.0, 3.0)
    assert world.screen.steps == [1, 2, 3]
    assert [m.step for m in world.books.metrics] == [0, 1, 2]
    assert [m.loss for m in world.books.metrics] == [5.0, 4.0, 3.0]
    assert [m.nodes for m in world.books.metrics] == [4, 4, 4]
    assert world.fleet.all_terminated == 1
    assert world.fleet.reconciled > 0
    assert world.clock_s - 1_000_000 < 60
    assert end.usd == pytest.approx(4 * 60 * 0.36 / 3600)  # the minimum, as the receipt has it
    kinds = [kind for kind, _ in world.books.events if kind != DUTY]
    assert kinds == ["NodeJoined"] * 4 + ["NodeFinished"] * 4 + ["NodeLeft"] * 4
    ledger = [record for _, record in read_ledger(world.store)]
    assert [r.instance for r in ledger if isinstance(r, PriceRecord)] == [
        f"i-{n}" for n in range(4)
    ]
    value = ledger[-1]
    assert isinstance(value, ValueRecord)
    assert value.usd == end.usd
    assert value.tokens_per_usd == pytest.approx(3 * 2048 / end.usd)
    assert value.samples_per_usd == pytest.approx(3 * 16 / end.usd)


def test_a_lost_node_is_terminated_and_told_in_one_line() -> None:
    parts = {
        "kind": "failover",
        "victim": "i-2.0",
        "seen_s": 10.0,
        "decided_s": 10.25,
        "promoted_s": 10.5,
        "first_operation_s": 11.5,
    }
    world = World(
        job(),
        [
            joined(),
            step(0),
            lost(2, 1),
            [caught_up(1, 2), parts],
            [step(1), step(2)],
            finished(2, 0, 1, 3),
            left(0, 1, 3),
        ],
    )
    end = world.launcher.run()
    assert end.outcome is Outcome.DONE
    assert world.fleet.terminated == ["i-2"]
    (preemption,) = end.preemptions
    assert (preemption.node, preemption.zone, preemption.planned) == (node(2), "us-east-1a", False)
    assert (preemption.already_computed, preemption.recomputed) == (3, 2)
    assert (preemption.seen_pause_s, preemption.pause_s) == (0.041, 1.75)
    assert preemption.parts_s == {
        "disconnect": 0.25,
        "decision": 0.25,
        "promotion": 0.25,
        "first operation": 1.0,
    }
    assert "its shadow i-1.0 takes over stage 2" in preemption.sentence


def test_no_live_copy_ends_the_run_as_unrecoverable() -> None:
    world = World(job(), [joined(), lost(2, 1), lost(1, 0), left(0, 3)])
    end = world.launcher.run()
    assert end.outcome is Outcome.UNRECOVERABLE
    assert end.outcome.exit_code == 3
    assert "no live node holds" in end.sentence
    assert world.fleet.all_terminated == 1
    assert len(end.preemptions) == 2


def test_the_loss_of_all_nodes_at_once_is_reported_by_the_launcher() -> None:
    world = World(job(), [joined(), step(0)])

    def take_all() -> None:
        world.fleet.ended_at_s = {f"i-{n}": world.clock_s for n in range(4)}

    world._script += [take_all, *[[] for _ in range(6)]]
    end = world.launcher.run()
    assert end.outcome is Outcome.UNRECOVERABLE
    assert "its instance was terminated, says fleet" in world.screen.reasons[-1]
    assert world.fleet.all_terminated == 1


def test_a_node_lost_while_the_cluster_forms_gets_no_slot() -> None:
    world = World(job())

    def take_one() -> None:
        world.fleet.ended_at_s = {"i-0": world.clock_s}

    world._script = [
        joined(3),
        take_one,
        [],
        joined(5)[3:],
        [step(0), step(1), step(2), finished(2, 1, 2, 3, 4)],
        left(1, 2, 3, 4),
    ]
    assert world.launcher.run().outcome is Outcome.DONE


def test_a_loss_that_the_members_saw_is_not_reported_again() -> None:
    world = World(job(), [joined(), step(0)])

    def take_one() -> None:
        world.fleet.ended_at_s = {"i-2": world.clock_s}

    world._script += [
        [take_one, lost(2, 1)],
        [caught_up(1, 2), step(1), step(2)],
        *[[] for _ in range(6)],
        finished(2, 0, 1, 3),
        left(0, 1, 3),
    ]
    assert world.launcher.run().outcome is Outcome.DONE
    assert not any("says fleet" in reason for reason in world.screen.reasons)


def test_the_first_interrupt_stops_at_a_step_boundary() -> None:
    world = World(job(steps=100))

    def ask() -> None:
        world.interrupts = 1

    ready: list[events.Event] = [events.StopReady(node=node(n), step=1) for n in range(4)]
    world._script = [
        joined(),
        step(0),
        ask,
        [],
        ready,
        [step(1), finished(1, 0, 1, 2, 3)],
        left(0, 1, 2, 3),
    ]
    end = world.launcher.run()
    assert end.outcome is Outcome.STOPPED
    assert end.outcome.exit_code == 130
    assert end.step == 2
    assert world.screen.notes == [
        "stopping at the next step boundary; a second Ctrl-C stops at once"
    ]


def test_a_stop_after_a_restore_ends_before_steps_that_were_finished_once() -> None:
    world = World(job(steps=100))

    def ask() -> None:
        world.interrupts = 1

    ready: list[events.Event] = [events.StopReady(node=node(n), step=1) for n in range(4)]
    world._script = [
        joined(),
        [step(n) for n in range(4)],
        ask,
        [],
        ready,
        finished(1, 0, 1, 2, 3),
        left(0, 1, 2, 3),
    ]
    assert world.launcher.run().step == 2


def test_the_second_interrupt_ends_at_once() -> None:
    world = World(job(steps=100))

    def ask() -> None:
        world.interrupts = 2

    world._script = [joined(), step(0), ask]
    end = world.launcher.run()
    assert end.outcome is Outcome.STOPPED
    assert world.fleet.all_terminated == 1
    assert world.driver.state().outcome is Outcome.STOPPED
    assert "ended at once after step 1" in end.sentence


def test_the_second_interrupt_does_not_need_the_store() -> None:
    world = World(job(steps=100))

    def ask() -> None:
        world.interrupts = 2
        world.store.close()

    world._script = [joined(), ask]
    end = world.launcher.run()
    assert (end.outcome, end.state.phase) == (Outcome.STOPPED, Phase.FINISHED)
    assert world.fleet.all_terminated == 1


@pytest.mark.parametrize(
    ("budget", "word"),
    [
        (BudgetConfig(max_usd=0.03), "budget.max_usd"),
        (BudgetConfig(max_hours=5 / 3600), "budget.max_hours"),
    ],
)
def test_the_budget_ends_the_run(budget: BudgetConfig, word: str) -> None:
    ready: list[events.Event] = [events.StopReady(node=node(n), step=1) for n in range(4)]
    world = World(job(steps=100, budget=budget))
    world._script = [
        joined(),
        step(0),
        # Four instances cost $0.024 at least, and $0.03 after 75 s.
        *[[] for _ in range(77)],
        ready,
        [step(1), finished(1, 0, 1, 2, 3)],
        left(0, 1, 2, 3),
    ]
    end = world.launcher.run()
    assert end.outcome is Outcome.BUDGET
    assert end.outcome.exit_code == 4
    assert word in end.sentence


@pytest.mark.parametrize(
    ("max_usd", "calm", "then"),
    [(1.0, (None, 0), (None, 1)), (0.029, (None, 0), (3, 0)), (0.0, (None, None), (None, None))],
)
def test_one_lost_after_the_look_at_the_budget_is_not_replaced_unseen(
    max_usd: float, calm: tuple[int | None, int | None], then: tuple[int | None, int | None]
) -> None:
    """Four cost $0.024 at least, and a fifth $0.006 more: the next look finds it, or too dear."""
    world = World(job(steps=100, budget=BudgetConfig(max_usd=max_usd)))

    def lose_one() -> None:
        if len(world.fleet.wanted) == 2:
            world.fleet.ended_at_s["i-3"] = world.clock_s

    def end() -> None:
        world.interrupts = 2

    world.fleet.on_reconcile = lose_one
    world._script = [joined(), step(0), [], end]
    world.launcher.run()
    told = list(zip(world.fleet.wanted, world.fleet.may_start, strict=True))
    # While it forms, as many as it takes.
    assert told == [(None, None), calm, calm, then]
    stops = "budget.max_usd" in (world.driver.state().stop_reason or "")
    assert stops == (0 < max_usd < 1)


def test_a_cluster_that_does_not_form_is_given_up() -> None:
    world = World(job(), [joined(3), *[[] for _ in range(60)]])
    end = world.launcher.run()
    assert end.outcome is Outcome.FAULT
    assert "3 of 4 nodes joined within cluster.forming_timeout_s = 50" in end.sentence


def test_a_run_that_stands_still_is_ended() -> None:
    world = World(job(), [joined(), step(0), *[[] for _ in range(120)]])
    end = world.launcher.run()
    assert end.outcome is Outcome.FAULT
    assert "no step and no decision" in end.sentence


def test_a_dead_cloud_is_a_fault() -> None:
    world = World(job())

    def die() -> None:
        world.fleet.is_alive = False

    world._script = [joined(), die, []]
    with pytest.raises(BambooError, match="the local cloud ended"):
        world.launcher.run()


def test_a_listed_kill_with_notice_is_ordered_at_its_step() -> None:
    kills = (Kill(step=2, stage=3, notice_s=5.0), Kill(step=1, stage=0))
    world = World(job(chaos=ChaosConfig(kill=kills)))
    seen: list[list[tuple[str, float]]] = []

    def look() -> None:
        seen.append(list(world.fleet.preempted))

    world._script = [
        joined(),
        step(0),
        [],
        look,
        step(1),
        [],
        look,
        [step(2), finished(2, 0, 1, 2, 3)],
        left(0, 1, 2, 3),
    ]
    world.launcher.run()
    assert seen == [[], [("i-3", 5.0)]]
    assert world.fleet.preempted == [("i-3", 5.0)]


def test_a_step_that_comes_late_is_kept() -> None:
    world = World(
        job(),
        [joined(), step(1, 4.0), step(0, 5.0), step(2), finished(2, 0, 1, 2, 3), left(0, 1, 2, 3)],
    )
    world.launcher.run()
    assert [m.step for m in world.books.metrics] == [1, 0, 2]


def test_a_step_reported_twice_counts_once_unless_it_differs() -> None:
    world = World(
        job(),
        [
            joined(),
            step(0, 5.0),
            step(0, 5.0),
            step(0, 5.5),
            step(1),
            step(2),
            finished(2, 0, 1, 2, 3),
            left(0, 1, 2, 3),
        ],
    )
    end = world.launcher.run()
    assert [(m.step, m.loss) for m in world.books.metrics][:2] == [(0, 5.0), (0, 5.5)]
    assert len(world.books.metrics) == 4
    assert world.screen.steps == [1, 2, 3]
    assert any("two losses" in note for note in world.screen.notes)
    assert end.first_loss == 5.0


def test_beats_are_kept_at_their_peak() -> None:
    beats = [
        {"step": 1, "progress": 5, "ops": {"F": 4, "FR": 2}, "tensor_bytes": 900},
        {"step": 1, "progress": 6, "ops": {"F": 6, "B": 1, "FR": 2}, "tensor_bytes": 700},
    ]
    world = World(job())
    world._script = [
        joined(),
        lambda: world.store.beat(node(0), json.dumps(beats[0])),
        lambda: world.store.beat(node(0), json.dumps(beats[1])),
        [step(0), step(1), step(2)],
        finished(2, 0, 1, 2, 3),
        left(0, 1, 2, 3),
    ]
    end = world.launcher.run()
    work = end.work[NodeId("i-0.0")]
    assert dict(work.operations) == {"F": 6, "B": 1, "FR": 2, "BR": 0}
    assert work.tensor_bytes == 900


def test_the_last_record_of_a_node_completes_its_beats() -> None:
    world = World(job())
    last = {
        "kind": "memory",
        "node": "i-0.0",
        "ops": {"F": 24, "B": 24, "FR": 24, "BR": 0},
        "peak_tensor_bytes": 5000,
        "overruns": 3,
    }
    world._script = [
        joined(),
        [step(0), step(1), step(2), last, finished(2, 0, 1, 2, 3)],
        left(0, 1, 2, 3),
    ]
    end = world.launcher.run()
    work = end.work[NodeId("i-0.0")]
    assert (work.operations["F"], work.tensor_bytes, work.overruns) == (24, 5000, 3)
