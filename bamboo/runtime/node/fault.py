"""Describes a fault: what it is, and whether it is this node's alone.

Rule: what the machine lacks (room, memory, files, threads, an address, a sound GPU) another machine
may have.
Everything else, such as a user's layer that raises or data that differ between nodes, would happen
to the same work on any node. Pure.
"""

import errno

import torch

from bamboo.core.events import FaultScope
from bamboo.errors import StorageFull
from bamboo.user_code.traces import line_of, user_lines

_OF_THE_MACHINE = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO),
        *(errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN),
        *(errno.EADDRINUSE, errno.EADDRNOTAVAIL),
    }
)
_WORDS = ("can't allocate memory", "not enough memory", "can't start new thread", "CUDA error")
"""Texts of a RuntimeError: torch and the interpreter have no class of their own for these, and
torch's class for errors of a GPU is younger than the oldest torch that we take."""


def scope_of(error: BaseException) -> FaultScope:
    """The scope of an error, by itself or by the error that caused it."""
    found: BaseException | None = error
    while found is not None:
        if _is_of_the_machine(found):
            return FaultScope.NODE
        found = found.__cause__
    return FaultScope.RUN


def _is_of_the_machine(error: BaseException) -> bool:
    if isinstance(error, MemoryError | StorageFull | torch.OutOfMemoryError):
        return True
    if getattr(error, "errno", None) in _OF_THE_MACHINE:  # an OSError, or an error of ZeroMQ
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def reason_of(error: BaseException, *, run: str, node: str) -> str:
    """The error, where in the user's own code it arose, and the command that shows the rest."""
    own = user_lines(error)
    where = f" at {' <- '.join(reversed(own))}" if own else ""
    return f"{line_of(error)}{where}; `bamboo logs {run} --node {node}` has the traceback"
