"""A store that lost the run gets it back from its members; whoever knew more has to end."""

import itertools
import threading
from collections.abc import Mapping

import pytest

from bamboo.coord.driver import Driver, create_run, join_run
from bamboo.coord.follow import KEPT, Follower
from bamboo.coord.memory_store import MemoryStore
from bamboo.coord.refill import Known, decode_known, encode_known
from bamboo.coord.replay import verify_decisions
from bamboo.coord.strategies import Strategies, document_of, store_sync
from bamboo.core.events import RunFailed, StoreRefilled, StrategyProposed
from bamboo.core.state import NodeStatus, Outcome, Phase, Proposal
from bamboo.errors import InputError, StoreUnavailable, UnreadableRecord
from bamboo.ids import NodeId, run_id
from bamboo.topology.sync import Sync
from tests.core.build import POLICY, forming, joined, lost

DOCUMENTS = {"job": "{}"}


class Clock:
    """The store's time, which stands until it is told to go on."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Member:
    """A driver and a follower under one name, as every node has them."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        self.store, self.driver = store, Driver(store, POLICY, name)
        self.follower = Follower(self.driver)

    def poll(self) -> list[str]:
        """The kinds of events read; "away" while the store has no run."""
        try:
            decisions = self.follower.poll(self.store, timeout_s=0.0)
        except StoreUnavailable:
            return ["away"]
        return [type(d.event).__name__ for d in decisions]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    memory = MemoryStore(run_id("test"), clock=clock)
    assert create_run(memory, state=forming(), policy=POLICY, documents=DOCUMENTS, at_s=99.0)
    launcher = Driver(memory, POLICY, "launcher")
    for index in range(4):
        launcher.append(joined(f"n{index}.1"))
    return memory


def members(store: MemoryStore, *names: str) -> list[Member]:
    """Members that have read all there is, and know the store and its documents."""
    out = [Member(store, name) for name in names]
    for member in out:
        member.poll()
        member.poll()
    return out


def test_the_members_give_back_what_they_read(store: MemoryStore, clock: Clock) -> None:
    first, second = members(store, "n0.1", "n1.1")
    before = first.driver.state()
    store.wipe()
    assert first.poll() == second.poll() == ["away"]
    clock.now_s += POLICY.gone_s / 2
    assert first.poll() == ["away"], "offers are taken for one lease"
    clock.now_s += POLICY.gone_s / 2
    assert first.poll() == ["away"], "now it is put back"
    assert first.poll() == second.poll() == ["StoreRefilled"]
    state = first.driver.state()
    assert (state.version, state.generation) == (before.version + 1, before.generation + 1)
    assert state.assignment == before.assignment
    assert store.documents() == DOCUMENTS
    assert not first.follower.overtaken
    assert verify_decisions(store).equal
    # The log is one that a newcomer can join by.
    assert join_run(store, "n9.1")[0].state() == state


def test_who_has_not_read_the_documents_leaves_it_to_who_has(
    store: MemoryStore, clock: Clock
) -> None:
    (knows,) = members(store, "n0.1")
    newcomer = Member(store, "n1.1")
    newcomer.follower.read(store.entries(after_version=-1, timeout_s=0.0))
    store.wipe()  # before it looked any further
    assert newcomer.poll() == ["away"]
    clock.now_s += POLICY.gone_s
    assert newcomer.poll() == newcomer.poll() == ["away"]
    assert store.store_id() == "", "a run without its documents can be joined by nobody"
    assert knows.poll() == ["away"]
    assert newcomer.poll() == ["StoreRefilled"]
    assert store.documents() == DOCUMENTS


def test_who_has_not_read_a_strategy_leaves_it_to_who_has(store: MemoryStore, clock: Clock) -> None:
    lacks, knows = members(store, "n0.1", "n1.1")
    proposed = StrategyProposed(reporter="x", hash=store_sync(store, Sync(bucket=7)), why="x")
    lacks.driver.append(proposed)
    assert lacks.poll() == knows.poll() == ["StrategyProposed"]
    strategies, state = Strategies(), knows.driver.state()
    assert strategies.fetch(store, state, threading.Event())
    assert not strategies.fetch(store, state, threading.Event()), "it has them all"
    assert strategies.known(proposed.hash) == Sync(bucket=7)
    knows.follower.note_documents(strategies.documents())
    store.wipe()
    assert lacks.poll() == ["away"]
    clock.now_s += POLICY.gone_s
    assert lacks.poll() == ["away"]
    assert store.store_id() == "", "the others could not go on without the strategy"
    assert knows.poll() == ["away"]
    assert lacks.poll() == ["StoreRefilled"]
    assert store.documents() == {**DOCUMENTS, **strategies.documents()}


