"""A trace as a run's market: its clock, its seats, and what a later launcher makes of the books."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.billing.money import Rented
from bamboo.controller.launcher import Launcher
from bamboo.controller.market import Market, TraceClock, Turn
from bamboo.controller.terms import TraceTerms
from bamboo.core.state import Phase, Reconfiguration, State
from bamboo.errors import InputError
from bamboo.runs.books import SEAT_LOST, SEAT_TAKEN, Seated
from bamboo.study.played_trace import Replayed, replayed, settle
from cli.views.trace import trace_body, trace_figures, trace_line, trace_text
from tests.controller.world import START_S, World, finished, job, joined, left, lost, node, step

TRACE = """0,add,a
0,add,b
0,add,c
60000,remove,b
120000,add,d
240000,remove,a
"""
"""Two seats: the one of b is lost at 60 s and c's from 105 s on, that of a at 240 s and d's from
285 s on, which is after the trace's end."""


def written(folder: Path, text: str = TRACE) -> Path:
    path = folder / "market.csv"
    path.write_text(text)
    return path


def settled(
    folder: Path,
    text: str = TRACE,
    *,
    seats: int = 2,
    needed: int = 2,
    scale: float = 60.0,
    hours: float | None = None,
    restart: float | None = None,
) -> Replayed:
    return settle(
        written(folder, text),
        time_scale=scale,
        restart_s=restart,
        max_nodes=seats,
        hours=hours,
        needed=needed,
    )


def forming() -> State:
    return World(job()).driver.state()


def training() -> State:
    world = World(job())
    world.do(joined())
    return world.driver.state()


def rented(*instances: str, ended: str = "") -> list[Rented]:
    return [
        Rented(
            instance=i,
            instance_type="g4dn.xlarge",
            zone="a",
            market="spot",
            started_at_s=0.0,
            ended_at_s=1.0 if i in ended.split() else None,
            usd_per_hour=1.0,
            on_demand_usd_per_hour=2.0,
        )
        for i in instances
    ]


def shown(turn: Turn) -> str:
    taken = [f"{s.instance} in {s.seat}" for s in turn.seated]
    gone = [f"{x.instance} out of {x.seat}{' again' if x.again else ''}" for x in turn.losses]
    return "; ".join([*taken, *gone, f"{turn.nodes} nodes"])


def test_trace_time_begins_with_training_and_ends_with_the_run(tmp_path: Path) -> None:
    clock = TraceClock(settled(tmp_path).terms)
    clock.decided(forming(), 10.0)
    assert clock.trace_s(100.0) == 0.0
    clock.decided(training(), 100.0)
    assert (clock.trace_s(100.0), clock.trace_s(101.5)) == (0.0, 90.0)
    clock.decided(replace(training(), phase=Phase.FINISHED), 102.0)
    assert clock.trace_s(500.0) == 120.0


def test_a_restart_is_charged_once_and_waiting_for_nodes_is_none(tmp_path: Path) -> None:
    clock = TraceClock(settled(tmp_path, restart=100.0).terms)
    state = training()
    clock.decided(state, 0.0)
    asked = Reconfiguration(since=9, why="", planned=False, intact=False, asked=(node(0),))
    stopping = replace(state, phase=Phase.RECONFIGURING, reconfiguration=asked)
    clock.decided(stopping, 1.0)
    assert clock.trace_s(4.0) == 163.0
    clock.decided(replace(stopping, version=stopping.version + 1), 4.0)
    waiting = replace(stopping, reconfiguration=replace(asked, asked=()))
    clock.decided(waiting, 4.0)
    assert clock.trace_s(5.0) == 223.0
    clock.decided(replace(waiting, reconfiguration=replace(asked, asked=(), base=3)), 5.0)
    assert clock.trace_s(7.0) == 225.0
    clock.decided(state, 7.0)
    clock.decided(stopping, 8.0)
    assert clock.trace_s(8.0) == 385.0


