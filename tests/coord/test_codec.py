"""Everything written is read back equal; everything else is refused by name."""

import dataclasses
import json
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.coord.codec import (
    SCHEMA_VERSION,
    Begin,
    Committed,
    decode_effects,
    decode_entry,
    decode_event,
    decode_state,
    encode_effects,
    encode_entry,
    encode_event,
    encode_state,
    shape_of,
    state_hash,
)
from bamboo.core.effects import Drain, Effect, Start
from bamboo.core.events import Event, FaultScope, NodeJoined, NoticeReceived, Pace, PeerLost, Speed
from bamboo.core.state import (
    Attestation,
    Built,
    Checkpoint,
    Emergency,
    Evaluated,
    Fact,
    Failover,
    Faults,
    Holding,
    Keep,
    Move,
    Node,
    Norm,
    Outcome,
    Part,
    Phase,
    Policy,
    Prefetch,
    Preparing,
    Proposal,
    Reconfiguration,
    Report,
    Saving,
    Slow,
    State,
    SyncChoice,
)
from bamboo.errors import UnreadableRecord
from bamboo.ids import InstanceId, NodeId, RunId, ZoneId
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import canonical_json
from tests.core.build import POLICY, apply, forming, lost, running

names = st.text(max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 10**6)
slots = st.builds(Slot, pipeline=st.integers(0, 9), stage=st.integers(0, 99))
by_type: dict[Any, st.SearchStrategy[Any]] = {
    str: names,
    NodeId: names.map(NodeId),
    InstanceId: names.map(InstanceId),
    ZoneId: names.map(ZoneId),
    int: counts,
    bool: st.booleans(),
    float: finite,
    float | None: st.none() | finite,
    Slot: slots,
    Outcome: st.sampled_from(Outcome),
    FaultScope: st.sampled_from(FaultScope),
    tuple[NodeId, ...]: st.lists(names.map(NodeId), max_size=3).map(tuple),
    tuple[Holding, ...]: st.lists(
        st.builds(Holding, first=counts, stop=counts, step=counts, reach=counts), max_size=3
    ).map(tuple),
    tuple[Speed, ...]: st.lists(st.builds(Speed, speed=finite), max_size=2).map(tuple),
    tuple[Pace, ...]: st.lists(st.builds(Pace, microbatch_s=finite), max_size=2).map(tuple),
    tuple[Fact, ...]: st.lists(st.builds(Fact, name=names, value=names), max_size=2).map(tuple),
    tuple[Norm, ...]: st.lists(st.builds(Norm, step=counts, total_square=finite), max_size=2).map(
        tuple
    ),
}


def values_of(kind: type) -> st.SearchStrategy[Any]:
    """Any value of a dataclass of plain fields; of words, as in `to: Fleet`, one of them."""
    hints = get_type_hints(kind)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(kind)}

    def one(wanted: Any) -> st.SearchStrategy[Any]:
        return by_type[wanted] if wanted in by_type else st.sampled_from(get_args(wanted))

    return st.builds(kind, **{name: one(wanted) for name, wanted in fields.items()})


events = st.one_of([values_of(kind) for kind in get_args(Event)])
effects = st.one_of([values_of(kind) for kind in get_args(Effect)])
node_ids = names.map(NodeId)
nodes = st.builds(Node, notice_deadline_s=st.none() | finite)


@st.composite
def states(draw: st.DrawFn) -> State:
    grid = Grid(pipelines=draw(st.integers(1, 3)), stages=draw(st.integers(2, 4)))
    placed = Assignment(
        grid=grid,
        owners=tuple(draw(node_ids) for _ in range(grid.size)),
        shadows=tuple(draw(st.none() | node_ids) for _ in range(grid.size)),
    )
    return State(
        run=RunId(draw(names)),
        version=draw(counts),
        generation=draw(counts),
        phase=draw(st.sampled_from(Phase)),
        grid=grid,
        redundancy=draw(names),
        nodes=tuple(draw(st.lists(nodes, max_size=3))),
        assignment=draw(st.none() | st.just(placed)),
        failovers=tuple(draw(st.lists(st.builds(Failover, decided_at_s=finite), max_size=2))),
        stop_reason=draw(st.none() | names),
        stop_outcome=draw(st.none() | st.sampled_from(Outcome)),
        stop_ready=tuple(draw(st.lists(st.tuples(node_ids, counts), max_size=3))),
        stop_at_step=draw(st.none() | counts),
        finished=tuple(draw(st.lists(node_ids, max_size=3))),
        outcome=draw(st.none() | st.sampled_from(Outcome)),
        sentence=draw(names),
    )


