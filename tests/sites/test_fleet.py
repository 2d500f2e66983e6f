"""The launcher's fleet: replaces what goes, keeps what could not be done yet."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.core.events import (
    HandedOver,
    NoticeReceived,
    PeerLost,
    RebalanceAdvised,
    Speed,
    SpeedsMeasured,
    StopRequested,
)
from bamboo.core.state import Outcome
from bamboo.core.straggler import ROUNDS
from bamboo.errors import BambooError, InputError
from bamboo.ids import InstanceId, RunId, ZoneId
from bamboo.sites.fleet import GRACE_S
from cloud.ending import StillLive
from cloud.provider import CloudRefused, CloudThrottled, CloudUnavailable, Launched, Market, Pool
from tests.sites.run_fleets import GANG, Parts, forming, journal, state

LAUNCHED = Launched(
    instance=InstanceId("i-1"),
    pool=Pool(instance_type="g4dn.xlarge", zone=ZoneId("us-east-1a"), market=Market.SPOT),
    token="t",
)


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def test_there_is_an_instance_for_each_slot_and_standby(parts: Parts) -> None:
    parts.made.reconcile(forming())
    parts.made.reconcile(state())
    assert parts.fleet.calls == [("ensure", (5,)), ("ensure", (5,))]
    assert parts.notes == ["one; two"]


def test_a_start_and_a_replacement_as_expected_are_details(parts: Parts) -> None:
    parts.fleet.launched = (LAUNCHED,)
    parts.made.reconcile(forming())
    assert (parts.details, parts.notes) == (["one; two"], [])
    parts.made._say("no capacity")
    parts.made.reconcile(forming())
    assert parts.notes == ["no capacity", "one; two"], "it came to another start than planned"


def test_what_is_lost_or_has_a_notice_is_replaced_at_once(parts: Parts) -> None:
    nodes = state().nodes
    lost = PeerLost(node=nodes[1].id, reporter="test", cause="disconnect")
    noticed = NoticeReceived(node=nodes[3].id, deadline_s=1e10)
    parts.made.reconcile(state(lost, noticed))
    gone = sorted((nodes[1].instance, nodes[3].instance))
    assert parts.fleet.calls == [("ensure", (5, *gone))]


def test_no_more_are_started_than_it_is_told(parts: Parts) -> None:
    lost = PeerLost(node=state().nodes[1].id, reporter="test", cause="disconnect")
    for new in (None, 1, 0):
        parts.made.reconcile(state(lost), new=new)
    assert parts.fleet.may_start == [None, 1, 0]


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


def test_one_more_while_a_slow_node_is_to_be_replaced(parts: Parts) -> None:
    """It is there before the slow one goes, and nobody is started for its place then."""
    trains = state()
    assert trains.assignment is not None
    owners = trains.assignment.owners
    speeds = tuple(Speed(node=node, speed=0.5 if node == owners[0] else 1.0) for node in owners)
    slow = [SpeedsMeasured(reporter="launcher", era=trains.era, speeds=speeds)] * ROUNDS
    for events in (slow[1:], slow):
        parts.made.reconcile(state(*events))
    assert parts.fleet.calls == [("ensure", (5,)), ("ensure", (6,))]


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


def test_a_cloud_of_this_machine_that_cannot_be_reached_forms_no_run(parts: Parts) -> None:
    parts.fleet.trouble = CloudUnavailable("DescribeInstances got no answer: a long story")
    parts.cloud.trouble = "the mock is stopped"
    parts.made.reconcile(forming())
    assert parts.notes == ["the mock is stopped"], "at the first call that it does not answer"
    parts.now_s = 9.0
    parts.made.reconcile(forming())
    parts.now_s = 10.0
    with pytest.raises(BambooError, match="the mock is stopped"):
        parts.made.reconcile(forming())


def test_one_that_was_reached_in_between_has_its_time_again(parts: Parts) -> None:
    parts.cloud.trouble = "the mock is stopped"
    for now_s in range(0, 30, 6):
        parts.now_s = float(now_s)
        parts.fleet.trouble = CloudUnavailable("no answer")
        parts.made.reconcile(forming())
        parts.fleet.trouble = None
        parts.made.reconcile(forming())
    assert len(parts.fleet.calls) == 10


def test_a_run_that_trains_goes_on_without_the_cloud_of_this_machine(parts: Parts) -> None:
    parts.fleet.trouble = CloudUnavailable("no answer")
    parts.cloud.trouble = "the mock is stopped"
    for now_s in range(0, 100, 10):
        parts.now_s = float(now_s)
        parts.made.reconcile(state())
    assert parts.notes == ["the mock is stopped"]


def test_an_answer_that_is_no_use_does_not_count_as_none(parts: Parts) -> None:
    parts.fleet.trouble = CloudUnavailable("InternalError: ask again later")
    for now_s in range(0, 100, 10):
        parts.now_s = float(now_s)
        parts.made.reconcile(forming())
    assert parts.notes == ["InternalError: ask again later"]


def test_a_planned_preemption_of_what_is_gone_is_told_not_raised(parts: Parts) -> None:
    parts.made.preempt(InstanceId("i-gone"), notice_s=0.0)
    parts.made.preempt(InstanceId("i-1"), notice_s=2.0)
    assert parts.cloud.taken == [("i-1", 2.0)]
    assert parts.notes == ["a planned preemption did not happen: instance 'i-gone' does not run"]
