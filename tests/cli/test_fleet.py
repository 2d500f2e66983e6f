"""The launcher's fleet: replaces what goes, keeps what could not be done yet."""

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from bamboo.core.events import (
    Event,
    HandedOver,
    NoticeReceived,
    PeerLost,
    RebalanceAdvised,
    StopRequested,
)
from bamboo.core.state import Outcome, State
from bamboo.errors import BambooError, InputError
from bamboo.ids import InstanceId, RunId, ZoneId
from cli.fleet import GRACE_S, RunFleet
from cli.site import Site
from cloud.ending import StillLive
from cloud.fleet import Fleet, Report
from cloud.provider import CloudRefused, CloudThrottled, CloudUnavailable
from cloud.reconcile import Gang
from tests.cli.world import World, job, joined

GANG = Gang(nodes=4, within_s=60.0)
ZONES = {ZoneId("us-east-1a"): 3, ZoneId("us-east-1b"): 2}


class FakeCloudFleet:
    """What `cloud.Fleet` is asked; `trouble` is raised while it is set."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.limits: list[tuple[int, Gang | None]] = []
        self.trouble: Exception | None = None
        self.on_call: Callable[[], None] = lambda: None

    def _call(self, name: str, value: Any) -> None:
        self.on_call()
        self.calls.append((name, value))
        if self.trouble is not None:
            raise self.trouble

    def ensure(
        self,
        count: int,
        *,
        leaving: Collection[InstanceId],
        zones: Mapping[ZoneId, int] | None,
        anchors: int,
        gang: Gang | None,
        most: int,
        lasts_until_s: float,
    ) -> Report:
        assert (zones, anchors) == (ZONES, 1)
        self.lasts_until_s = lasts_until_s
        self.limits.append((most, gang))
        self._call("ensure", (count, *sorted(leaving)))
        return Report(live=count, launched=(), terminated=(), refusals=(), reasons=("one", "two"))

    def terminate(self, instance: InstanceId, *, reason: str) -> None:
        self._call("terminate", instance)

    def terminate_all(self, *, deadline_s: float, waiting: Callable[[str], None]) -> None:
        self._call("terminate_all", None)


class FakeLocalCloud:
    def __init__(self) -> None:
        self.is_alive = True
        self.end_s = 15.0
        self.taken: list[tuple[str, float]] = []

    def alive(self) -> bool:
        return self.is_alive

    def preempt(self, instance: InstanceId, *, notice_s: float, cause: str) -> None:
        if instance == "i-gone":
            raise InputError("instance 'i-gone' does not run")
        self.taken.append((instance, notice_s))

    def not_ended(self, error: StillLive) -> BambooError:
        return BambooError(f"still {error.names}; it is ended by force")


class Parts:
    def __init__(self, folder: Path, *, most: int = 0) -> None:
        self.fleet = FakeCloudFleet()
        self.cloud = FakeLocalCloud()
        self.notes: list[str] = []
        self.now_s = 0.0
        self.journal = folder / "cloud.jsonl"
        self.kills = folder / "kills.jsonl"
        self.made = RunFleet(
            cast(Fleet, self.fleet),
            cast(Site, self.cloud),
            journal=self.journal,
            kills=self.kills,
            on_demand_usd_per_hour={"g4dn.xlarge": 0.526},
            note=self.notes.append,
            nodes=5,
            zones=ZONES,
            most=most,
            anchors=1,
            gang=GANG,
            join_s=120.0,
            now=lambda: self.now_s,
        )


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def state(*events: Event) -> State:
    """Four members, and what happened since."""
    world = World(job())
    world.do(joined())
    for event in events:
        world.do(event)
    return world.driver.state()


def journal(
    parts: Parts, started: Mapping[InstanceId, float], *, ended: Collection[InstanceId] = ()
) -> None:
    """The cloud's journal: instances with the times of their start, and who has ended."""
    facts = {"instance_type": "g4dn.xlarge", "zone": "a", "market": "spot", "usd_per_hour": 0.2}
    lines = [{"kind": "start", "instance": i, "t": t, **facts} for i, t in started.items()]
    lines += [{"kind": "end", "instance": i, "t": 99.0, "cause": "end"} for i in ended]
    parts.journal.write_text("".join(json.dumps(line) + "\n" for line in lines))


