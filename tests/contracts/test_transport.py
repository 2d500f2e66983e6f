"""One suite for every way that members reach each other: within a host, and between hosts.

What is promised stands in `ports.Transport`. Peers that are killed or stopped are real processes.
"""

import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from bamboo.ports import PeerGone
from bamboo.runtime.wire.frames import to_buffer, to_tensor
from bamboo.runtime.wire.link import VirtualLink
from testbed.waiting import wait_until
from tests.contracts.transport_net import (
    NEVER_S,
    A,
    B,
    C,
    Net,
    gone,
    key,
    receive,
    steps,
)
from tests.warm import ran

pytestmark = pytest.mark.timeout(60)


# ---------------------------------------------------------------- messages


def test_messages_of_one_sender_arrive_whole_and_in_order(net: Net) -> None:
    a, b = net.pair()
    tensors = [torch.full((n % 7, 1 + n * n), float(n)) for n in range(60)]
    for n, tensor in enumerate(tensors):
        assert a.send(B, key(n), [to_buffer(tensor)] * 2, {"n": n})
    got = receive(b, 60)
    assert steps(got) == list(range(60))
    for n, message in enumerate(got):
        assert (message.sender, message.generation, message.meta) == (A, 1, {"n": n})
        assert all(torch.equal(to_tensor(x), tensors[n]) for x in message.buffers)


def test_what_yields_and_all_else_each_keep_their_order(net: Net) -> None:
    a, b = net.pair()
    for n in range(40):
        big = torch.full((1 + 20_000 * (n % 3),), float(n))
        assert a.send(B, key(n, "ship" if n % 2 else "act"), [to_buffer(big)], {})
    got = receive(b, 40)
    assert steps([m for m in got if m.key.kind == "act"]) == list(range(0, 40, 2))
    assert steps([m for m in got if m.key.kind == "ship"]) == list(range(1, 40, 2))
    for message in got:
        assert float(to_tensor(message.buffers[0])[-1]) == message.key.step


def test_both_directions_and_several_senders(net: Net) -> None:
    a, b, c = net.member(A), net.member(B), net.member(C)
    members = {A: a.endpoint, B: b.endpoint, C: c.endpoint}
    for one in (a, b, c):
        one.reconfigure(generation=1, members=members)
    assert a.send(C, key(1), (), {})
    assert b.send(C, key(2), (), {})
    assert c.send(A, key(3), (), {})
    assert sorted(steps(receive(c, 2))) == [1, 2]
    assert steps(receive(a, 1)) == [3]


def test_sending_to_nobody_says_so(net: Net) -> None:
    a, _ = net.pair()
    assert not a.send(C, key(0), (), {})
    assert not a.send(A, key(0), (), {})


def test_an_empty_wait_ends_at_its_deadline(net: Net) -> None:
    a, _ = net.pair()
    start_s = time.monotonic()
    assert not a.poll(0.1)
    assert 0.09 <= time.monotonic() - start_s < 5.0


def test_wake_ends_a_wait_at_once(net: Net) -> None:
    a, _ = net.pair()
    for _ in range(3):
        waker = threading.Timer(0.05, a.wake)
        waker.start()
        start_s = time.monotonic()
        assert not a.poll(20.0)
        assert time.monotonic() - start_s < 10.0
        waker.join()


# ---------------------------------------------------------------- who is heard


def test_a_sender_that_is_no_member_is_not_heard(net: Net) -> None:
    a, b = net.pair()
    stranger = net.member(C)
    stranger.reconfigure(generation=1, members={B: b.endpoint})
    assert stranger.send(B, key(66), (), {})
    a.send(B, key(1), (), {})
    assert steps(receive(b, 1)) == [1]
    assert not b.poll(NEVER_S)
    # What it said before it became a member is not brought back when it does.
    b.reconfigure(generation=2, members={A: a.endpoint, B: b.endpoint, C: stranger.endpoint})
    assert not b.poll(NEVER_S)
    stranger.send(B, key(2), (), {})
    assert steps(receive(b, 1)) == [2]


def test_a_fenced_member_is_not_heard_any_more(net: Net) -> None:
    a, b = net.pair()
    a.send(B, key(1), (), {})
    assert steps(receive(b, 1)) == [1]
    b.reconfigure(generation=2, members={B: b.endpoint})
    a.send(B, key(66), (), {})
    assert not b.poll(NEVER_S)


def test_a_message_of_a_later_generation_waits_for_it(net: Net) -> None:
    a, b = net.pair()
    new = net.member(C)
    new.reconfigure(generation=2, members={B: b.endpoint})
    for step in (5, 6):
        new.send(B, key(step), (), {})
    a.send(B, key(1), (), {})
    assert steps(receive(b, 1)) == [1]
    assert not b.poll(NEVER_S)
    b.reconfigure(generation=2, members={A: a.endpoint, B: b.endpoint, C: new.endpoint})
    began_s = time.monotonic()
    assert steps(b.poll(20.0)) == [5, 6]
    assert time.monotonic() - began_s < 10.0, "they were here"
    new.send(B, key(7), (), {})
    assert steps(receive(b, 1)) == [7]


# ---------------------------------------------------------------- peers that go