@given(events)
def test_events_come_back_equal(event: Event) -> None:
    text = encode_event(event)
    assert decode_event(text) == event
    assert encode_event(decode_event(text)) == text


@given(st.lists(effects, max_size=4).map(tuple))
def test_effects_come_back_equal(given_effects: tuple[Effect, ...]) -> None:
    assert decode_effects(encode_effects(given_effects)) == given_effects


@given(states())
def test_states_come_back_equal(state: State) -> None:
    text = encode_state(state)
    assert decode_state(text) == state
    assert encode_state(decode_state(text)) == text
    assert state_hash(decode_state(text)) == state_hash(state)


@given(events, st.lists(effects, max_size=3).map(tuple), finite, names)
def test_entries_come_back_equal(
    event: Event, given_effects: tuple[Effect, ...], now_s: float, text: str
) -> None:
    entry = Committed(
        event=event,
        now_s=now_s,
        effects=given_effects,
        reason=text,
        state_hash="0" * 16,
        author=text,
        token=text,
    )
    assert decode_entry(encode_entry(entry)) == entry


def test_the_first_entry_comes_back_equal() -> None:
    begin = Begin(state=forming(2, 3), policy=Policy(suspect_s=0.5, gone_s=2.0), at_s=7.5)
    assert decode_entry(encode_entry(begin)) == begin


def test_the_text_is_canonical_and_plain() -> None:
    event = NoticeReceived(node=NodeId("a.1"), deadline_s=9)
    assert encode_event(event) == (
        '{"event":{"deadline_s":9.0,"kind":"NoticeReceived","node":"a.1"},"v":15}'
    )
    assert encode_effects((Start(to=NodeId("a.1")), Drain(to=NodeId("b.1")))) == (
        '{"effects":[{"kind":"Start","to":"a.1"},{"kind":"Drain","to":"b.1"}],"v":15}'
    )


def test_the_hash_sees_every_field() -> None:
    state = apply(running(), lost("n02.1")).state
    others = {
        field.name: _another(field.name, getattr(state, field.name))
        for field in dataclasses.fields(state)
    }
    hashes = {
        state_hash(dataclasses.replace(state, **{name: value})) for name, value in others.items()
    }
    assert len(hashes) == len(others)
    assert state_hash(state) not in hashes


MOVE = Move(slot=Slot(pipeline=0, stage=1), source=NodeId("a"), receiver=NodeId("b"), since=3)


PREPARING = Preparing(
    since=3,
    why="why",
    feeds=(
        Prefetch(
            slot=MOVE.slot,
            source=NodeId("n01.1"),
            receiver=NodeId("n00.1"),
            first=1,
            stop=3,
            since=3,
        ),
    ),
    prepared=((NodeId("n00.1"), 12),),
)


REFORM = Reconfiguration(
    since=3,
    why="why",
    planned=False,
    intact=False,
    shares=(3, 1),
    ahead=PREPARING,
    asked=(NodeId("n00.1"),),
    owners=(NodeId("n00.1"),),
    ready=((NodeId("n00.1"), 4),),
    boundary=4,
    reports=(
        Report(
            node=NodeId("n00.1"),
            holdings=(Holding(first=0, stop=2, step=5, reach=6),),
            norms=(Norm(step=5, total_square=0.1),),
        ),
    ),
    save=True,
    keep=Keep(
        step=6,
        era=4,
        total_square=0.1,
        parts=(Part(node=NodeId("n00.1"), layers=(0, 1)),),
        stored=(0,),
        committer=NodeId("n00.1"),
        unable=(NodeId("n00.1"),),
    ),
    base=6,
    checkpoint=True,
    total_square=0.1,
    rebuilt=(Built(node=NodeId("n00.1"), bytes=12),),
)


def test_a_reconfiguration_comes_back_equal() -> None:
    state = dataclasses.replace(running(), reconfiguration=REFORM)
    assert decode_state(encode_state(state)) == state


