"""The run's log in a played world: decide, compare-and-set, read; it may be away, or lose all.

Rule: only `core.transition` decides. A store that has lost the run takes the newest version that
any live node had read, like `bamboo.coord.refill`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from bamboo.core.effects import Effect
from bamboo.core.events import Event, StoreRefilled
from bamboo.core.machine import Transition, transition
from bamboo.core.state import Node, Policy, State


@dataclass(slots=True)
class Entry:
    """One committed decision; `to` has its effects by addressee, `nodes` its nodes by id."""

    version: int
    author: str
    event: Event
    before: State
    state: State
    effects: tuple[Effect, ...]
    reason: str
    to: dict[str, list[Effect]] = field(init=False)
    nodes: dict[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self.to = {}
        for effect in self.effects:
            self.to.setdefault(effect.to, []).append(effect)
        self.nodes = {str(node.id): node for node in self.state.nodes}


@dataclass(slots=True)
class Decision:
    """The result of an event on a state, not committed yet."""

    version: int
    fills: int
    event: Event
    before: State
    decided: Transition


class Log:
    """The entries, oldest first: `entries[i]` led to version `i + 1`. `watch` receives each commit
    and each event that changed nothing, before any node does."""

    def __init__(self, first: State, policy: Policy) -> None:
        self.first, self.policy = first, policy
        self.state = first
        self.entries: list[Entry] = []
        self.fills = 0
        """Number of refills; it takes the place of the store's id."""
        self.kept: list[int] = [0]
        """By fill, the version that was kept."""
        self.asked = 0
        """Number of requested decisions."""
        self.up = True
        self.refuses = False
        """Whether it can be read as usual but refuses writes."""
        self.lost = False
        """Whether it has lost the run and was not refilled yet."""
        self.watch: Callable[[Entry], None] = lambda entry: None
        self.watch_stale: Callable[[str, Event, State, Transition], None] = lambda *_: None
        self._waiting: list[Callable[[], None]] = []

    @property
    def there(self) -> bool:
        return self.up and not self.lost

    @property
    def takes(self) -> bool:
        """Whether decisions can be committed."""
        return self.there and not self.refuses

    def when_there(self, call: Callable[[], None]) -> None:
        """Call once the store answers again."""
        self._waiting.append(call)

    def comes_back(self) -> None:
        """The store answers again."""
        if self.there:
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                call()

    # ---------------------------------------------------------------- append

    def decide(self, event: Event, now_s: float) -> Decision:
        """The decision that `event` leads to now."""
        self.asked += 1
        return Decision(
            version=self.state.version,
            fills=self.fills,
            event=event,
            before=self.state,
            decided=transition(self.state, event, now_s=now_s, policy=self.policy),
        )

    def commit(self, author: str, decision: Decision) -> bool:
        """Commit the decision; False if another one was committed first."""
        if (decision.version, decision.fills) != (self.state.version, self.fills):
            return False
        decided = decision.decided
        if decided.state is decision.before:
            self.watch_stale(author, decision.event, decision.before, decided)
            return True
        entry = Entry(
            decided.state.version,
            author,
            decision.event,
            decision.before,
            decided.state,
            decided.effects,
            decided.reason,
        )
        self.entries.append(entry)
        self.state = decided.state
        self.watch(entry)
        return True

    # ---------------------------------------------------------------- loss and refill

    def lose(self) -> None:
        """The store no longer has the run."""
        self.lost = True

    def refill(self, version: int, reporter: str, now_s: float) -> None:
        """Refill the store with the state of `version`."""
        del self.entries[version:]
        self.state = self.entries[-1].state if self.entries else self.first
        self.fills += 1
        self.kept.append(version)
        self.lost = False
        self.commit(reporter, self.decide(StoreRefilled(reporter=reporter), now_s))
