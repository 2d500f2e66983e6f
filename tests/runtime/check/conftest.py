"""The server in which layers are built alone, one for all tests of a process."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from bamboo.runtime.check.alone import Alone

PROGRAM = """
import sys
from multiprocessing.connection import Connection
from bamboo.runtime.check.alone import serve
serve(Connection(int(sys.argv[1])))
"""


@pytest.fixture(scope="session")
def alone_server() -> Iterator[Alone]:
    """Started as a program: a fork of this process might wait for a thread that it has not got."""
    ours, theirs = socket.socketpair()
    with theirs:
        number = str(theirs.fileno())
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, number], pass_fds=[theirs.fileno()]
        )
    server = Alone(Connection(ours.detach()))
    yield server
    server.close()
    process.wait(timeout=30)


@pytest.fixture
def alone(alone_server: Alone) -> Iterator[Alone]:
    """Ready for the job of one test."""
    yield alone_server
    alone_server.end()