def test_a_killed_peer_is_told_once_and_soon(net: Net) -> None:
    a = net.member(A)
    peer, endpoint = net.process(B, a, A)
    a.reconfigure(generation=1, members={A: a.endpoint, B: endpoint})
    assert receive(a, 1)[0].sender == B
    a.send(B, key(0), (), {})
    assert not a.wait_gone(NEVER_S)
    killed_s = time.monotonic()
    peer.signal(signal.SIGKILL)
    (found,) = gone(a)
    assert found.node == B
    assert killed_s <= found.seen_at_s < killed_s + 5.0
    assert not a.wait_gone(NEVER_S)
    # Handing over to the dead does not block, whatever it answers.
    a.send(B, key(1), (), {})
    a.reconfigure(generation=2, members={A: a.endpoint})
    assert not a.send(B, key(2), (), {})
    assert not a.wait_gone(NEVER_S)


def test_a_killed_peer_to_whom_something_yielded_is_told_once(net: Net) -> None:
    a = net.member(A)
    peer, endpoint = net.process(B, a, A)
    a.reconfigure(generation=1, members={A: a.endpoint, B: endpoint})
    assert a.send(B, key(0, "ship"), (), {})
    assert not a.wait_gone(NEVER_S)
    peer.signal(signal.SIGKILL)
    assert [one.node for one in gone(a)] == [B]
    assert not a.wait_gone(NEVER_S)
    a.reconfigure(generation=2, members={A: a.endpoint})
    assert not a.send(B, key(1, "ship"), (), {})


def test_what_the_dead_had_sent_before_is_still_delivered(net: Net) -> None:
    a = net.member(A)
    peer, endpoint = net.process(B, a, A)
    a.reconfigure(generation=1, members={A: a.endpoint, B: endpoint})
    message = receive(a, 1)
    peer.signal(signal.SIGKILL)
    assert gone(a)[0].node == B
    assert [m.key.kind for m in message] == ["ack"]


def test_a_peer_that_died_before_the_connection_is_told(net: Net) -> None:
    a = net.member(A)
    peer, endpoint = net.process(B, a, A)
    peer.signal(signal.SIGKILL)
    assert peer.status(10.0) == -9
    a.reconfigure(generation=1, members={A: a.endpoint, B: endpoint})
    assert gone(a)[0].node == B
    assert not a.wait_gone(NEVER_S)


def test_a_stopped_peer_is_told_after_missed_heartbeats(net: Net) -> None:
    a = net.member(A, heartbeat_s=0.4)
    peer, endpoint = net.process(B, a, A)
    a.reconfigure(generation=1, members={A: a.endpoint, B: endpoint})
    a.send(B, key(0), (), {})
    assert receive(a, 2), "both directions are up"
    quiet_until_s = time.monotonic() + 1.0
    while time.monotonic() < quiet_until_s:
        assert not a.wait_gone(0.1), "a live peer that says nothing is not lost"
    peer.signal(signal.SIGSTOP)
    assert gone(a)[0].node == B


def test_a_peer_that_is_dropped_is_not_lost(net: Net) -> None:
    a, b = net.pair()
    a.send(B, key(0), (), {})
    a.send(B, key(1, "ship"), (), {})
    receive(b, 2)
    a.reconfigure(generation=2, members={A: a.endpoint})
    assert not a.wait_gone(NEVER_S)


def test_another_thread_sees_the_loss_while_this_one_computes(net: Net) -> None:
    a = net.member(A)
    seen: list[PeerGone] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.extend(a.wait_gone(0.1))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        peer, endpoint = net.process(B, a, A)
        a.reconfigure(generation=1, members={A: a.endpoint, B: endpoint})
        assert receive(a, 1)
        peer.signal(signal.SIGKILL)
        wait_until(lambda: seen, what="the loss")
    finally:
        stop.set()
        watcher.join()
    assert [one.node for one in seen] == [B]


# ---------------------------------------------------------------- the virtual link


def test_a_virtual_link_holds_a_message_until_it_is_due(net: Net) -> None:
    a, b = net.pair(link=VirtualLink(gbps=0.0, latency_s=0.3))
    start_s = time.monotonic()
    a.send(B, key(1), (), {})
    assert not b.poll(0.1)
    assert steps(receive(b, 1)) == [1]
    assert time.monotonic() - start_s >= 0.3


def test_a_slow_link_keeps_the_order(net: Net) -> None:
    # 80 kB at 0.01 Gbps take 64 ms.
    a, b = net.pair(link=VirtualLink(gbps=0.01, latency_s=0.0))
    start_s = time.monotonic()
    for n in range(4):
        a.send(B, key(n), [to_buffer(torch.ones(20_000 if n < 2 else 1))], {})
    assert steps(receive(b, 4)) == [0, 1, 2, 3]
    assert time.monotonic() - start_s >= 0.128


def test_on_a_slow_link_nothing_stands_behind_what_yields(net: Net) -> None:
    # 1 MB at 0.01 Gbps takes 800 ms; 50 kB take 40 and hold it up by as much.
    a, b = net.pair(link=VirtualLink(gbps=0.01, latency_s=0.0))
    start_s = time.monotonic()
    a.send(B, key(0, "ship"), [to_buffer(torch.ones(250_000))], {})
    a.send(B, key(1), [to_buffer(torch.ones(12_500))], {})
    assert steps(receive(b, 1)) == [1]
    assert 0.08 <= time.monotonic() - start_s < 0.84
    assert steps(receive(b, 1)) == [0]
    assert time.monotonic() - start_s >= 0.84


def test_closing_twice_is_closing_once(net: Net) -> None:
    a, _ = net.pair()
    a.close()
    a.close()


def test_a_peer_dropped_in_the_middle_of_a_message_ends_nobody(tmp_path: Path) -> None:
    """libzmq ends the process when a socket goes with a multipart message sent in part."""
    done = ran("tests.contracts.transport_dropper", str(tmp_path), "60")
    assert (done.returncode, done.stderr) == (0, "")
