"""What the guard takes for a connection of its port: its number may be anything's by now."""

import os
import socket
import tempfile

import pytest
import zmq

from bamboo.runtime.wire import login_guard


@pytest.fixture
def accepted() -> socket.socket:
    """A connection, as the port has it that it came to."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
    ):
        return server.accept()[0]


def test_a_connection_of_its_port_is_one(accepted: socket.socket) -> None:
    with accepted:
        port = accepted.getsockname()[1]
        assert login_guard._is_of_port(accepted.fileno(), port)
        assert not login_guard._is_of_port(accepted.fileno(), port + 1)


def test_what_is_no_connection_over_tcp_is_none() -> None:
    one, other = socket.socketpair()
    event = os.eventfd(0)
    with one, other, tempfile.TemporaryFile() as file, socket.socket() as unconnected:
        for descriptor in (one.fileno(), event, file.fileno()):
            assert not login_guard._is_of_port(descriptor, 0)
        with pytest.raises(OSError, match="not connected"):
            login_guard._is_of_port(unconnected.fileno(), 0)
    os.close(event)


def test_a_number_that_went_to_something_else_is_not_asked(accepted: socket.socket) -> None:
    own, inode = login_guard.OwnDescriptor(), os.fstat(accepted.fileno()).st_ino
    with accepted:
        assert login_guard._asked(own, accepted.fileno(), inode, login_guard._bytes_of)
        assert login_guard._asked(own, accepted.fileno(), inode + 1, login_guard._bytes_of) is None
        number = accepted.fileno()
    assert login_guard._asked(own, number, inode, login_guard._bytes_of) is None, "it is closed"
    event = os.eventfd(0)
    assert login_guard._asked(own, event, os.fstat(event).st_ino, login_guard._bytes_of) is None
    os.close(event)
    own.close()


@pytest.mark.skipif(not login_guard.counts_bytes(), reason="this kernel counts no bytes")
def test_its_thread_ends_after_libzmq_has_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """libzmq waits without an end for somebody to hear that a monitor stops."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as listener:
        listener.bind("tcp://127.0.0.1:0")
        guard = login_guard.LoginGuard(context, listener)
        disable, heard = listener.disable_monitor, []

        def slowly() -> None:
            guard._thread.join(1.0)  # a thread that was told to end has ended by then
            heard.append(guard._thread.is_alive())
            if guard._thread.is_alive():
                disable()

        monkeypatch.setattr(type(listener), "disable_monitor", lambda _: slowly())
        guard.close()
        assert heard == [True]
        assert not guard._thread.is_alive()