def test_seats_are_taken_lost_and_taken_again(tmp_path: Path) -> None:
    market = Market(settled(tmp_path))
    assert shown(market.turn([], now_s=0.0)) == "2 nodes"
    assert shown(market.turn(rented("i-1", "i-2", "i-3"), now_s=0.0)) == (
        "i-1 in 0; i-2 in 1; 2 nodes"
    )
    market.decided(training(), 0.0)
    assert shown(market.turn(rented("i-1", "i-2"), now_s=0.9)) == "2 nodes"
    assert shown(market.turn(rented("i-1", "i-2"), now_s=1.1)) == "i-2 out of 1; 1 nodes"
    assert shown(market.turn(rented("i-1", "i-2"), now_s=1.2)) == "i-2 out of 1 again; 1 nodes"
    here = rented("i-1", "i-2", "i-3", ended="i-2")
    turn = market.turn(here[:2], now_s=1.8)
    assert (turn.changed, shown(turn)) == (True, "2 nodes")
    assert shown(market.turn(here, now_s=2.0)) == "i-3 in 1; 2 nodes"
    turn = market.turn(here, now_s=4.5)
    assert (turn.ended, shown(turn)) == (True, "i-1 out of 0; 1 nodes")
    turn = market.turn(rented("i-3"), now_s=500.0)
    assert (turn.ended, turn.changed, shown(turn)) == (False, False, "1 nodes")
    assert market.told(4.5).preemptions == 2


def test_a_seat_filled_again_before_anybody_looked_is_lost_all_the_same(tmp_path: Path) -> None:
    market = Market(settled(tmp_path))
    market.turn(rented("i-1", "i-2"), now_s=0.0)
    market.decided(training(), 0.0)
    assert shown(market.turn(rented("i-1", "i-2"), now_s=3.0)) == "i-2 out of 1; 2 nodes"


def test_an_instance_lost_otherwise_is_replaced_in_its_seat(tmp_path: Path) -> None:
    market = Market(settled(tmp_path))
    market.turn(rented("i-1", "i-2"), now_s=0.0)
    here = rented("i-1", "i-2", "i-3", ended="i-1")
    assert shown(market.turn(here, now_s=0.0)) == "i-3 in 0; 2 nodes"


def test_a_later_launcher_knows_the_seats_from_the_books(tmp_path: Path) -> None:
    played = settled(tmp_path)
    booked = [
        Seated(seat=0, lost_before=0, instance="i-1"),
        Seated(seat=1, lost_before=0, instance="i-2"),
    ]
    later = Market(played, seated=booked, ordered={"i-2"})
    later.decided(training(), 0.0)
    here = rented("i-1", "i-2", "i-3")
    assert shown(later.turn(here, now_s=3.0)) == "i-3 in 1; i-2 out of 1 again; 2 nodes"
    assert later.told(3.0).preemptions == 1


def test_the_terms_can_be_kept_and_played_again(tmp_path: Path) -> None:
    played = settled(tmp_path, hours=0.5)
    body = json.loads(json.dumps({f: getattr(played.terms, f) for f in played.terms.__slots__}))
    assert replayed(written(tmp_path), TraceTerms(**body)) == played


