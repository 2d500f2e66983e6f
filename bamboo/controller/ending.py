"""Why and how a launcher ends its run: the user, the budget, the end of its trace, too long a wait,
a store that is away.

Rule: a run is asked once to stop, at a step boundary. It is ended at once where the user asks
twice, and where it has to stop and its store is away.
"""

from collections.abc import Callable

from bamboo.config.tree import BudgetConfig, JobConfig
from bamboo.controller.deadlines import Deadlines
from bamboo.controller.market import Market
from bamboo.controller.outage import Outage
from bamboo.controller.ports import APPEND_DEADLINE_S, Ports, Wishes
from bamboo.controller.records import Records
from bamboo.core.events import StopRequested
from bamboo.core.state import Outcome
from bamboo.errors import StoreUnavailable
from bamboo.runs.progress import Progress

NOTE_EVERY_S = 5.0


class Ending:
    """The ways in which one launcher ends its run. `disk` gives a sentence when the run's disk is
    full, so that its store has to wait too."""

    def __init__(
        self,
        *,
        ports: Ports,
        wishes: Wishes,
        records: Records,
        job: JobConfig,
        store_is_ours: bool,
        market: Market | None,
        disk: Callable[[], str],
    ) -> None:
        progress = records.progress
        self._ports = ports
        self._wishes = wishes
        self._records = records
        self._budget = job.budget
        self._market = market
        self._disk = disk
        self.deadlines = Deadlines(job.cluster, now_s=progress.now_s)
        self.outage = Outage(run=progress.run, ours=store_is_ours, now_s=progress.now_s)
        self.asked = False
        """Whether the run was asked to stop."""
        self.cut_off = False
        """Whether the run was ended because its store did not answer."""
        self._next_note_at_s = 0.0

    def ask(self) -> None:
        """Ask the run to stop if there is a reason to. Raises StoreUnavailable."""
        if self.asked:
            return
        interrupted = self._wishes.count == 1
        event = self._reason_to_stop(interrupted=interrupted)
        if event is None:
            return
        self._ports.append(event, deadline_s=APPEND_DEADLINE_S)
        self.asked = True
        if interrupted:
            self._ports.screen.note(
                "stopping at the next step boundary; a second Ctrl-C stops at once"
            )

    def watch(self) -> None:
        """Append what is due because the run has waited too long. Raises StoreUnavailable."""
        for event in self.deadlines.due(self._records.progress.state, now_s=self._ports.now()):
            self._ports.append(event, deadline_s=APPEND_DEADLINE_S)

    def store_away(self, error: StoreUnavailable) -> None:
        """The store is away. The run costs money meanwhile, and cannot be asked to stop. Raises
        BambooError when the store is given up."""
        now_s = self._ports.now()
        self.deadlines.away(now_s)
        if self._records.progress.finished:
            return
        self._records.spent()
        stop = self._reason_to_stop(interrupted=False)
        sentence = self.outage.end(stop, error, now_s=now_s)
        if stop is not None and sentence:
            self.cut_off = True
            self.at_once(stop.outcome, sentence)
        elif now_s >= self._next_note_at_s:
            self._next_note_at_s = now_s + NOTE_EVERY_S
            disk = self._disk()
            self._ports.screen.note(self.outage.note(stop, error, now_s=now_s, disk=disk))

    def at_once(self, outcome: Outcome, sentence: str) -> None:
        """End every instance, and also the run unless its members did."""
        self._records.to_books(last=True)
        self._ports.fleet.terminate_all()
        self._records.ended(outcome, sentence)

    def _reason_to_stop(self, *, interrupted: bool) -> StopRequested | None:
        return stop_event(
            self._budget,
            self._records.progress,
            self._market,
            interrupted=interrupted,
            now_s=self._ports.now(),
        )


def stop_event(
    budget: BudgetConfig,
    progress: Progress,
    market: Market | None,
    *,
    interrupted: bool,
    now_s: float,
) -> StopRequested | None:
    """The request to stop for the first reason that holds now, or None."""
    found = _reason(budget, progress, market, interrupted=interrupted, now_s=now_s)
    if found is None:
        return None
    reason, outcome = found
    return StopRequested(reason=reason, outcome=outcome)


def _reason(
    budget: BudgetConfig,
    progress: Progress,
    market: Market | None,
    *,
    interrupted: bool,
    now_s: float,
) -> tuple[str, Outcome] | None:
    hours = (now_s - progress.started_at_s) / 3600
    if interrupted:
        return "interrupted by the user", Outcome.STOPPED
    spent_usd = progress.usd + progress.beside_usd
    if 0 < budget.max_usd <= spent_usd + progress.reserve_usd:
        spent = (
            f"${spent_usd:.4f} are spent (${progress.usd:.4f} for instances, "
            f"${progress.beside_usd:.4f} beside them) and a stop in order takes up to "
            f"${progress.reserve_usd:.4f} more, budget.max_usd = {budget.max_usd}"
        )
        return spent, Outcome.BUDGET
    if 0 < budget.max_hours <= hours:
        passed = f"{hours:.3f} h passed of budget.max_hours = {budget.max_hours}"
        return passed, Outcome.BUDGET
    if market is not None and (over := market.over(now_s)):
        return over, Outcome.STOPPED
    return None
