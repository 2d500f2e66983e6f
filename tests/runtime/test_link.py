"""The virtual link: one message after the other, never before its bytes would have come."""

from hypothesis import given
from hypothesis import strategies as st

from bamboo.ids import NodeId
from bamboo.runtime.link import VirtualLink

A, B = NodeId("a"), NodeId("b")
MESSAGES = st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 10**8)), min_size=1, max_size=20)


def test_a_message_takes_its_bytes_and_the_latency() -> None:
    link = VirtualLink(gbps=1.0, latency_s=0.5)
    assert link.due_s(A, 125_000_000, 10.0) == 11.5


def test_the_second_waits_for_the_first_to_leave_but_not_for_its_latency() -> None:
    link = VirtualLink(gbps=1.0, latency_s=0.5)
    link.due_s(A, 125_000_000, 10.0)
    assert link.due_s(A, 125_000_000, 10.0) == 12.5
    assert link.due_s(A, 0, 20.0) == 20.5


def test_each_peer_has_a_link_of_its_own() -> None:
    link = VirtualLink(gbps=1.0, latency_s=0.0)
    link.due_s(A, 125_000_000, 0.0)
    assert link.due_s(B, 125_000_000, 0.0) == 1.0


def test_without_a_bandwidth_only_the_latency_counts() -> None:
    link = VirtualLink(gbps=0.0, latency_s=0.25)
    assert [link.due_s(A, 10**12, 1.0) for _ in range(3)] == [1.25] * 3


@given(MESSAGES, st.floats(0.01, 100.0), st.floats(0.0, 1.0))
def test_order_and_bandwidth_hold(
    messages: list[tuple[float, int]], gbps: float, latency_s: float
) -> None:
    link = VirtualLink(gbps=gbps, latency_s=latency_s)
    now_s, dues = 0.0, []
    for wait_s, size_bytes in messages:
        now_s += wait_s
        due_s = link.due_s(A, size_bytes, now_s)
        assert due_s >= now_s + latency_s + size_bytes * 8 / (gbps * 1e9) - 1e-9
        dues.append(due_s)
    assert dues == sorted(dues)
    total_s = sum(size for _, size in messages) * 8 / (gbps * 1e9)
    assert dues[-1] <= now_s + total_s + latency_s + 1e-6
