"""What an autoscaled run makes of its decisions and steps, and what it asks of the fleet."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo.billing.ledger import Accounts
from bamboo.billing.run_cost import resizes_of
from bamboo.config.tree import BudgetConfig
from bamboo.controller.autoscaling import scale
from bamboo.controller.ports import Ports
from bamboo.coord.codec import decode_record, encode_record
from bamboo.core.events import (
    Event,
    NodesReleased,
    Prepared,
    RebalanceAdvised,
    Speed,
    SpeedsMeasured,
)
from bamboo.core.state import GridTime
from bamboo.core.straggler import ROUNDS
from bamboo.ids import NodeId, RunId
from bamboo.planner.fleet.autoscale import Resize, Scaling
from bamboo.planner.fleet.scaler import SETTLING, Turn, Watch, to_give_back, trained_size
from bamboo.planner.fleet.scaling_curve import LEAST
from bamboo.runs.books import RESIZED, SIZE_KEPT, Booked, FileBooks, read_booked
from bamboo.runs.run_folder import RunFolder
from bamboo.study.scaler_terms import rule_of
from tests.controller.sized import (
    POLICY,
    Told,
    after,
    booked,
    grown_in_vain,
    job,
    of_three_pipelines,
    progress,
    trains,
)
from tests.controller.world import START_S, FakeBooks, World
from tests.core.build import forming, joined, lost

# ------------------------------------------------------------------------------ what is watched


def times_of(watch: Watch, steps: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    for step, at_s in steps:
        watch.stepped(step, at_s)
    return [(nodes, round(took_s, 6)) for nodes, took_s in watch.times()]


def test_only_whole_steps_of_an_undisturbed_run_count() -> None:
    calm = trains("a.1", "b.1")
    hurt = after(calm, lost("a.1"))
    watch = Watch()
    watch.decided(calm, 10.0)
    watch.decided(hurt, 20.0)
    watch.decided(calm, 30.0)
    steps = [(step, 9.0 + step) for step in range(30)]
    found = times_of(watch, steps)
    within = 2 * (10 - 1 - SETTLING) + 1  # 10 to 20; 30 to 38, to which the first pair is missing
    assert found == [(2, 1.0)] * (within - 1)


def test_steps_that_are_done_again_or_told_again_do_not_count() -> None:
    watch = Watch()
    watch.decided(trains("a.1", "b.1"), 0.0)
    steps = [(0, 1.0), (1, 2.0), (2, 3.0), (2, 3.5), (3, 4.0), (1, 9.0), (2, 10.0), (3, 11.0)]
    assert times_of(watch, steps) == [(2, 0.5), (2, 1.0), (2, 1.0)]


def test_what_was_known_before_is_not_counted_again() -> None:
    watch = Watch(after_s=5.0)
    watch.decided(trains("a.1", "b.1"), 0.0)
    assert len(times_of(watch, [(step, float(step)) for step in range(12)])) == 6 - SETTLING


def test_steps_may_be_told_after_all_decisions() -> None:
    """As a later launcher reads them: the log first, then the metrics."""
    small, large = trains("a.1", "b.1"), of_three_pipelines()
    watch = Watch()
    for state, at_s in ((small, 0.0), (after(small, joined("c.1")), 50.0), (large, 100.0)):
        watch.decided(state, at_s)
    found = times_of(watch, [(step, 0.5 + step) for step in range(200)])
    sizes = [nodes for nodes, _ in found]
    assert {nodes: sizes.count(nodes) > 40 for nodes in (2, 3, 6)} == {2: True, 3: True, 6: True}


# ------------------------------------------------------------------------------ which sizes


def test_sizes_are_those_with_work_for_every_node() -> None:
    assert rule_of(job(), POLICY).sizes == (2, 4, 6)
    assert rule_of(job(max_nodes=5), POLICY).sizes == (2, 4)
    assert rule_of(job(budget=BudgetConfig(max_instances=5)), POLICY).sizes == (2, 4)
    assert rule_of(job(standbys=1), POLICY).sizes == (3, 5, 7)
    idle = GridTime(pipelines=3, stages=2, step_s=0.5)
    grids = (
        GridTime(pipelines=1, stages=2, step_s=1.0),
        GridTime(pipelines=2, stages=2, step_s=0.5),
    )
    assert rule_of(job(), replace(POLICY, grids=(*grids, idle))).sizes == (2, 4)


# ------------------------------------------------------------------------------ what is asked for


def test_it_wants_more_nodes_once_it_knows_the_size_of_now() -> None:
    told, state = Told(), trains("a.1", "b.1")
    told.trains(state, step_s=1.0, steps=LEAST)
    assert told.turn(state) == Turn(nodes=2)
    told.trains(state, step_s=1.0)
    grown = told.turn(state)
    assert (grown.nodes, grown.release, grown.spare) == (4, None, ())
    assert grown.resize is not None
    assert (grown.resize.before, grown.resize.nodes) == (2, 4)
    assert told.turn(state) == Turn(nodes=4), "the wish stays, and is told once"


def test_nothing_is_decided_while_anything_is_repaired() -> None:
    told, state = Told(), trains("a.1", "b.1")
    told.trains(state, step_s=1.0)
    hurt = after(state, lost("b.1"))
    assert told.turn(hurt) == Turn(nodes=2)
    larger = after(state, joined("c.1"), joined("d.1"))
    assert larger.preparing is not None
    assert told.turn(larger).resize is None
    ahead = larger.preparing.feeds
    said = (
        Prepared(node=node, since=ahead[0].since, bytes=0, followed_bytes=0)
        for node in sorted(larger.preparing.receivers)
    )
    stopping = after(larger, *said)
    assert stopping.reconfiguration is not None
    assert told.turn(stopping).resize is None


def test_it_gives_back_the_nodes_of_the_last_pipeline_and_ends_none_itself() -> None:
    told, state = grown_in_vain()
    turn = told.turn(state)
    assert turn.resize is not None
    assert (turn.resize.before, turn.resize.nodes) == (4, 2)
    assert turn.release == NodesReleased(
        reporter="launcher",
        nodes=(NodeId("d.1"), NodeId("c.1")),
        reason=turn.resize.reason,
        keep=2,
    )
    assert (turn.nodes, turn.spare) == (4, ()), "those who take part stay until they have left"
    leaving = after(state, turn.release)
    assert told.turn(leaving) == Turn(nodes=2)


def test_a_surplus_node_is_given_back_for_what_it_is() -> None:
    """Neither a growth nor a shrink that is over is the reason that one too many goes."""
    told, state = Told(), trains("a.1", "b.1")
    told.trains(state, step_s=1.0)
    assert told.turn(state).resize is not None
    larger = after(forming(2, 2), *(joined(f"{name}.1") for name in "abcd"))
    five = after(larger, joined("e.1"))
    release = told.turn(five).release
    assert release is not None
    assert release.reason == "5 nodes are there, and 4 wanted"
    told.trains(larger, step_s=0.99)
    shrink = told.turn(larger)
    again = told.turn(larger)  # not decided yet: said again, with the same words
    assert shrink.release == again.release is not None
    assert "from 4 to 2" in shrink.release.reason
    told.turn(state)
    release = told.turn(after(state, joined("c.1"))).release
    assert release is not None
    assert release.reason == "3 nodes are there, and 2 wanted"


def test_standbys_are_given_back_before_others() -> None:
    state = after(of_three_pipelines(), joined("g.1"), joined("h.1"))
    assert list(to_give_back(state))[:4] == ["h.1", "g.1", "f.1", "e.1"]


def test_a_node_for_an_advised_one_is_not_surplus() -> None:
    told, state = Told(), trains("a.1", "b.1")
    state = after(state, RebalanceAdvised(node=NodeId("a.1")), joined("c.1"))
    turn = told.turn(state)
    assert (turn.nodes, turn.release) == (3, None)


def test_a_node_for_a_slow_one_is_wished_for_and_no_surplus_until_that_is_fine() -> None:
    told, state = Told(), trains("a.1", "b.1")
    speeds = (Speed(node=NodeId("a.1"), speed=0.5), Speed(node=NodeId("b.1"), speed=1.0))
    measured = SpeedsMeasured(reporter="launcher", era=state.era, speeds=speeds)
    state = after(state, *[measured] * ROUNDS)
    assert trained_size(state) == 2, "all of them train until it is there"
    assert told.turn(state).nodes == 3
    state = after(state, joined("c.1"))
    turn = told.turn(state)
    assert (turn.nodes, turn.release, trained_size(state)) == (3, None, 2)
    fine = replace(measured, speeds=tuple(replace(speed, speed=1.0) for speed in speeds))
    release = told.turn(after(state, fine)).release
    assert release is not None
    assert release.nodes == ("c.1",)


def test_what_is_booting_in_vain_is_ended_the_youngest_first() -> None:
    told, state = Told(), trains("a.1", "b.1")
    assert told.turn(state, "a", "b", "x", "y").spare == ("y", "x")
    assert told.turn(state, "a", "b", "x", "y").spare == (), "asked for once, ended or not"


def test_what_is_being_ended_is_not_waited_for() -> None:
    """The journal does not show its end yet when more nodes are wished for."""
    told, state = Told(), trains("a.1", "b.1")
    assert told.turn(state, "a", "b", "x").spare == ("x",)
    told.trains(state, step_s=1.0)
    assert told.turn(state, "a", "b", "x").nodes == 4
    told.turn(state, "a", "b", "x")
    told.now_s += 31.0
    given_up = told.turn(state, "a", "b", "x").resize
    assert given_up is not None
    assert given_up.reason.startswith("2 of 4 nodes could be had")


def test_a_wish_that_nobody_fills_is_given_up_and_not_repeated_soon() -> None:
    told, state = Told(), trains("a.1", "b.1")
    told.trains(state, step_s=1.0)
    assert told.turn(state).nodes == 4
    told.turn(state)
    told.now_s += 29.0
    assert told.turn(state).resize is None
    told.now_s += 2.0
    given_up = told.turn(state)
    assert given_up.resize is not None
    assert given_up.resize.reason == "2 of 4 nodes could be had; not asked again for 60 s"
    told.now_s += 50.0
    assert told.turn(state).nodes == 2
    told.now_s += 20.0
    assert told.turn(state).nodes == 4


def test_a_node_without_work_teaches_nothing_of_larger_sizes() -> None:
    """Three of four could be had, and two of them trained: four are wished for again."""
    told, state = Told(), trains("a.1", "b.1")
    told.trains(state, step_s=1.0)
    assert told.turn(state).nodes == 4
    three = after(state, joined("c.1"))
    told.trains(three, step_s=1.0, steps=31)
    told.turn(three)
    told.now_s += 31.0
    given_up = told.turn(three)
    assert given_up.resize is not None
    assert given_up.resize.reason.startswith("3 of 4 nodes could be had")
    told.now_s += 61.0
    assert told.turn(state).nodes == 4


def test_a_wish_is_not_given_up_while_nodes_boot() -> None:
    told, state = Told(), trains("a.1", "b.1")
    told.trains(state, step_s=1.0)
    told.turn(state)
    for _ in range(5):
        told.now_s += 20.0
        assert told.turn(state, "a", "b", "x").nodes == 4


def test_it_never_grows_beyond_the_budget() -> None:
    """10,000 steps of 1 s on two nodes at $1/h each come to $5.55, and a look at four to $0.04."""
    for max_usd, nodes in ((5.57, 2), (5.6, 4)):
        told, state = Told(job(budget=BudgetConfig(max_usd=max_usd))), trains("a.1", "b.1")
        told.trains(state, step_s=1.0)
        assert told.turn(state).nodes == nodes


# ------------------------------------------------------------------------------ what is written


def test_a_successor_goes_on_from_the_books() -> None:
    told, state = grown_in_vain()
    first = told.turn(state)
    later = Told(booked=booked(told, at_s=told.now_s))
    later.now_s = told.now_s
    later.scaler.decided(state, START_S)
    assert later.scaler.scaling == told.scaler.scaling
    turn = later.turn(state)
    assert (turn.nodes, turn.resize) == (first.nodes, None)
    assert turn.release is not None
    assert first.release is not None
    assert turn.release.nodes == first.release.nodes


def test_the_deadline_does_not_begin_anew_with_a_resume() -> None:
    """10,000 steps of 0.7 s come within 2.8 hours of the start, and not after 1.3 of them."""
    goal = job(marginal=0.9, utility="step", utility_usd=1000.0, deadline_hours=2.8, max_nodes=4)
    for led_before_s, nodes in ((0.0, 2), (1.3 * 3600, 4)):
        known = Booked(scaling=Scaling(nodes=2, times_s=((4, (0.5,) * 64),)).to_body())
        told, state = Told(goal, known, led_before_s=led_before_s), trains("a.1", "b.1")
        told.trains(state, step_s=0.7)
        assert told.turn(state).nodes == nodes


@pytest.mark.parametrize(
    ("cluster", "known"),
    [({}, True), ({"stages": 4}, False), ({"standbys": 1}, False), ({"redundancy": "off"}, False)],
)
def test_what_another_grid_took_is_not_taken_for_this_one(
    cluster: dict[str, Any], known: bool
) -> None:
    told, state = grown_in_vain()
    told.turn(state)
    other = replace(told.config, cluster=replace(told.config.cluster, **cluster))
    written = json.loads(json.dumps(told.scaler.to_body()))
    later = Booked(scaling=written, scaled_at_s=told.now_s, part=2)
    assert bool(Told(other, later).scaler.scaling.times_s) is known


def test_a_resumed_run_knows_the_curve_and_begins_with_its_first_grid() -> None:
    told, state = grown_in_vain()
    told.turn(state)
    known = told.scaler.scaling
    resumed = Told(booked=booked(told, at_s=told.now_s, part=2)).scaler.scaling
    assert resumed == Scaling(nodes=2, times_s=known.times_s)


def test_what_was_written_down_is_read_again(tmp_path: Path) -> None:
    """By whoever leads the run next, in this part of it or in a later one."""
    told, state = grown_in_vain()
    folder = RunFolder(id=RunId("r"), path=tmp_path)
    folder.events.mkdir()
    assert read_booked(folder).scaling is None
    for _ in range(2):
        told.turn(state)
        books = FileBooks(folder, part=2)
        body = {"scaling": told.scaler.to_body()}
        books.event(RESIZED, progress(state), at_s=told.now_s, data=body | {"resize": {"step": 7}})
        books.event("Duty", progress(state), at_s=told.now_s, data={"part": 2, "number": 0})
        books.close()
    found = read_booked(folder, part=2)
    assert (found.scaled_at_s, found.scaling_part, found.part) == (told.now_s, 2, 2)
    assert found.scaling is not None
    assert Scaling.of_body(found.scaling) == told.scaler.scaling
    assert (found.duties, [one["step"] for one in resizes_of(folder)]) == (1, [7, 7])


class _Screen:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("in_vain", [True, False])
def test_each_resize_is_in_the_books_and_in_the_ledger(in_vain: bool) -> None:
    told, state = grown_in_vain() if in_vain else (Told(job(max_nodes=2)), trains("a.1", "b.1"))
    told.trains(state, step_s=0.99)
    world, books, screen = World(told.config), FakeBooks(), _Screen()
    said: list[Event] = []

    def say(event: Event, *, deadline_s: float) -> None:
        said.append(event)

    ports = Ports(
        append=say,
        fleet=world.fleet,
        screen=screen,  # type: ignore[arg-type]
        books=books,
        now=lambda: told.now_s,
    )
    accounts = Accounts(Booked(), books)
    seen = progress(state, step=told.step, now_s=told.now_s)
    scale(told.scaler, ports, seen, accounts)
    ((kind, data),) = books.events
    assert Scaling.of_body(data["scaling"]) == told.scaler.scaling
    accounts.write(world.store, seen, (), samples_per_step=10)
    ledger = [decode_record(r) for _, r in world.store.records("ledger", after_id="0", timeout_s=0)]
    resizes = [record for record in ledger if isinstance(record, Resize)]
    if not in_vain:
        assert (kind, said, screen.notes, resizes) == (SIZE_KEPT, [], [], [])
        return
    assert kind == RESIZED
    assert resizes == [Resize(**data["resize"])]
    assert decode_record(encode_record(resizes[0])) == resizes[0]
    assert screen.notes == [resizes[0].reason]
    assert isinstance(said[0], NodesReleased)
    assert world.fleet.terminated == ["i-3", "i-2", "i-1", "i-0"], "no node came from these"
