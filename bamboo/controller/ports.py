"""All that the launcher's loop uses, as Protocols: the fleet, the screen, the books, the log, and
what the user asks for."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bamboo.billing.money import Rented
from bamboo.core.events import Event
from bamboo.core.state import State
from bamboo.ids import InstanceId
from bamboo.runs.ports import Books, Screen


class Fleet(Protocol):
    """The instances of the run, as the launcher may change and see them."""

    def reconcile(self, state: State, *, nodes: int | None = None, new: int | None = None) -> None:
        """Start missing instances and end unwanted ones; within seconds. `nodes` is how many to
        keep, where that differs from the job; `new` is how many may be started, where that is
        limited."""

    def terminate(self, instance: InstanceId, *, reason: str) -> None:
        """End one instance; safe when it is gone already."""

    def terminate_all(self) -> None:
        """End every instance of the run; safe to call again."""

    def rented(self) -> Sequence[Rented]:
        """Every instance that the run ever had."""

    def asked(self) -> Collection[InstanceId]:
        """The instances that a launcher of the run has told the cloud to end."""

    def preempt(self, instance: InstanceId, *, notice_s: float, cause: str = "chaos") -> None:
        """Have the cloud take an instance. One that went by itself meanwhile is only noted."""

    def kill_stamps_s(self) -> Mapping[str, float]:
        """Instance -> time.monotonic() of this machine just before its kill, where known."""

    def alive(self) -> bool:
        """Whether the cloud answers at all."""


APPEND_DEADLINE_S = 2.0
"""An event that cannot be appended within this time is appended again in a later turn."""


class Append(Protocol):
    """Runs the transition and commits it: `coord.Driver.append`."""

    def __call__(self, event: Event, *, deadline_s: float) -> object:
        """Raises StoreUnavailable when the store does not answer by the deadline."""


class Wishes(Protocol):
    """What the user asks of this launcher: `bamboo.signals.Interrupts`."""

    @property
    def count(self) -> int:
        """How often the end was asked for: once means at a step boundary, twice at once."""

    @property
    def leaving(self) -> bool:
        """Whether this launcher is to leave while the run goes on without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Everything that the loop's parts act on."""

    append: Append
    fleet: Fleet
    screen: Screen
    books: Books
    now: Callable[[], float]
    """Unix time."""
