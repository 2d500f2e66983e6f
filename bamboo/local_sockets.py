"""Sockets between processes of one user on one machine: who may ask for anything there.

Rule: such a socket lies in a folder that only its owner can enter, or is not made; whoever connects
all the same is asked of the kernel, and is hung up on unless it is the same user or root.
"""

import os
import socket
import stat
import struct
from pathlib import Path

from bamboo.errors import BambooError

_OTHERS = 0o077
_PEER = struct.Struct("3i")
"""The kernel's `ucred`: process, user, group."""


def listen_privately(path: Path, *, backlog: int) -> socket.socket:
    """A unix socket that listens at `path`, of mode 0600. Raises BambooError where others may
    enter its folder, OSError where it cannot be made."""
    folder = path.parent.stat()
    if folder.st_uid != os.geteuid() or folder.st_mode & _OTHERS:
        raise BambooError(
            f"{path.parent} ({stat.filemode(folder.st_mode)}, of user {folder.st_uid}) is not this "
            f"user's alone, and no socket is made there; `chmod 700 {path.parent}`"
        )
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def accept_own(listener: socket.socket) -> socket.socket | None:
    """The next connection; None where it is another user's, which is hung up on. Raises
    BlockingIOError where there is none, of a listener that does not wait."""
    connection, _ = listener.accept()
    if user_of(connection) in (os.geteuid(), 0):
        return connection
    connection.close()
    return None


def user_of(connection: socket.socket) -> int:
    """The user whose process has connected, by the kernel's word."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(peer)[1])