def forming() -> State:
    return World(job()).driver.state()


def test_there_is_an_instance_for_each_slot_and_standby(parts: Parts) -> None:
    parts.made.reconcile(forming())
    parts.made.reconcile(state())
    assert parts.fleet.calls == [("ensure", (5,)), ("ensure", (5,))]
    assert parts.notes == ["one; two"]


def test_what_is_lost_or_has_a_notice_is_replaced_at_once(parts: Parts) -> None:
    nodes = state().nodes
    lost = PeerLost(node=nodes[1].id, reporter="test", cause="disconnect")
    noticed = NoticeReceived(node=nodes[3].id, deadline_s=1e10)
    parts.made.reconcile(state(lost, noticed))
    gone = sorted((nodes[1].instance, nodes[3].instance))
    assert parts.fleet.calls == [("ensure", (5, *gone))]


def test_a_notice_that_the_cloud_does_not_keep_ends_the_instance_once(parts: Parts) -> None:
    node = state().nodes[2]
    noticed = NoticeReceived(node=node.id, deadline_s=1000.0)
    left = state(noticed, HandedOver(node=node.id, step=3))
    for now_s in (990.0, 1000.0 + GRACE_S, 1001.0 + GRACE_S, 1002.0 + GRACE_S):
        parts.now_s = now_s
        parts.made.reconcile(left)
    ended = [value for name, value in parts.fleet.calls if name == "terminate"]
    assert ended == [node.instance]


def test_the_instance_of_a_node_that_is_gone_is_ended_once(parts: Parts) -> None:
    """Also where nobody was there to perform the decision's effect, or its log is lost."""
    nodes = state().nodes
    journal(parts, {node.instance: 10.0 for node in nodes}, ended=[nodes[3].instance])
    gone = [PeerLost(node=nodes[n].id, reporter="test", cause="disconnect") for n in (1, 3)]
    for _ in range(3):
        parts.made.reconcile(state(*gone))
    assert [v for name, v in parts.fleet.calls if name == "terminate"] == [nodes[1].instance]


def test_one_that_was_asked_for_by_its_effect_is_not_asked_for_again(parts: Parts) -> None:
    node = state().nodes[1]
    journal(parts, {node.instance: 10.0})
    parts.made.terminate(node.instance, reason="it is gone")
    parts.made.reconcile(state(PeerLost(node=node.id, reporter="test", cause="disconnect")))
    assert [v for name, v in parts.fleet.calls if name == "terminate"] == [node.instance]


def test_however_often_an_end_is_asked_for_the_cloud_hears_it_once(parts: Parts) -> None:
    """Also where it gave no answer at first: then the next turn asks, and no other."""
    for instance in ("i-1", "i-2"):
        parts.fleet.trouble = CloudUnavailable("no answer") if instance == "i-2" else None
        for _ in range(3):
            parts.made.terminate(InstanceId(instance), reason="no more nodes are wanted")
    assert parts.fleet.calls == [("terminate", "i-1"), ("terminate", "i-2")]
    parts.fleet.trouble = None
    for _ in range(2):
        parts.made.reconcile(state())
    assert [v for name, v in parts.fleet.calls if name == "terminate"] == ["i-1", "i-2", "i-2"]


def test_one_more_for_each_node_that_the_cloud_advises_to_leave(parts: Parts) -> None:
    """It is there before a notice, takes the place after it, and is not started twice."""
    one, two = (node.id for node in state().nodes[:2])
    advised = (RebalanceAdvised(node=one), RebalanceAdvised(node=one), RebalanceAdvised(node=two))
    noticed = NoticeReceived(node=one, deadline_s=1e10)
    lost = PeerLost(node=two, reporter="test", cause="disconnect")
    for events in (advised[:1], advised, (*advised, noticed), (*advised, noticed, lost)):
        parts.made.reconcile(state(*events))
    instances = [node.instance for node in state().nodes[:2]]
    assert parts.fleet.calls == [
        ("ensure", (6,)),
        ("ensure", (7,)),
        ("ensure", (6, instances[0])),
        ("ensure", (5, *sorted(instances))),
    ]