def test_it_begins_where_there_are_nodes_enough(tmp_path: Path) -> None:
    text = "0,add,a\n3600000,add,b\n3700000,remove,a\n3800000,add,c\n"
    played = settled(tmp_path, text)
    assert (played.terms.begin_s, played.nodes_at_begin, played.preemptions) == (3645.0, 2, 1)
    assert "from 1.01 h of the trace on" in trace_text(played)
    market = Market(played)
    market.decided(training(), 0.0)
    market.turn(rented("i-1", "i-2"), now_s=0.0)
    assert shown(market.turn(rented("i-1", "i-2"), now_s=1.0)) == "i-1 out of 0; 1 nodes"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"scale": 0.0}, "--time-scale 0 plays nothing"),
        ({"scale": 1e300}, r"--time-scale 1e\+300 plays nothing"),
        ({"scale": float("nan")}, "--time-scale nan"),
        ({"restart": -1.0}, "--restart-seconds -1 is no time"),
        ({"hours": 0.0}, "--hours 0 is no time"),
        ({"seats": 1}, "--max-nodes 1 is too few"),
        ({"seats": 4, "needed": 4}, "never has the 4 nodes"),
    ],
)
def test_what_cannot_be_played_is_refused(
    tmp_path: Path, asked: dict[str, float], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        settled(tmp_path, **asked)  # type: ignore[arg-type]


def test_the_texts(tmp_path: Path) -> None:
    played = settled(tmp_path, hours=0.05)
    assert trace_text(played).splitlines() == [
        "  nodes as in the trace market.csv, modelled: 2 at the start, at most 2, "
        "1 preemption in 0.05 h",
        "    60 s of it pass in a second, from the start of training on: 3.0 s in all; then the "
        "run is stopped",
    ]
    assert trace_body(played)["end_s"] == 180.0
    market = Market(played)
    market.decided(training(), 0.0)
    market.turn(rented("i-1", "i-2"), now_s=0.0)
    market.turn(rented("i-1", "i-2"), now_s=2.0)
    told = market.told(2.0)
    assert trace_figures(told) == "trace 0.03 h (60 x), 2/2 nodes"
    body = {f: getattr(told, f) for f in told.__slots__}
    assert trace_line(body) == (
        "0.03 h of the trace market.csv at 60 times its speed, at most 2 nodes: "
        "1 preemption by the trace"
    )
    assert "; it ended after 0.07 h" in trace_line({**body, "played_s": 300.0})
    longer = settled(tmp_path, hours=1.0)
    assert "it is shorter than the 1 h asked for" in trace_text(longer)
    assert "is charged 100 s of it" in trace_text(settled(tmp_path, restart=100.0))


# ---------------------------------------------------------------- in the launcher's loop


def playing(world: World, played: Replayed) -> Launcher:
    """The world's launcher, with a market."""
    world.launcher = world.new_launcher(market=Market(played))
    return world.launcher


FOUR = "".join(f"0,add,n{n}\n" for n in range(4))


def test_the_launcher_takes_what_the_trace_takes(tmp_path: Path) -> None:
    played = settled(tmp_path, FOUR + "3000,remove,n2\n60000,add,n9\n", seats=4, scale=1.0)
    world = World(job())

    def taken() -> None:
        assert set(world.fleet.preempted) == {("i-2", 0.0)}
        world.fleet.ended_at_s = {"i-2": world.clock_s}

    world._script = [
        joined(),
        [step(0)],
        *[[] for _ in range(3)],
        [taken, lost(2, 1)],
        [],
        [step(1), step(2)],
        finished(2, 0, 1, 3),
        left(0, 1, 3),
    ]
    end = playing(world, played).run()
    kinds = [kind for kind, _ in world.books.events]
    assert (kinds.count(SEAT_TAKEN), kinds.count(SEAT_LOST)) == (4, 1)
    assert set(world.fleet.wanted) == {4, 3}
    assert end.trace is not None
    assert (end.trace.preemptions, end.trace.nodes) == (1, 3)


def test_the_fleet_keeps_a_node_that_could_not_be_taken_yet(tmp_path: Path) -> None:
    played = settled(tmp_path, FOUR + "3000,remove,n2\n60000,add,n9\n", seats=4, scale=1.0)
    world = World(job())
    world._script = [joined(), *[[] for _ in range(6)], [step(0), step(1), step(2)],
                     finished(2, 0, 1, 2, 3), left(0, 1, 2, 3)]  # fmt: skip
    playing(world, played).run()
    assert set(world.fleet.wanted) == {4}
    assert len(world.fleet.preempted) > 1
    assert [kind for kind, _ in world.books.events].count(SEAT_LOST) == 1


def test_the_run_is_stopped_when_its_hours_are_over(tmp_path: Path) -> None:
    text = FOUR + "36000000,remove,n0\n"
    played = settled(tmp_path, text, seats=4, scale=3600.0, hours=5.0)
    world = World(job(steps=100))
    world._script = [
        joined(), step(0), *[[] for _ in range(6)],
        [_ready(n) for n in range(4)],
        [step(1), finished(1, 0, 1, 2, 3)], left(0, 1, 2, 3),
    ]  # fmt: skip
    end = playing(world, played).run()
    assert (end.outcome, end.outcome and end.outcome.exit_code) == ("stopped", 130)
    assert end.sentence.startswith("the 5 h of the trace that were asked for are over: all stopped")
    assert not world.screen.notes


def _ready(number: int) -> object:
    from bamboo.core.events import StopReady

    return StopReady(node=node(number), step=1)


def test_the_end_of_the_trace_is_said_once(tmp_path: Path) -> None:
    played = settled(tmp_path, FOUR + "2000,add,n9\n", seats=4, scale=1.0)
    world = World(job())
    world._script = [joined(), *[[] for _ in range(6)], [step(0), step(1), step(2)],
                     finished(2, 0, 1, 2, 3), left(0, 1, 2, 3)]  # fmt: skip
    playing(world, played).run()
    assert world.screen.notes == ["the trace ends here: its 4 nodes stay, and no more come"]
    assert world.clock_s > START_S