def test_a_strategy_that_is_not_what_its_name_says_is_not_read(store: MemoryStore) -> None:
    (member,) = members(store, "n0.1")
    for hash, text in (("torn", '{"rules": ['), ("foreign", '{"rules": [], "bucket": 3}')):
        store.add_document(document_of(hash), text)
        strategies, proposal = Strategies(), Proposal(since=9, hash=hash, why="x")
        state = member.driver.state().having(proposal=proposal)
        assert not strategies.fetch(store, state, threading.Event())
        assert strategies.known(hash) is None


def test_documents_that_were_lost_while_they_were_read_are_read_again(
    store: MemoryStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    (knows,) = members(store, "n0.1")
    newcomer = Member(store, "n1.1")
    documents = store.documents

    def lost_just_now() -> Mapping[str, str]:
        store.wipe()
        return documents()

    monkeypatch.setattr(store, "documents", lost_just_now)
    assert newcomer.poll() == ["NodeJoined"] * 4, "what was read is given out all the same"
    monkeypatch.undo()
    assert newcomer.poll() == knows.poll() == ["away"]
    clock.now_s += POLICY.gone_s
    assert newcomer.poll() == ["away"]
    assert store.store_id() == ""
    assert knows.poll() == ["away"]
    assert store.documents() == DOCUMENTS


def test_the_highest_version_wins(store: MemoryStore, clock: Clock) -> None:
    behind, ahead = members(store, "n0.1", "n1.1")
    ahead.driver.append(lost("n2.1", "n1.1"))
    assert ahead.poll() == ["PeerLost"]
    store.wipe()
    behind.poll()
    ahead.poll()
    clock.now_s += POLICY.gone_s
    behind.poll()
    assert behind.poll() == ["PeerLost", "StoreRefilled"], "it reads on as if nothing had happened"
    assert ahead.poll() == ["StoreRefilled"]
    assert behind.follower.state == ahead.follower.state
    assert verify_decisions(store).equal


def test_who_knew_more_than_the_store_was_given_is_overtaken(
    store: MemoryStore, clock: Clock
) -> None:
    giver, absent = members(store, "n0.1", "n1.1")
    absent.driver.append(lost("n2.1", "n1.1"))
    absent.poll()
    store.wipe()
    giver.poll()
    clock.now_s += POLICY.gone_s
    giver.poll()
    assert absent.poll() == []
    assert absent.follower.overtaken
    assert giver.poll() == ["StoreRefilled"]
    assert not giver.follower.overtaken
    # One who only looks on is given the new history from its beginning.
    assert "StoreRefilled" in absent.poll()
    assert absent.follower.state == giver.follower.state


def test_what_was_said_and_read_by_nobody_is_said_again(store: MemoryStore, clock: Clock) -> None:
    (member,) = members(store, "n1.1")
    member.driver.append(lost("n2.1", "n1.1"))
    store.wipe()
    member.poll()
    clock.now_s += POLICY.gone_s
    member.poll()
    assert member.driver.state().node(NodeId("n2.1")).status is NodeStatus.MEMBER
    assert member.poll() == ["StoreRefilled"]
    assert member.poll() == ["PeerLost"]
    assert member.driver.state().node(NodeId("n2.1")).status is NodeStatus.GONE
    assert member.poll() == []
    assert verify_decisions(store).equal


def test_only_the_end_of_a_long_log_is_given_back(store: MemoryStore, clock: Clock) -> None:
    (member,) = members(store, "n0.1")
    for index in range(KEPT + 5):
        member.driver.append(joined(f"m{index}.1"))
        member.poll()
    store.wipe()
    member.poll()
    clock.now_s += POLICY.gone_s
    member.poll()
    report = verify_decisions(store)
    assert report.equal, report.first_difference
    assert report.decisions == KEPT + 1
    assert report.first_version == 4 + 5


def test_a_run_that_is_over_is_given_back_as_it_was(store: MemoryStore, clock: Clock) -> None:
    (member,) = members(store, "n0.1")
    member.driver.append(RunFailed(reporter="n1.1", outcome=Outcome.FAULT, reason="over"))
    member.poll()
    before = member.driver.state()
    store.wipe()
    member.poll()
    clock.now_s += POLICY.gone_s
    member.poll()
    assert member.driver.state() == before
    assert before.phase is Phase.FINISHED
    assert member.poll() == []


def test_a_store_that_is_lost_again_at_once_is_refilled_again(
    store: MemoryStore, clock: Clock
) -> None:
    """Before anybody has said again what was lost the first time."""
    (member,) = members(store, "n1.1")
    member.driver.append(lost("n2.1", "n1.1"))
    for read in (["StoreRefilled"], ["StoreRefilled", "PeerLost"]):
        store.wipe()
        assert member.poll() == ["away"]
        clock.now_s += POLICY.gone_s
        assert member.poll() == ["away"]
        assert member.poll() == read
    assert not member.follower.overtaken
    assert verify_decisions(store).equal


def test_an_append_waits_for_the_store_to_be_refilled(store: MemoryStore) -> None:
    (member,) = members(store, "n0.1")
    member.driver.state()
    store.wipe()
    with pytest.raises(StoreUnavailable, match="its members give it back"):
        member.driver.append(lost("n2.1"), deadline_s=0.05)
    with pytest.raises(InputError, match="no run"):
        Driver(store, POLICY, "somebody new").append(lost("n2.1"), deadline_s=0.05)


def test_one_who_only_looks_gives_nothing_back(store: MemoryStore) -> None:
    follower = Follower()
    follower.poll(store, timeout_s=0.0)
    follower.poll(store, timeout_s=0.0)
    store.wipe()
    with pytest.raises(StoreUnavailable, match="lost the run"):
        follower.poll(store, timeout_s=0.0)
    assert store.offer(version=0, offer="", lease_s=0.0).version == -1


def test_many_wipes_in_any_order_of_reading_lead_to_one_history(
    store: MemoryStore, clock: Clock
) -> None:
    """Everybody who is not overtaken stands at the same state, whoever reads first."""
    names = ("n0.1", "n1.1", "n3.1")
    for order in itertools.permutations(range(3)):
        group = members(store, *names)
        store.wipe()
        for index in order:
            group[index].poll()
        clock.now_s += POLICY.gone_s
        for _ in range(3):
            for index in order:
                group[index].poll()
        assert {m.follower.overtaken for m in group} == {False}
        assert len({repr(m.follower.state) for m in group}) == 1
        assert isinstance(Follower().catch_up(store)[-1].event, StoreRefilled)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"begin": 1, "entries": [], "state": ""}'])
def test_a_damaged_offer_is_named(text: str) -> None:
    with pytest.raises(UnreadableRecord):
        decode_known(text)


@pytest.mark.parametrize("text", ["{", '{"begin": 1, "entries": [], "state": ""}'])
def test_an_offer_that_nobody_can_read_is_passed_over(
    store: MemoryStore, clock: Clock, text: str
) -> None:
    """It ended every member that would have given the run back."""
    one, other = members(store, "n0.1", "n1.1")
    before = store.read().version
    store.wipe()
    store.offer(version=10**9, offer=text, lease_s=POLICY.gone_s)
    assert (one.poll(), other.poll()) == (["away"], ["away"])
    clock.now_s += POLICY.gone_s
    one.poll()
    assert store.read().version == before + 1
    assert (one.poll(), other.poll()) == (["StoreRefilled"], ["StoreRefilled"])
    assert verify_decisions(store).equal
    assert not one.follower.overtaken


def test_an_offer_comes_back_equal(store: MemoryStore) -> None:
    driver, begin = join_run(store, "me")
    entries = tuple(store.entries(after_version=0, timeout_s=0.0))
    known = Known(begin=begin, entries=entries, state=driver.state())
    assert decode_known(encode_known(known)) == known