def test_the_budget_holds_always_and_the_gang_while_the_run_forms(tmp_path: Path) -> None:
    parts = Parts(tmp_path, most=5)
    parts.made.reconcile(forming())
    parts.made.reconcile(state())
    assert parts.fleet.limits == [(5, GANG), (5, None)]


def test_the_fleet_is_told_how_long_the_money_lasts(parts: Parts) -> None:
    parts.made.reconcile(state())
    assert parts.fleet.lasts_until_s == math.inf, "there is no limit"
    parts.made._max_usd, parts.made._dearest_usd_per_hour = 10.0, 2.0
    parts.made.reconcile(state())
    assert parts.fleet.lasts_until_s == 3600.0, "five nodes, none of which has a price yet"
    nodes = {node.instance: 0.0 for node in state().nodes}
    journal(parts, nodes)
    parts.now_s = 3600.0
    parts.made.reconcile(state())
    paid = {one.usd_per_hour for one in parts.made.rented()}
    (usd_per_hour,) = paid
    spent = len(nodes) * usd_per_hour
    lasts_h = (10.0 - spent) / (5 * usd_per_hour)
    assert parts.fleet.lasts_until_s == pytest.approx(3600.0 * (1 + lasts_h), rel=1e-3)


def test_a_node_that_is_given_back_does_not_count_and_is_not_ended_yet(parts: Parts) -> None:
    """It hands on what it holds first; the run says when it has left."""
    before = state()
    leaving = before.with_nodes(replace(before.nodes[3], released=True))
    parts.made.reconcile(leaving, nodes=3)
    assert parts.fleet.calls == [("ensure", (3, before.nodes[3].instance))]


def test_an_instance_that_no_node_comes_from_is_ended_once(parts: Parts) -> None:
    """Its agent may have left for good: it would count as there, and never be replaced."""
    joined_s, mute_s = 10.0, 20.0
    started = {state().nodes[0].instance: joined_s, InstanceId("i-mute"): mute_s}
    journal(parts, started)
    for now_s in (mute_s + 119.0, mute_s + 121.0, mute_s + 122.0):
        parts.now_s = now_s
        parts.made.reconcile(state())
    ended = [value for name, value in parts.fleet.calls if name == "terminate"]
    assert ended == ["i-mute"]


def test_nothing_is_replaced_once_the_run_is_to_end(parts: Parts) -> None:
    parts.made.reconcile(state(StopRequested(reason="enough", outcome=Outcome.STOPPED)))
    assert parts.fleet.calls == []


def test_a_refused_replacement_ends_nothing(parts: Parts) -> None:
    parts.fleet.trouble = CloudRefused("no quota")
    parts.made.reconcile(state())
    assert parts.notes == ["no replacement: no quota"]
    with pytest.raises(CloudRefused):
        parts.made.reconcile(forming())


@pytest.mark.parametrize("trouble", [CloudThrottled("slow"), CloudUnavailable("away")])
def test_a_termination_is_repeated_until_it_was_taken(parts: Parts, trouble: Exception) -> None:
    parts.fleet.trouble = trouble
    parts.made.terminate(InstanceId("i-1"), reason="lost")
    parts.made.reconcile(state())
    assert parts.notes == [str(trouble)]
    parts.fleet.trouble = None
    parts.made.reconcile(state())
    parts.made.reconcile(state())
    assert parts.fleet.calls[:3] == [("terminate", "i-1")] * 3
    assert {name for name, _ in parts.fleet.calls[3:]} == {"ensure"}


def test_expired_credentials_end_no_run_and_the_lost_one_is_ended_with_new_ones(
    parts: Parts,
) -> None:
    parts.fleet.trouble = CloudRefused("ExpiredToken: renew them")
    parts.made.terminate(InstanceId("i-1"), reason="lost")
    for _ in range(3):
        parts.made.reconcile(state())
    mourned = "an instance is not ended yet and is paid for: ExpiredToken: renew them"
    assert parts.notes == [mourned, f"{mourned}; no replacement: ExpiredToken: renew them"]
    parts.fleet.trouble = None
    parts.fleet.calls.clear()
    parts.made.reconcile(state())
    parts.made.reconcile(state())
    assert parts.fleet.calls == [("terminate", "i-1"), ("ensure", (5,)), ("ensure", (5,))]


