"""The tree of errors a user or a caller can meet, and the exit code of each.

    BambooError                 1   a fault: something broke that should not have
    |- InputError               2   the user's file, key, value or surroundings are wrong
    |  |- NoDevice              2   this machine lacks the device that the job names
    |  |- DamagedData           2   a part of the data is not what was prepared
    |  `- StoreRefused          2   the store cannot be used or refuses the login, at the start
    |     `- StoreNotReached    2   it did not answer
    |- StoreUnavailable         1   the store went away during a run (callers retry, bounded)
    |  `- StoreRefuses          1   it answers but takes nothing: read-only, no memory, no right
    |- StorageUnavailable       1   the storage of checkpoints cannot be written or read now
    |  |- StorageFull           1   there is no space left for a checkpoint
    |  `- NotAsWritten          1   a checkpoint is not what was written, or no longer is
    |- BooksUnwritable          1   a file in the run's own folder cannot be written: a full disk
    |- ProcessLost              1   one of the processes that share a simulation was killed
    |- RunExists                2   a run of this id exists already
    |- Unrecoverable            3   a stage has no live copy and there is no checkpoint
    |- BudgetReached            4   the budget of the job ended the run
    |- VerifyDiffers            5   two runs that must be equal are not
    |- UnreadableRecord         2   a stored record has a version or kind that is unknown here
    `- CoreMisuse               1   a driver broke the contract of a pure room (our own mistake)

Every message says what is wrong, with the value, and what to do next.
"""

from typing import ClassVar


class BambooError(Exception):
    """Base of all errors of this project; `exit_code` is what the command line ends with."""

    exit_code: ClassVar[int] = 1


class InputError(BambooError):
    """What the user gave cannot be used: one line naming file, key, value and remedy."""

    exit_code: ClassVar[int] = 2
    key = ""
    """The key of the job file that is wrong; "" if something else is wrong."""
    of_key = ""
    """The line without the file: `key = value: problem; remedy`."""

    @classmethod
    def at(cls, *, file: str, key: str, value: object, problem: str, remedy: str) -> "InputError":
        """Build the one-line form used for job files: `file: key = value: problem; remedy`."""
        of_key = f"{key} = {value!r}: {problem}; {remedy}"
        error = cls(f"{file}: {of_key}")
        error.key = key
        error.of_key = of_key
        return error


class NoDevice(InputError):
    """The job wants a GPU, and torch sees none on this machine."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"cluster.device is 'cuda', and {problem}; {remedy}")
        self.problem = problem


class DamagedData(InputError):
    """A part of the data, or of what a run takes along, is not what it was: file and part. During a
    run another node may have it as it was."""


class StoreRefused(InputError):
    """The store cannot be reached, or refuses the credentials, before anything was started."""


class StoreNotReached(StoreRefused):
    """The store did not answer when it was first asked; it may answer later."""


class StoreUnavailable(BambooError):
    """The store did not answer within its deadline; the caller decides whether to retry."""


class StoreRefuses(StoreUnavailable):
    """The store answered that it does not do what was asked: one line with the remedy. Callers
    treat it as unavailable; only the administrator of the store can repair it."""


class StorageUnavailable(BambooError):
    """The storage of checkpoints did not take or give an object; training continues without it."""


class StorageFull(StorageUnavailable):
    """There is no space left where checkpoints are written, or where they are read to."""


class NotAsWritten(StorageUnavailable):
    """A checkpoint is gone, damaged or written by somebody else; a retry does not help."""


class BooksUnwritable(BambooError):
    """A file in a run's own folder cannot be written, mostly because the disk is full."""


class ProcessLost(BambooError):
    """A process that does a part of the work was killed, or cannot be started."""


class RunExists(InputError):
    """A run of this id exists already."""


class Unrecoverable(BambooError):
    """Owner and shadow of a stage are both gone and nothing else holds its state."""

    exit_code: ClassVar[int] = 3


class BudgetReached(BambooError):
    """The budget ended the run before its last step."""

    exit_code: ClassVar[int] = 4


class VerifyDiffers(BambooError):
    """Two runs that must be bitwise equal differ."""

    exit_code: ClassVar[int] = 5


class UnreadableRecord(BambooError):
    """A record in the store has a version, a kind or fields that this program does not know."""

    exit_code: ClassVar[int] = 2


class CoreMisuse(BambooError):
    """A driver called a pure room against its contract: a bug in Bamboo, never a user's."""
