"""A fault as its node says it: what it is, and whether this node alone has it.

Rule: what the machine lacks (room, memory, files, threads, an address) another one may have; all
else, a user's layer that raises or data that differ among them, the same work would meet on any
node. Pure.
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
_WORDS = ("can't allocate memory", "not enough memory", "can't start new thread")
"""Of a RuntimeError: torch, and the interpreter, have no class of their own for these."""


def scope_of(error: BaseException) -> FaultScope:
    """Whose fault an error is, by itself or by what it was raised from."""
    found: BaseException | None = error
    while found is not None:
        if _is_of_the_machine(found):
            return FaultScope.NODE
        found = found.__cause__
    return FaultScope.RUN


def _is_of_the_machine(error: BaseException) -> bool:
    if isinstance(error, MemoryError | StorageFull | torch.OutOfMemoryError):
        return True
    if getattr(error, "errno", None) in _OF_THE_MACHINE:  # an OSError, or a socket's of ZeroMQ
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def reason_of(error: BaseException, *, run: str, node: str) -> str:
    """What it is, where in the user's own code it rose, and the command that shows the rest."""
    own = user_lines(error)
    where = f" at {' <- '.join(reversed(own))}" if own else ""
    return f"{line_of(error)}{where}; `bamboo logs {run} --node {node}` has the traceback"