def test_one_that_may_not_be_ended_keeps_no_other_from_being_replaced(parts: Parts) -> None:
    def refuse_ends() -> None:
        ends = len(parts.fleet.calls) % 2 == 0
        parts.fleet.trouble = CloudRefused("UnauthorizedOperation") if ends else None

    parts.fleet.on_call = refuse_ends
    parts.made.terminate(InstanceId("i-1"), reason="lost")
    parts.fleet.calls.clear()
    parts.made.reconcile(state())
    assert parts.fleet.calls == [("terminate", "i-1"), ("ensure", (5,))]


def test_a_refusal_for_good_is_raised(parts: Parts) -> None:
    parts.fleet.trouble = InputError("no such type")
    with pytest.raises(InputError):
        parts.made.reconcile(forming())


def test_the_end_of_everything_needs_a_live_cloud(parts: Parts) -> None:
    parts.cloud.is_alive = False
    parts.made.terminate_all()
    assert parts.fleet.calls == []
    parts.cloud.is_alive = True
    parts.made.terminate_all()
    assert parts.fleet.calls == [("terminate_all", None)]


def test_an_end_that_the_cloud_does_not_answer_is_waited_for_once(parts: Parts) -> None:
    parts.fleet.trouble = StillLive(RunId("r"), "i-1, i-2")
    with pytest.raises(BambooError, match=r"still i-1, i-2; .*force"):
        parts.made.terminate_all()
    parts.made.terminate_all()  # what follows is the end of the cloud itself
    assert parts.fleet.calls == [("terminate_all", None)]


def test_a_silent_cloud_does_not_hold_up_every_turn(parts: Parts) -> None:
    parts.fleet.trouble = CloudUnavailable("no answer")
    parts.fleet.on_call = lambda: setattr(parts, "now_s", parts.now_s + 5.0)
    for _ in range(100):
        parts.made.reconcile(state())
        parts.now_s += 0.5
    assert len(parts.fleet.calls) == 5  # in 75 s, of which they took a third
    assert parts.notes == ["no answer"]


def test_a_planned_preemption_of_what_is_gone_is_told_not_raised(parts: Parts) -> None:
    parts.made.preempt(InstanceId("i-gone"), notice_s=0.0)
    parts.made.preempt(InstanceId("i-1"), notice_s=2.0)
    assert parts.cloud.taken == [("i-1", 2.0)]
    assert parts.notes == ["a planned preemption did not happen: instance 'i-gone' does not run"]


def test_the_journal_is_the_bill(parts: Parts) -> None:
    def append(path: Path) -> Callable[..., None]:
        def write(**record: Any) -> None:
            with path.open("a") as file:
                file.write(json.dumps(record) + "\n")

        return write

    cloud = append(parts.journal)
    cloud(kind="start", t=10.0, instance="i-1", zone="a", instance_type="g4dn.xlarge",
          market="spot", usd_per_hour=0.2)  # fmt: skip
    cloud(kind="start", t=11.0, instance="i-2", zone="a", instance_type="g4dn.xlarge",
          market="spot", usd_per_hour=None)  # fmt: skip
    assert [(r.instance, r.usd_per_hour, r.ended_at_s) for r in parts.made.rented()] == [
        ("i-1", 0.2, None), ("i-2", 0.526, None),
    ]  # fmt: skip
    cloud(kind="agent-end", t=12.0, instance="i-2", status=0)
    cloud(kind="end", t=20.0, instance="i-1", cause="interrupted")
    cloud(kind="end", t=21.0, instance="i-2", cause="terminated")
    assert [(r.ended_at_s, r.interrupted) for r in parts.made.rented()] == [
        (20.0, True), (21.0, False),
    ]  # fmt: skip
    cloud(kind="end", t=22.0, instance="i-other", cause="terminated")
    with pytest.raises(ValueError, match="'i-other': it stands before its start"):
        parts.made.rented()


def test_kill_stamps_by_instance_or_by_node(parts: Parts) -> None:
    assert parts.made.kill_stamps_s() == {}
    parts.kills.write_text(
        '{"t_monotonic_ns":1500000000,"instance":"i-1"}\n'
        '{"t_monotonic_ns":2500000000,"node":"i-2.0"}\n'
    )
    assert parts.made.kill_stamps_s() == {"i-1": 1.5, "i-2": 2.5}
