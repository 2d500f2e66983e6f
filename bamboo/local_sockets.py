"""Sockets between processes of one user on one machine, and the users that may use them.

Rule: such a socket lies in a folder that only its owner can enter; otherwise it is not made. The
kernel also names the user of each connection, and only the same user and root are accepted.
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
    """A unix socket that listens at `path`, with mode 0600. Raises BambooError if others may enter
    its folder, OSError if it cannot be made."""
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
    """The next connection, or None if it is another user's, which is closed. Raises
    BlockingIOError if there is none and the listener does not wait."""
    connection, _ = listener.accept()
    if user_of(connection) in (os.geteuid(), 0):
        return connection
    connection.close()
    return None


def user_of(connection: socket.socket) -> int:
    """The user whose process has connected, as the kernel says."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(peer)[1])
