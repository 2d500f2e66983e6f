"""How long a launcher waits for a store that does not answer or refuses writes, and what ends the
wait.

Rule: a store that can be read but refuses writes is away. Training goes on without its store, so an
outage alone does not end the run soon. But meanwhile the run cannot be asked to stop, so when a
budget runs out then, everything is ended at once.
"""

from bamboo.core.events import StopRequested
from bamboo.errors import BambooError, StoreRefuses, StoreUnavailable

STORE_AWAY_S = 120.0
"""An embedded store that does not answer for so long is gone, and the run with it. The local cloud
restarts a store that died at once, and ends where it cannot. A stopped store may wake up."""
THEIR_STORE_AWAY_S = 3600.0
"""A store of the user's own is given up after so long. By then the agents leave by themselves."""
ORDERLY_S = 120.0
"""An outage may delay a due stop by so long. After that the run is not stopped in order."""


class Outage:
    """Receives whether the store answers and accepts writes, and decides while it does not. `ours`
    says that it is an embedded store."""

    def __init__(self, *, run: str, ours: bool, now_s: float) -> None:
        self._run = run
        self._ours = ours
        self._answered_at_s = self._heard_at_s = now_s
        self.lasts = False
        """Whether the store is away, as far as is known."""

    def answered(self, now_s: float) -> None:
        """The store answers and accepts writes."""
        self._answered_at_s = self._heard_at_s = now_s
        self.lasts = False

    def away_s(self, now_s: float) -> float:
        """How long the store has been away."""
        return now_s - self._answered_at_s

    def end(self, stop: StopRequested | None, error: StoreUnavailable, *, now_s: float) -> str:
        """The sentence to end everything at once with, as `stop` requires, or "". `stop` is the
        request that the run would get now. Raises BambooError when the store is given up."""
        self.lasts = True
        away_s = self.away_s(now_s)
        if isinstance(error, StoreRefuses):
            self._heard_at_s = now_s
        silent_s = now_s - self._heard_at_s
        resume = f"`bamboo resume {self._run}` goes on from what was saved"
        if stop is not None and away_s > ORDERLY_S:
            return f"{stop.reason}; ended at once, its store is away for {away_s:.0f} s; {resume}"
        if self._ours and silent_s > STORE_AWAY_S:
            raise BambooError(
                f"the run's own store is gone for {silent_s:.0f} s: {error}"
            ) from error
        if away_s > THEIR_STORE_AWAY_S:
            raise BambooError(
                f"the store is away for {away_s:.0f} s, and nodes wait no longer than "
                f"{THEIR_STORE_AWAY_S:g} s: {error}; {resume}, once the store answers again"
            ) from error
        return ""

    def note(
        self, stop: StopRequested | None, error: StoreUnavailable, *, now_s: float, disk: str = ""
    ) -> str:
        """What to tell a person meanwhile; `disk` is a sentence about the run's disk."""
        away_s = self.away_s(now_s)
        lasts = f" for {away_s:.0f} s" if away_s >= 1 else ""
        said = f"the store is away{lasts}; training goes on"
        if isinstance(error, StoreRefuses):
            said = f"{error}{lasts and f';{lasts} now'}; training goes on"
        if stop is not None:
            said += f", though {stop.reason}: all is ended after {ORDERLY_S:g} s without a store"
        return f"{said}; {disk}" if disk else said
