"""The launcher's loop: follow a run's decisions and metrics, act for the fleet, keep books.

It decides nothing about membership: it appends events like any member, and performs the effects
addressed to the fleet. `records` keeps what is read, `fleet_control` rents and ends instances, and
`ending` ends the run. All ports are arguments, so tests run the loop against a store in memory and
a fleet of values. One turn blocks for at most `TURN_S`, in the wait for decisions.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from bamboo.config.tree import ClusterConfig, JobConfig
from bamboo.controller.autoscaling import Autoscaler
from bamboo.controller.ending import Ending
from bamboo.controller.fleet_control import FleetControl
from bamboo.controller.market import Market
from bamboo.controller.pace import PaceKeeper
from bamboo.controller.ports import APPEND_DEADLINE_S, Append, Ports, Wishes
from bamboo.controller.records import Records
from bamboo.controller.spending import LEAVING_S, Spending
from bamboo.coord.follow import Decision, Follower
from bamboo.core.events import RunFailed
from bamboo.core.state import Outcome
from bamboo.errors import StoreUnavailable
from bamboo.ports import Store
from bamboo.runs.books import Booked
from bamboo.runs.progress import Progress

if TYPE_CHECKING:
    from bamboo.controller.searching import Searcher

TURN_S = 0.2
LEASES_EVERY_S = 0.5
FLEET_EVERY_S = 0.5
LEDGER_EVERY_S = 3.0
PACE_EVERY_S = 5.0
AT_ONCE_DEADLINE_S = 0.5


def launcher_of(
    ports: Ports,
    *,
    store: Store,
    follower: Follower,
    wishes: Wishes,
    job: JobConfig,
    progress: Progress,
    store_is_ours: bool,
    booked: Booked | None = None,
    market: Market | None = None,
    autoscaler: Autoscaler | None = None,
    spending: Spending | None = None,
    searcher: "Searcher | None" = None,
    disk: Callable[[], str] = lambda: "",
    pause: Callable[[float], None] = time.sleep,
) -> "Launcher":
    """The launcher of one run. `booked` is what earlier launchers of the same run have written,
    which is not written again. `disk` gives a sentence when the run's disk is full, so that its
    store has to wait too; `pause` lets so many seconds pass before a store is asked again."""
    booked = booked or Booked()
    records = Records(
        ports=ports,
        store=store,
        job=job,
        progress=progress,
        booked=booked,
        spending=spending or Spending(),
    )
    ending = Ending(
        ports=ports,
        wishes=wishes,
        records=records,
        job=job,
        store_is_ours=store_is_ours,
        market=market,
        disk=disk,
    )
    fleet = FleetControl(
        ports=ports,
        records=records,
        ending=ending,
        job=job,
        booked=booked,
        market=market,
        autoscaler=autoscaler,
    )
    launcher = Launcher(
        store=store,
        follower=follower,
        append=ports.append,
        records=records,
        fleet=fleet,
        ending=ending,
        wishes=wishes,
        cluster=job.cluster,
        now=ports.now,
        pause=pause,
    )
    launcher.searcher = searcher
    return launcher


class Launcher:
    """Leads one run: each turn reads what the store has, and then acts."""

    def __init__(
        self,
        *,
        store: Store,
        follower: Follower,
        append: Append,
        records: Records,
        fleet: FleetControl,
        ending: Ending,
        wishes: Wishes,
        cluster: ClusterConfig,
        now: Callable[[], float],
        pause: Callable[[float], None],
    ) -> None:
        self._store = store
        self._follower = follower
        self._append = append
        self._records = records
        self._fleet = fleet
        self._ending = ending
        self._wishes = wishes
        self._pace = PaceKeeper(cluster)
        self.searcher: Searcher | None = None
        """Tries strategies while the run trains, where the job asks for that."""
        self._now = now
        self._pause = pause
        self._metrics_after = "0"
        self._due_at_s: dict[str, float] = {}

    @property
    def progress(self) -> Progress:
        """What is known of the run by now."""
        return self._records.progress

    def run(self) -> Progress:
        """Go on until the run is over, the user asks twice, or this launcher is to leave; returns
        the progress by then. Raises BambooError when the store or the cloud is gone. Unless the
        launcher left, the caller terminates the fleet in every case."""
        self.catch_up()
        while not self.progress.finished:
            if self._wishes.leaving:
                return self.progress
            self._turn(timeout_s=TURN_S)
            if self._wishes.count >= 2:
                return self._stop_at_once()
        if self.searcher is not None:
            self.searcher.close(self.progress)
        if not self._ending.cut_off:
            self._let_leave()
        return self.progress

    def catch_up(self) -> None:
        """Read and book everything that the store has before anything else is done. A launcher that
        takes over a run must not act on an old state."""
        while not (self._wishes.leaving or self._ending.cut_off or self._wishes.count >= 2):
            try:
                while self._read_decisions(timeout_s=0.0):
                    pass
                while self._read_metrics():
                    pass
                self._records.read_ledger()
                break
            except StoreUnavailable as error:
                self._store_away(error)
        self._records.to_books()
        self._fleet.skip_preemptions()
        self._records.played(self._fleet.trace())

    # ------------------------------------------------------------------ one turn

    def _turn(self, *, timeout_s: float) -> None:
        try:
            self._read(timeout_s=timeout_s)
            if self._ending.outage.lasts:
                self._records.to_ledger()  # a store that can be read may still refuse writes
            self._ending.outage.answered(self._now())
            self._act()
        except StoreUnavailable as error:
            self._store_away(error)
        self._fleet.refuse_gone()
        self._records.turned(self._fleet.trace())

    def _read(self, *, timeout_s: float) -> None:
        self._read_decisions(timeout_s=timeout_s)
        self._read_metrics()
        if self._due("leases", LEASES_EVERY_S):
            _, leases = self._store.leases()
            for node, lease in leases.items():
                beat = self._records.hearing.beat(lease.payload)
                if beat is not None:
                    self._records.told(node, beat, at_s=lease.beaten_at_s)
                    self._pace.told(self.progress.state, node, beat)

    def _read_decisions(self, *, timeout_s: float) -> list[Decision]:
        decisions = self._follower.poll(self._store, timeout_s=timeout_s)
        for decision in decisions:
            self._ending.deadlines.moved(self._now())
            self._records.decided(decision, first=self._follower.first)
            self._fleet.decided(decision)
            if self.searcher is not None:
                self.searcher.decided(decision)
        return decisions

    def _read_metrics(self) -> bool:
        """Whether there were any."""
        records = self._store.records("metrics", after_id=self._metrics_after, timeout_s=0.0)
        for record_id, text in records:
            self._metrics_after = record_id
            record = self._records.hearing.metric(text)
            if record is None:
                continue
            self._ending.deadlines.moved(now_s := self._now())
            self._records.measured(record, now_s=now_s)
            if record.get("kind") == "step":
                self._fleet.stepped(int(record["step"]), float(record["t_s"]))
            if self.searcher is not None:
                self.searcher.measured(record)
        return bool(records)

    def _act(self) -> None:
        if self.progress.finished:
            return
        nodes, changed = self._fleet.wanted()
        if changed:
            self._due_at_s.pop("fleet", None)
        if self._due("fleet", FLEET_EVERY_S):
            self._fleet.reconcile(nodes)
        if self._due("ledger", LEDGER_EVERY_S):
            self._records.to_ledger()
        if self._due("pace", PACE_EVERY_S):
            for measured in self._pace.due(self.progress.state):
                self._append(measured, deadline_s=APPEND_DEADLINE_S)
        self._fleet.order_preemptions()
        if self.searcher is not None:
            self.searcher.act(self.progress)
        self._ending.ask()
        self._ending.watch()

    def _due(self, what: str, every_s: float) -> bool:
        now_s = self._now()
        if now_s < self._due_at_s.get(what, 0.0):
            return False
        self._due_at_s[what] = now_s + every_s
        return True

    def _store_away(self, error: StoreUnavailable) -> None:
        self._ending.store_away(error)
        if not self._ending.cut_off:
            self._pause(TURN_S)

    # ------------------------------------------------------------------ the end

    def _let_leave(self) -> None:
        """The workers have written everything. Let them leave in order, then end every instance."""
        end_s = self._now() + LEAVING_S
        while self.progress.state.live_nodes() and self._now() < end_s:
            self._turn(timeout_s=TURN_S)
        self._turn(timeout_s=0.0)
        self._fleet.terminate_all()
        self._records.spent()
        self._records.to_ledger(last=True)

    def _stop_at_once(self) -> Progress:
        """The second request to stop: write it to the log if the store still answers, and end."""
        sentence = f"ended at once after step {self.progress.step}, as was asked"
        ended = RunFailed(reporter="launcher", outcome=Outcome.STOPPED, reason=sentence)
        try:
            self._append(ended, deadline_s=AT_ONCE_DEADLINE_S)
            self._read(timeout_s=0.0)
        except StoreUnavailable as error:
            self._records.note(f"the log does not have this end: {error}")
        self._ending.at_once(Outcome.STOPPED, sentence)
        return self.progress
