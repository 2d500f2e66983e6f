"""The launcher's loop: follow a run's decisions and metrics, act for the fleet, keep books.

It decides nothing about membership: it appends events like any member, and performs the effects
addressed to the fleet. All ports are arguments, so tests run the loop against a store in memory and
a fleet of values. One turn blocks for at most `TURN_S`, in the wait for decisions.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bamboo.billing.ledger import Accounts
from bamboo.config.tree import JobConfig
from bamboo.controller.autoscaling import Autoscaler
from bamboo.controller.chaos import Chaos
from bamboo.controller.deadlines import Deadlines
from bamboo.controller.market import Market
from bamboo.controller.missing import may_start, missing
from bamboo.controller.outage import Outage
from bamboo.controller.pace import PaceKeeper
from bamboo.controller.playing import nodes_wanted, order_chaos
from bamboo.controller.ports import Ports
from bamboo.controller.spending import LEAVING_S, Spending, short_of
from bamboo.controller.stopping import stop_event
from bamboo.coord.follow import Decision, Follower
from bamboo.core.effects import TerminateAll, TerminateInstance
from bamboo.core.events import RunFailed, StopRequested
from bamboo.core.state import Outcome, Phase
from bamboo.errors import BambooError, StoreUnavailable
from bamboo.runs.books import Booked
from bamboo.runs.pause import with_kill_stamp
from bamboo.runs.progress import Progress, with_beat, with_decision, with_metric
from bamboo.runs.store_records import Hearing
from bamboo.telemetry.samples import SamplesRecord
from bamboo.telemetry.schema import MetricRecord

TURN_S = 0.2
LEASES_EVERY_S = 0.5
FLEET_EVERY_S = 0.5
LEDGER_EVERY_S = 3.0
PACE_EVERY_S = 5.0
APPEND_DEADLINE_S = 2.0
"""An event that cannot be appended within this time is appended again in a later turn."""
AT_ONCE_DEADLINE_S = 0.5


class Launcher:
    """The launcher of one run. `run` returns the progress at the run's end, or when this launcher
    left.

    `booked` is what earlier launchers of the same run have written, which is not written again.
    """

    def __init__(
        self,
        *,
        ports: Ports,
        follower: Follower,
        job: JobConfig,
        progress: Progress,
        store_is_ours: bool,
        booked: Booked | None = None,
        market: Market | None = None,
        autoscaler: Autoscaler | None = None,
        spending: Spending | None = None,
    ) -> None:
        self._ports = ports
        self._follower = follower
        self._job = job
        self.progress = progress
        self._outage = Outage(run=progress.run, ours=store_is_ours, now_s=progress.now_s)
        self._booked = booked or Booked()
        self._chaos = Chaos(job.chaos, ordered=self._booked.ordered)
        self._deadlines = Deadlines(job.cluster, now_s=progress.now_s)
        self._market = market
        self._autoscaler = autoscaler
        self._spending = spending or Spending()
        self._missing = 0
        self._pace = PaceKeeper(job.cluster)
        self._metrics_after = "0"
        self._hearing = Hearing(ports.screen.note)
        self._losses = set(self._booked.losses)
        self._steps = {step for step, _ in self._losses}
        self._accounts = Accounts(self._booked, ports.books)
        self._due_at_s: dict[str, float] = {}
        self._asked_to_stop = False
        self._cut_off = False
        """Whether this launcher ended the run because the store did not answer."""

    def run(self) -> Progress:
        """Go on until the run is over, the user asks twice, or this launcher is to leave. Raises
        BambooError when the store or the cloud is gone. Unless the launcher left, the caller
        terminates the fleet in every case."""
        self.catch_up()
        while not self.progress.finished:
            if self._ports.leave():
                return self.progress
            self._turn(timeout_s=TURN_S)
            if self._ports.interrupts() >= 2:
                return self._stop_at_once()
        if not self._cut_off:
            self._let_leave()
        return self.progress

    def catch_up(self) -> None:
        """Read and book everything that the store has before anything else is done. A launcher that
        takes over a run must not act on an old state."""
        store = self._ports.store
        while not (self._ports.leave() or self._cut_off or self._ports.interrupts() >= 2):
            try:
                while decisions := self._follower.poll(store, timeout_s=0.0):
                    for decision in decisions:
                        self._decided(decision)
                while self._read_metrics():
                    pass
                self._accounts.read(store, self._hearing)
                break
            except StoreUnavailable as error:
                self._store_away(error)
        self._accounts.book(self.progress)
        self._chaos.skip(self._ports.now())
        self._look_at_trace()

    # ------------------------------------------------------------------ one turn

    def _turn(self, *, timeout_s: float) -> None:
        try:
            self._read(timeout_s=timeout_s)
            if self._outage.lasts:
                self._to_ledger()  # a store that can be read may still refuse writes
            self._outage.answered(self._ports.now())
            self._control()
        except StoreUnavailable as error:
            self._store_away(error)
        if not self._ports.fleet.alive():
            raise BambooError(
                "the local cloud ended while the run was going on; nothing of it is left, "
                "see logs/cloud.log in the run's folder, then launch again"
            )
        self.progress = replace(self.progress, now_s=self._ports.now())
        self._look_at_trace()
        self._ports.screen.turned(self.progress)

    def _read(self, *, timeout_s: float) -> None:
        for decision in self._follower.poll(self._ports.store, timeout_s=timeout_s):
            self._decided(decision)
        self._read_metrics()
        if self._due("leases", LEASES_EVERY_S):
            _, leases = self._ports.store.leases()
            for node, lease in leases.items():
                beat = self._hearing.beat(lease.payload)
                if beat is None:
                    continue
                self.progress = with_beat(self.progress, node, beat)
                self._accounts.told(node, beat, at_s=lease.beaten_at_s)
                self._pace.told(self.progress.state, node, beat)

    def _read_metrics(self) -> bool:
        """Whether there were any."""
        records = self._ports.store.records("metrics", after_id=self._metrics_after, timeout_s=0.0)
        for record_id, record in records:
            self._metrics_after = record_id
            heard = self._hearing.metric(record)
            if heard is not None:
                self._measured(heard)
        return bool(records)

    def _control(self) -> None:
        if self.progress.finished:
            return
        nodes, changed = nodes_wanted(
            self._market, self._autoscaler, self._ports, self.progress, self._accounts
        )
        if changed:
            self._due_at_s.pop("fleet", None)
        if self._due("fleet", FLEET_EVERY_S):
            nodes, new = self._within_limit(nodes)
            self._ports.fleet.reconcile(self.progress.state, nodes=nodes, new=new)
            self._spent()
            self._miss_nodes()
        if self._due("ledger", LEDGER_EVERY_S):
            self._to_ledger()
        if self._due("pace", PACE_EVERY_S):
            for found in self._pace.due(self.progress.state):
                self._ports.append(found, deadline_s=APPEND_DEADLINE_S)
        order_chaos(self._chaos, self._ports, self.progress)
        self._ask_to_stop()
        self._watch_deadlines()

    def _due(self, what: str, every_s: float) -> bool:
        now_s = self._ports.now()
        if now_s < self._due_at_s.get(what, 0.0):
            return False
        self._due_at_s[what] = now_s + every_s
        return True

    # ------------------------------------------------------------------ reading

    def _decided(self, decision: Decision) -> None:
        self._deadlines.moved(self._ports.now())
        self._accounts.decided(decision, first=self._follower.first)
        self.progress = with_decision(
            self.progress,
            decision.state,
            event=decision.event,
            reason=decision.reason,
            at_s=decision.now_s,
        )
        if self._market is not None:
            self._market.decided(decision.state, decision.now_s)
        if self._autoscaler is not None:
            self._autoscaler.decided(decision.state, decision.now_s)
        if decision.state.assignment is not None:
            self._chaos.begin(decision.now_s)
        if decision.state.attested is not None:
            self._ports.books.attested(decision.state.attested)
        if decision.state.version > self._booked.version:
            self._ports.screen.decided(self.progress, decision)
            self._ports.books.event(
                type(decision.event).__name__,
                self.progress,
                at_s=decision.now_s,
                data={"reason": decision.reason, "version": decision.state.version},
            )
        # An effect is performed again even when it is booked, since its author may have died in
        # between. Performing it twice does no harm.
        for effect in decision.effects:
            match effect:
                case TerminateInstance():
                    self._ports.fleet.terminate(effect.instance, reason=effect.reason)
                case TerminateAll():
                    pass  # after the workers have left, or LEAVING_S: see `_let_leave`
                case _:
                    pass  # addressed to a node

    def _measured(self, record: Mapping[str, Any]) -> None:
        now_s = self._ports.now()
        self._deadlines.moved(now_s)
        self._accounts.measured(record, now_s=now_s)
        before = self.progress.step
        if record.get("kind") == "failover":
            record = with_kill_stamp(record, self._ports.fleet.kill_stamps_s())
        self.progress = with_metric(self.progress, record)
        if record.get("kind") != "step":
            return
        step, loss = int(record["step"]), float(record["loss"])
        if self._autoscaler is not None:
            self._autoscaler.stepped(step, float(record["t_s"]))
        if "used" in record:
            # Every report is kept, because `verify --samples` compares each record with the data.
            self._ports.books.samples(SamplesRecord.of_step(step, record["used"]))
        if self.progress.step > before:
            self._ports.screen.stepped(self.progress)
        if (step, loss.hex()) in self._losses:
            return
        repeated = step in self._steps
        self._losses.add((step, loss.hex()))
        self._steps.add(step)
        self._spent()
        self._ports.books.metric(
            MetricRecord(
                step=step,
                loss=loss,
                tokens_per_s=self.progress.tokens_per_s,
                usd=self.progress.usd,
                tokens_per_usd=self.progress.tokens_per_usd,
                at_s=float(record["t_s"]),
            )
        )
        if repeated:
            # It is in the books too, so `verify` finds it.
            self._ports.screen.note(f"step {step} was reported twice, with two losses: a fault")

    # ------------------------------------------------------------------ acting

    def _spent(self) -> None:
        """Compute what the run would cost if it ended now, with the 60 s minimum of every instance.
        The screen, the ledger, the budget and at the end the receipt use this figure."""
        rented, now_s = self._ports.fleet.rented(), self._ports.now()
        progress = replace(self.progress, crossed_bytes=self._accounts.crossed_bytes)
        self.progress = self._spending.at(progress, rented, missing=self._missing, now_s=now_s)

    def _within_limit(self, nodes: int | None) -> tuple[int | None, int | None]:
        """(Nodes to keep, how many to start at most.) A run that is to stop, or whose cost requires
        it, rents no more nodes. Where dollars are limited, a node that is lost from now on is
        replaced only after the limit was checked again."""
        rented, state = self._ports.fleet.rented(), self.progress.state
        here, self._missing = short_of(self._job, state, rented, wanted=nodes)
        trains, limited = state.assignment is not None, self._job.budget.max_usd > 0
        if trains:
            self._spent()
            self._ask_to_stop()
        if self._asked_to_stop:
            return here, 0
        most = self._missing if trains and limited else None
        return nodes, may_start(state, rented, most=most, now_s=self._ports.now())

    def _miss_nodes(self) -> None:
        state = self.progress.state
        rented = self._ports.fleet.rented()
        now_s = self._ports.now()
        waited_s = self._deadlines.waited_s
        for event in missing(state, rented, self._job, now_s=now_s, waited_s=waited_s):
            self._ports.append(event, deadline_s=APPEND_DEADLINE_S)

    def _to_ledger(self, *, last: bool = False) -> None:
        rented, samples = self._ports.fleet.rented(), self._job.train.batch
        self._accounts.book(self.progress, last=last)
        self._accounts.write(self._ports.store, self.progress, rented, samples_per_step=samples)

    def _look_at_trace(self) -> None:
        if self._market is not None:
            trace = self._market.told(self._ports.now())
            self.progress = replace(self.progress, trace=trace)

    def _ask_to_stop(self) -> None:
        if self._asked_to_stop:
            return
        interrupted = self._ports.interrupts() == 1
        event = self._reason_to_stop(interrupted=interrupted)
        if event is None:
            return
        self._ports.append(event, deadline_s=APPEND_DEADLINE_S)
        self._asked_to_stop = True
        if interrupted:
            self._ports.screen.note("stopping at the next step boundary; Ctrl-C again: at once")

    def _reason_to_stop(self, *, interrupted: bool) -> StopRequested | None:
        budget = self._job.budget
        market = self._market
        now_s = self._ports.now()
        return stop_event(budget, self.progress, market, interrupted=interrupted, now_s=now_s)

    def _watch_deadlines(self) -> None:
        state = self.progress.state
        for event in self._deadlines.due(state, now_s=self._ports.now()):
            self._ports.append(event, deadline_s=APPEND_DEADLINE_S)

    def _store_away(self, error: StoreUnavailable) -> None:
        """The store is away. The run costs money meanwhile, and cannot be asked to stop."""
        now_s = self._ports.now()
        self._deadlines.away(now_s)
        if not self.progress.finished:
            self._spent()
            stop = self._reason_to_stop(interrupted=False)
            sentence = self._outage.end(stop, error, now_s=now_s)
            if stop is not None and sentence:
                self._cut_off = True
                self._end_here(stop.outcome, sentence)
                return
            if self._due("store-note", 5.0):
                disk = self._ports.disk()
                self._ports.screen.note(self._outage.note(stop, error, now_s=now_s, disk=disk))
        self._ports.pause(TURN_S)

    # ------------------------------------------------------------------ the end

    def _let_leave(self) -> None:
        """The workers have written everything. Let them leave in order, then end every instance."""
        end_s = self._ports.now() + LEAVING_S
        while self.progress.state.live_nodes() and self._ports.now() < end_s:
            self._turn(timeout_s=TURN_S)
        self._turn(timeout_s=0.0)
        self._ports.fleet.terminate_all()
        self._spent()
        self._to_ledger(last=True)

    def _stop_at_once(self) -> Progress:
        """The second request to stop: write it to the log if the store still answers, and end."""
        sentence = f"ended at once after step {self.progress.step}, as was asked"
        try:
            self._ports.append(
                RunFailed(reporter="launcher", outcome=Outcome.STOPPED, reason=sentence),
                deadline_s=AT_ONCE_DEADLINE_S,
            )
            self._read(timeout_s=0.0)
        except StoreUnavailable as error:
            self._ports.screen.note(f"the log does not have this end: {error}")
        self._end_here(Outcome.STOPPED, sentence)
        return self.progress

    def _end_here(self, outcome: Outcome, sentence: str) -> None:
        """End every instance, and also the run unless its members did."""
        self._accounts.book(self.progress, last=True)
        self._ports.fleet.terminate_all()
        if not self.progress.finished:
            state = replace(
                self.progress.state, phase=Phase.FINISHED, outcome=outcome, sentence=sentence
            )
            self.progress = replace(self.progress, state=state, ending=sentence)
