"""The virtual link: one message after the other, never before its bytes would have come."""

from hypothesis import given
from hypothesis import strategies as st

from bamboo.ids import NodeId
from bamboo.runtime.wire.link import VirtualLink

A, B = NodeId("a"), NodeId("b")
MESSAGES = st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 10**8)), min_size=1, max_size=20)


def test_a_message_takes_its_bytes_and_the_latency() -> None:
    link = VirtualLink(gbps=1.0, latency_s=0.5)
    assert link.due(A, 125_000_000, 10.0).at_s == 11.5


def test_the_second_waits_for_the_first_to_leave_but_not_for_its_latency() -> None:
    link = VirtualLink(gbps=1.0, latency_s=0.5)
    link.due(A, 125_000_000, 10.0)
    assert link.due(A, 125_000_000, 10.0).at_s == 12.5
    assert link.due(A, 0, 20.0).at_s == 20.5


def test_each_peer_has_a_link_of_its_own() -> None:
    link = VirtualLink(gbps=1.0, latency_s=0.0)
    link.due(A, 125_000_000, 0.0)
    assert link.due(B, 125_000_000, 0.0).at_s == 1.0


def test_without_a_bandwidth_only_the_latency_counts() -> None:
    link = VirtualLink(gbps=0.0, latency_s=0.25)
    assert [link.due(A, 10**12, 1.0).at_s for _ in range(3)] == [1.25] * 3


@given(MESSAGES, st.floats(0.01, 100.0), st.floats(0.0, 1.0))
def test_order_and_bandwidth_hold(
    messages: list[tuple[float, int]], gbps: float, latency_s: float
) -> None:
    link = VirtualLink(gbps=gbps, latency_s=latency_s)
    now_s, dues = 0.0, []
    for wait_s, size_bytes in messages:
        now_s += wait_s
        due_s = link.due(A, size_bytes, now_s).at_s
        assert due_s >= now_s + latency_s + size_bytes * 8 / (gbps * 1e9) - 1e-9
        dues.append(due_s)
    assert dues == sorted(dues)
    total_s = sum(size for _, size in messages) * 8 / (gbps * 1e9)
    assert dues[-1] <= now_s + total_s + latency_s + 1e-6


def test_what_yields_begins_when_all_before_it_has_left() -> None:
    link = VirtualLink(gbps=1.0, latency_s=0.0)
    link.due(A, 125_000_000, 10.0)
    assert link.due(A, 125_000_000, 10.0, yields=True) == (12.0, 0.0)
    assert link.due(A, 125_000_000, 10.0, yields=True) == (13.0, 0.0)


def test_while_both_lanes_have_something_each_has_half_of_the_link() -> None:
    link = VirtualLink(gbps=1.0, latency_s=0.0)
    assert link.due(A, 375_000_000, 10.0, yields=True) == (13.0, 0.0)
    # One second of bytes takes two, and holds up the three seconds of what yields by one.
    assert link.due(A, 125_000_000, 10.5) == (12.5, 1.0)
    # Three seconds of bytes share the link with the second and a half that is left of the others.
    assert link.due(A, 375_000_000, 12.5) == (17.0, 2.5)
    assert link.due(A, 125_000_000, 20.0) == (21.0, 2.5), "nothing yields any more"
    assert link.due(A, 125_000_000, 20.0, yields=True) == (22.0, 2.5)


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(1, 10**8), st.booleans()), max_size=20),
    st.floats(0.01, 100.0),
)
def test_two_lanes_carry_no_more_than_one(
    messages: list[tuple[float, int, bool]], gbps: float
) -> None:
    """A whole lane of what yields, and all else, leave no sooner than the link can carry them."""
    link = VirtualLink(gbps=gbps, latency_s=0.0)
    now_s, busy_until_s, dues, shared_s = 0.0, 0.0, [0.0], 0.0
    stamped = []
    for wait_s, size_bytes, yields in messages:
        now_s += wait_s
        due = link.due(A, size_bytes, now_s, yields=yields)
        busy_until_s = max(now_s, busy_until_s) + size_bytes * 8 / (gbps * 1e9)
        shared_s = due.shared_s
        if yields:
            stamped.append(due)
        else:
            dues.append(due.at_s)
    dues += [due.at_s + shared_s - due.shared_s for due in stamped]
    assert max(dues) >= busy_until_s - 1e-6