def _another(name: str, value: Any) -> Any:
    others: dict[str, Any] = {
        "phase": Phase.DEGRADED,
        "grid": Grid(pipelines=2, stages=2),
        "assignment": None,
        "stop_outcome": Outcome.STOPPED,
        "outcome": Outcome.DONE,
        "stop_ready": ((NodeId("n00.1"), 3),),
        "stop_at_step": 3,
        "stalled_step": 0,
        "stop_reason": "x",
        "finished": (NodeId("n00.1"),),
        "moves": (MOVE,),
        "cut": (0, 1),
        "shares": (1,),
        "checkpoints": (Checkpoint(step=4, era=1),),
        "saving": (Saving(step=4, stages=(1,), committer=NodeId("n00.1")),),
        "reconfiguration": REFORM,
        "emergency": Emergency(since=3, by_s=7.5, stages=(1,)),
        "preparing": PREPARING,
        "faults": Faults(tries=2, nodes=3, at_s=7.0, known=4, reason="x"),
        "slow": (Slow(node=NodeId("n00.1"), rounds=2),),
        "retiring": NodeId("n00.1"),
        "attested": Attestation(
            node=NodeId("n00.1"), numerics=(Fact(name="torch", value="2.13.0"),)
        ),
        "relieved": (MOVE.slot,),
        "evaluated": Evaluated(step=10, best=2.5, best_step=10),
        "syncs": (SyncChoice(number=1, hash="h", from_step=4, why="x"),),
        "proposal": Proposal(since=4, hash="h", why="x", ready=(NodeId("n00.1"),)),
    }
    if name in others:
        return others[name]
    if isinstance(value, int):
        return value + 1
    return value[:-1]


def altered(text: str, **changes: Any) -> str:
    return canonical_json(json.loads(text) | changes)


JOINED = encode_event(
    NodeJoined(node=NodeId("a.1"), instance=InstanceId("a"), zone=ZoneId("z"), endpoint="x", pid=1)
)
LOST = encode_event(PeerLost(node=NodeId("a.1"), reporter="b", cause="exit"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("[1]", "schema version None"),
        (altered(LOST, v=99), f"schema version 99 and this program reads {SCHEMA_VERSION}"),
        (altered(LOST, more=1), "fields more do not fit"),
        (altered(LOST, event=None), "unknown kind None"),
        (altered(LOST, event={"kind": "PeerFound"}), "unknown kind 'PeerFound'"),
        (altered(LOST, event={"kind": "Start", "to": "a"}), "unknown kind 'Start'"),
        (altered(LOST, event={"kind": ["PeerLost"]}), "unknown kind"),
        (LOST.replace('"cause":"exit",', ""), "fields cause of PeerLost do not fit"),
        (LOST.replace('"exit"', "3"), "PeerLost.cause is 3"),
        (JOINED.replace('"pid":1', '"pid":true'), "NodeJoined.pid is True"),
        (JOINED.replace('"pid":1', '"pid":1.0'), "NodeJoined.pid is 1.0"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, says: str) -> None:
    with pytest.raises(UnreadableRecord, match=says):
        decode_event(text)


STATE = encode_state(apply(running(), lost("n02.1")).state)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"phase":"failing_over"', '"phase":"asleep"', r"state.phase is 'asleep', not one of"),
        ('"slot":"0.2"', '"slot":"0-2"', r"state.failovers\[0\].slot is '0-2'"),
        ('"slot":"0.2"', '"slot":7', r"state.failovers\[0\].slot is 7"),
        ('"stages":4', '"stages":0', "no Grid: a grid needs"),
        ('"finished":[]', '"finished":{}', "state.finished is {}, not a list"),
        ('"stop_ready":[]', '"stop_ready":[["a"]]', r"stop_ready\[0\] has 1 values, not 2"),
        ('"decided_at_s":0.0', '"decided_at_s":"now"', "decided_at_s is 'now', not a finite"),
        ('"failovers":[{', '"failovers":[3,{', r"failovers\[0\] is 3, not a Failover"),
    ],
)
def test_a_spoilt_state_names_the_place(old: str, new: str, says: str) -> None:
    assert old in STATE
    with pytest.raises(UnreadableRecord, match=says):
        decode_state(STATE.replace(old, new))


def test_effects_and_entries_are_checked_too() -> None:
    with pytest.raises(UnreadableRecord, match="not a list"):
        decode_effects('{"v":15,"effects":{}}')
    fleet = '{"v":15,"effects":[{"kind":"TerminateAll","to":"somebody"}]}'
    with pytest.raises(UnreadableRecord, match=r"TerminateAll\.to is 'somebody', not one of"):
        decode_effects(fleet)
    with pytest.raises(UnreadableRecord, match="do not fit"):
        decode_entry('{"v":15,"event":{}}')
    begin = encode_entry(Begin(state=forming(), policy=POLICY, at_s=1.0))
    with pytest.raises(UnreadableRecord, match=r"begin\.at_s is None"):
        decode_entry(begin.replace('"at_s":1.0', '"at_s":null'))


def test_only_known_values_are_written() -> None:
    with pytest.raises(TypeError, match="is none of Attested"):
        encode_event(Start(to=NodeId("a")))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="has no form in a document"):
        shape_of(dict[str, int])
