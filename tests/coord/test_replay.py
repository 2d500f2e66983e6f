"""Recomputed decisions are equal; any change of the log or the state is found and named."""

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from bamboo.coord.codec import Committed, decode_entry, encode_entry, encode_state, state_hash
from bamboo.coord.driver import Driver, create_run
from bamboo.coord.memory_store import MemoryStore
from bamboo.coord.replay import verify_decisions
from bamboo.core.events import CaughtUp, NodeLeft, StopReady
from bamboo.core.state import Policy
from bamboo.errors import InputError, UnreadableRecord
from bamboo.ids import NodeId, run_id
from bamboo.topology.slots import Slot
from tests.core.build import POLICY, forming, joined, lost


def history() -> MemoryStore:
    """Four joins, a loss by lease (whose reason quotes the policy), a catch-up."""
    store = MemoryStore(run_id("test"), clock=lambda: 50.0)
    create_run(store, state=forming(), policy=POLICY, documents={}, at_s=49.0)
    driver = Driver(store, POLICY, "launcher")
    for index in range(4):
        driver.append(joined(f"n{index}.1"))
    driver.append(lost("n2.1", "n1.1", "lease"))
    driver.append(
        CaughtUp(
            node=NodeId("n1.1"),
            slot=Slot(pipeline=0, stage=2),
            step=3,
            recomputed=1,
            already_computed=2,
            pause_s=0.1,
        )
    )
    return store


def copied(
    change: Callable[[list[str]], None] = lambda _: None, state: str | None = None
) -> MemoryStore:
    """The history in a new store, with its log entries changed."""
    source = history()
    bodies = [entry.body for entry in source.entries(after_version=-1, timeout_s=0)]
    change(bodies)
    copy = MemoryStore(run_id("test"))
    copy.create(state="", entry=bodies[0], documents={})
    for version, body in enumerate(bodies[1:]):
        copy.commit(expected_version=version, state=state or source.read().state, entry=body)
    return copy


def test_an_honest_history_is_equal() -> None:
    for store in (history(), copied()):
        report = verify_decisions(store)
        assert report.equal
        assert (report.decisions, report.last_version, report.first_difference) == (6, 6, None)


def changing(version: int, **changes: object) -> Callable[[list[str]], None]:
    def change(bodies: list[str]) -> None:
        entry = decode_entry(bodies[version])
        assert isinstance(entry, Committed)
        bodies[version] = encode_entry(replace(entry, **changes))  # type: ignore[arg-type]

    return change


def repeated(bodies: list[str]) -> None:
    bodies.insert(3, bodies[2])


def begun_twice(bodies: list[str]) -> None:
    bodies[3] = bodies[0]


def headless(bodies: list[str]) -> None:
    del bodies[0]


def other_policy(bodies: list[str]) -> None:
    raw = json.loads(bodies[0])
    raw["begin"]["policy"]["gone_s"] = 4.0
    bodies[0] = json.dumps(raw)


@pytest.mark.parametrize(
    ("change", "equal", "says"),
    [
        (changing(5, reason="it rained"), 4, "version 5: the reason is 'node n2.1"),
        (changing(5, effects=()), 4, "version 5: the effects are"),
        (changing(5, state_hash="0" * 16), 4, "version 5: the state has hash"),
        (changing(5, now_s=51.0), 4, "version 5: the state has hash"),
        (changing(5, event=lost("n2.1", "n3.1", "lease")), 4, "version 5: the state has hash"),
        (
            changing(5, event=NodeLeft(node=NodeId("x"), reason="x")),
            4,
            "version 5: the event .* changes nothing: no node x ever joined",
        ),
        (
            changing(5, event=StopReady(node=NodeId("n0.1"), step=1)),
            4,
            "version 5: the event .* cannot be decided: StopReady",
        ),
        (repeated, 2, "version 3: the event .* changes nothing"),
        (begun_twice, 2, "version 3: the run begins a second time"),
        (headless, 0, "version 0: the log does not begin with the run's first state"),
        (other_policy, 4, "version 5: the state has hash"),
    ],
)
def test_the_first_difference_is_named(
    change: Callable[[list[str]], None], equal: int, says: str
) -> None:
    report = verify_decisions(copied(change))
    assert not report.equal
    assert report.decisions == equal
    assert report.first_difference is not None
    assert re.match(says, report.first_difference), report.first_difference


def test_another_state_document_is_found() -> None:
    report = verify_decisions(copied(state=encode_state(forming())))
    assert report.first_difference == "the stored state is not the one that the log leads to"


def test_a_gap_in_the_log_is_found() -> None:
    class Gap(MemoryStore):
        def entries(self, *, after_version: int, timeout_s: float):  # type: ignore[no-untyped-def]
            found = super().entries(after_version=after_version, timeout_s=timeout_s)
            return [entry for entry in found if entry.version != 4]

    store = Gap(run_id("test"))
    source = history()
    bodies = [entry.body for entry in source.entries(after_version=-1, timeout_s=0)]
    store.create(state="", entry=bodies[0], documents={})
    for version, body in enumerate(bodies[1:]):
        store.commit(expected_version=version, state=source.read().state, entry=body)
    assert verify_decisions(store).first_difference == "version 4 is not in the log"


def test_unknown_records_are_an_error_not_a_difference() -> None:
    def spoil(bodies: list[str]) -> None:
        bodies[2] = bodies[2].replace('"v":15', '"v":99')

    with pytest.raises(UnreadableRecord, match="schema version 99"):
        verify_decisions(copied(spoil))
    with pytest.raises(InputError, match="no run"):
        verify_decisions(MemoryStore(run_id("test")))


def test_the_policy_comes_from_the_run() -> None:
    policy = Policy(suspect_s=2.0, gone_s=7.0)
    store = MemoryStore(run_id("test"))
    create_run(store, state=forming(), policy=policy, documents={}, at_s=0.0)
    driver = Driver(store, policy, "me")
    for index in range(4):
        driver.append(joined(f"n{index}.1"))
    appended = driver.append(lost("n2.1", "n1.1", "lease"))
    assert "no progress for 7 s" in appended.reason
    assert verify_decisions(store).equal
    assert state_hash(driver.state()) == state_hash(appended.state)
