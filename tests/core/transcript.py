"""Golden transcripts of the state machine: events in, decisions out, as text that a person reads.

A scenario file has comments (`# ...`), one line of settings, and events, one a line:

    grid 1x4 redundancy stash
    0.0 joined a.1 b.1 c.1 d.1 zone=z1
    5.0 PeerLost node=c.1 reporter=b.1 cause="the plug was pulled"

The time is in seconds. An event's fields are written `name=value`, with quotes around text that
has spaces; NodeJoined may leave out instance, endpoint and pid, NodeFailed and Attested instance
and zone, PeerLost its cause; `joined` is a NodeJoined for each node named, of which only the last
is answered. Below each event stands what the machine answered, indented; those lines are written
by the runner:
`BAMBOO_WRITE_GOLDEN=1 pytest tests/core/test_scenarios.py` rewrites them in place. To add a
scenario, write comments, settings and events, run that once, and read every line of the answer.
"""

import shlex
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from bamboo.core import effects, events
from bamboo.core.invariants import check, check_cause, check_step
from bamboo.core.machine import transition
from bamboo.core.numerics import facts_of
from bamboo.core.state import Fact, Holding, Norm, Outcome, Policy, State, initial_state
from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId, run_id
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot

INDENT = "    "
EVENTS = {kind.__name__: kind for kind in get_args(events.Event)}


def play(text: str) -> str:
    """The scenario with the machine's present answers below its events.

    Raises ValueError, with the line, for what cannot be read.
    """
    out: list[str] = []
    state: State | None = None
    policy = Policy()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(INDENT):
            continue
        out.append(line)
        words = shlex.split(line, comments=True)
        if not words:
            continue
        try:
            if words[0] == "grid":
                state, policy = _settings(words)
                continue
            if state is None:
                raise ValueError("the settings must come first: grid 1x4 redundancy stash")
            now_s, named = float(words[0]), _events(words[1], words[2:])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number}: {line!r}: {error}") from error
        answer: list[str] = []
        for event in named:
            state, answer = _answer(state, event, now_s, policy)
        out += [INDENT + said for said in answer]
    return "\n".join(out) + "\n"


def _settings(words: list[str]) -> tuple[State, Policy]:
    given = dict(zip(words[::2], words[1::2], strict=True))
    pipelines, stages = given["grid"].split("x")
    grid = Grid(pipelines=int(pipelines), stages=int(stages))
    state = initial_state(run=run_id("scenario"), grid=grid, redundancy=given["redundancy"])
    figures = {name: float(given[name]) for name in ("suspect_s", "gone_s") if name in given}
    policy = Policy(
        cuts=_cuts(int(given.get("layers", 0)), grid.stages),
        virtual_nodes=int(given.get("virtual", grid.pipelines)),
        pipelines=int(given.get("pipelines", grid.pipelines)),
        stages=grid.stages,
        checkpoint_every=int(given.get("every", 0)),
        layer_bytes=(int(given.get("bytes", 0)),) * int(given.get("layers", 0)),
        store_bytes_per_s=float(given.get("rate", 0)),
        notice_s=float(given.get("notice", 120)),
        steps=int(given.get("steps", 0)),
        eval_every=int(given.get("evaluate", 0)),
        eval_patience=int(given.get("patience", 0)),
        spread=given.get("spread", "one"),
        **figures,
    )
    return state, policy


def _cuts(layers: int, stages: int) -> tuple[tuple[int, ...], ...]:
    if not layers:
        return ()
    return tuple(
        tuple(stage * layers // number for stage in range(number + 1))
        for number in range(2, stages + 1)
    )


def _events(kind: str, words: list[str]) -> list[events.Event]:
    if kind != "joined":
        return [_event(kind, words)]
    nodes = [word for word in words if "=" not in word]
    common = [word for word in words if "=" in word]
    return [_event("NodeJoined", [f"node={node}", *common]) for node in nodes]


def _event(kind: str, words: list[str]) -> events.Event:
    given: dict[str, str] = dict(word.split("=", 1) for word in words)
    if kind == "NodeJoined":
        node = given["node"]
        given = {"instance": node.split(".")[0], "endpoint": f"ipc:///{node}", "pid": "1"} | given
    if kind in ("NodeFailed", "Attested"):
        given = {"instance": given["node"].split(".")[0], "zone": "z1"} | given
    if kind == "PeerLost":
        given = {"cause": "disconnect"} | given
    hints = get_type_hints(EVENTS[kind])
    read: dict[Any, Any] = {
        int: int,
        bool: lambda text: text == "yes",
        float: float,
        float | None: lambda text: None if text == "none" else float(text),
        Slot: Slot.parse,
        Outcome: Outcome,
        events.FaultScope: events.FaultScope,
        tuple[Holding, ...]: _holdings,
        tuple[Norm, ...]: _norms,
        tuple[NodeId, ...]: _nodes,
        tuple[events.Pace, ...]: _paces,
        tuple[events.Speed, ...]: _speeds,
        tuple[Fact, ...]: _facts,
    }
    made: events.Event = EVENTS[kind](
        **{name: read.get(hints[name], str)(text) for name, text in given.items()}
    )
    return made


def _nodes(text: str) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, text.split(",")))


def _speeds(text: str) -> tuple[events.Speed, ...]:
    """`a.1:0.5,b.1:1`"""
    pairs = (entry.split(":") for entry in text.split(","))
    return tuple(events.Speed(node=NodeId(node), speed=float(speed)) for node, speed in pairs)


def _facts(text: str) -> tuple[Fact, ...]:
    """`device:cuda,torch:2.13.0`"""
    return facts_of(dict(entry.split(":") for entry in text.split(",")))


def _holdings(text: str) -> tuple[Holding, ...]:
    out = []
    for item in filter(None, text.split(",")):
        layers, steps = item.split("@")
        first, stop = map(int, layers.split("-"))
        step, _, reach = steps.partition(">")
        out.append(Holding(first=first, stop=stop, step=int(step), reach=int(reach or step)))
    return tuple(out)


def _norms(text: str) -> tuple[Norm, ...]:
    pairs = (item.split(":") for item in filter(None, text.split(",")))
    return tuple(Norm(step=int(step), total_square=float(square)) for step, square in pairs)


def _paces(text: str) -> tuple[events.Pace, ...]:
    pairs = (item.split(":") for item in text.split(","))
    return tuple(events.Pace(node=NodeId(node), microbatch_s=float(s)) for node, s in pairs)


def _answer(
    state: State, event: events.Event, now_s: float, policy: Policy
) -> tuple[State, list[str]]:
    try:
        step = transition(state, event, now_s=now_s, policy=policy)
    except CoreMisuse as error:
        return state, [f"misuse: {error}"]
    if step.state is state:
        return state, [f"stale: {step.reason}"]
    after = step.state
    wrong = check(after) + check_step(state, after) + check_cause(state, event, after)
    assert wrong == [], wrong
    head = f"version {after.version} generation {after.generation} {after.phase}"
    if after.outcome is not None:
        head += f" {after.outcome}"
    said = [head, step.reason]
    if after.assignment is not None and after.assignment != state.assignment:
        names = after.assignment
        said.append("owners  " + " ".join(names.owners))
        said.append("shadows " + " ".join(name or "-" for name in names.shadows))
    return after, said + [_effect(effect) for effect in step.effects]


def _effect(effect: effects.Effect) -> str:
    others = [
        f"{field.name}={shlex.quote(str(getattr(effect, field.name)))}"
        for field in fields(effect)
        if field.name != "to"
    ]
    return " ".join(["->", effect.to, type(effect).__name__, *others])
