"""Which instances a run has: how many it keeps, by the trace, the autoscaler or its job alone, and
which of them are ended or preempted.

Rule: an order to preempt is written down before it is given, and is repeated until the instance is
gone.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bamboo.config.tree import JobConfig
from bamboo.controller.autoscaling import Autoscaler, scale
from bamboo.controller.chaos import Chaos
from bamboo.controller.ending import Ending
from bamboo.controller.market import Market
from bamboo.controller.missing import may_start, missing
from bamboo.controller.ports import APPEND_DEADLINE_S, Ports
from bamboo.controller.records import Records
from bamboo.controller.spending import short_of
from bamboo.coord.follow import Decision
from bamboo.core.effects import TerminateInstance
from bamboo.errors import BambooError
from bamboo.ids import InstanceId
from bamboo.runs.books import PREEMPTION_ORDERED, SEAT_LOST, SEAT_TAKEN, Booked
from bamboo.runs.progress import TraceNow


class FleetControl:
    """The fleet of one launcher. Methods that append events raise StoreUnavailable."""

    def __init__(
        self,
        *,
        ports: Ports,
        records: Records,
        ending: Ending,
        job: JobConfig,
        booked: Booked,
        market: Market | None,
        autoscaler: Autoscaler | None,
    ) -> None:
        self._ports = ports
        self._records = records
        self._ending = ending
        self._job = job
        self._chaos = Chaos(job.chaos, ordered=booked.ordered)
        self._market = market
        self._autoscaler = autoscaler
        rented = ports.fleet.rented()
        self._before = {one.instance for one in rented if one.ended_at_s is not None}
        """Instances that ended before this launcher began."""

    # ------------------------------------------------------------------ what it is told

    def decided(self, decision: Decision) -> None:
        """Take in a decision, and perform its effects that are addressed to the fleet."""
        for one in (self._market, self._autoscaler):
            if one is not None:
                one.decided(decision.state, decision.now_s)
        if decision.state.assignment is not None:
            self._chaos.begin(decision.now_s)
        # An effect is performed again even when it is booked, since its author may have died in
        # between. Performing it twice does no harm. `TerminateAll` waits until the workers have
        # left, or `LEAVING_S`: the launcher's loop does it.
        for effect in decision.effects:
            if isinstance(effect, TerminateInstance):
                self._ports.fleet.terminate(effect.instance, reason=effect.reason)

    def stepped(self, step: int, at_s: float) -> None:
        """Take in a finished step."""
        if self._autoscaler is not None:
            self._autoscaler.stepped(step, at_s)

    def skip_preemptions(self) -> None:
        """Order no random preemption of the time before now."""
        self._chaos.skip(self._ports.now())

    # ------------------------------------------------------------------ what it does in a turn

    def refuse_gone(self) -> None:
        """Raises BambooError when the cloud is gone."""
        if not self._ports.fleet.alive():
            raise BambooError(
                "the local cloud ended while the run was going on; nothing of it is left, "
                "see logs/cloud.log in the run's folder, then launch again"
            )

    def trace(self) -> TraceNow | None:
        """Where the trace is now, if the run has one."""
        return None if self._market is None else self._market.told(self._ports.now())

    def wanted(self) -> tuple[int | None, bool]:
        """How many nodes to keep (None: as many as the job may have), and whether the fleet has to
        be reconciled now."""
        records = self._records
        if self._autoscaler is not None:
            scaled = scale(self._autoscaler, self._ports, records.progress, records.accounts)
            return scaled, False
        return (None, False) if self._market is None else self._play(self._market)

    def reconcile(self, nodes: int | None) -> None:
        """Start and end instances, and report those that no member reports."""
        records, fleet = self._records, self._ports.fleet
        nodes, new = self._within_limit(nodes)
        fleet.reconcile(records.progress.state, nodes=nodes, new=new)
        records.spent()
        waited_s = self._ending.deadlines.waited_s
        state = records.progress.state
        now_s = self._ports.now()
        not_its_own = self._before.union(fleet.asked())
        events = missing(
            state,
            fleet.rented(),
            self._job,
            now_s=now_s,
            waited_s=waited_s,
            not_its_own=not_its_own,
        )
        for event in events:
            self._ports.append(event, deadline_s=APPEND_DEADLINE_S)

    def order_preemptions(self) -> None:
        """Order the preemptions of the job that are due, after writing down the listed ones."""
        progress = self._records.progress
        due = self._chaos.due(progress.state, steps_finished=progress.step, now_s=self._ports.now())
        for one in due:
            if one.listed is not None:
                self._book(PREEMPTION_ORDERED, {"listed": one.listed, "instance": one.instance})
            self._ports.fleet.preempt(one.instance, notice_s=one.notice_s)

    def terminate_all(self) -> None:
        """End every instance."""
        self._ports.fleet.terminate_all()

    def _play(self, market: Market) -> tuple[int, bool]:
        """Play the trace on to now: how many nodes to keep, and whether a seat changed."""
        fleet = self._ports.fleet
        turn = market.turn(fleet.rented(), now_s=self._ports.now())
        for seated in turn.seated:
            self._book(SEAT_TAKEN, asdict(seated))
        for loss in turn.losses:
            if not loss.again:
                self._book(SEAT_LOST, asdict(loss))
            fleet.preempt(InstanceId(loss.instance), notice_s=0.0, cause="trace")
        if turn.ended:
            ends = f"the trace ends here: its {turn.nodes} nodes stay, and no more come"
            self._ports.screen.note(ends)
        if not turn.losses:
            return turn.nodes, turn.changed
        # An instance that could not be taken yet counts. Otherwise the fleet would end another one
        # as surplus.
        here = {one.instance for one in fleet.rented() if one.ended_at_s is None}
        return turn.nodes + sum(loss.instance in here for loss in turn.losses), turn.changed

    def _within_limit(self, nodes: int | None) -> tuple[int | None, int | None]:
        """(Nodes to keep, how many to start at most.) A run that is to stop, or whose cost requires
        it, rents no more nodes. Where dollars are limited, a node that is lost from now on is
        replaced only after the limit was checked again."""
        records = self._records
        rented, state = self._ports.fleet.rented(), records.progress.state
        here, records.missing = short_of(self._job, state, rented, wanted=nodes)
        trains, limited = state.assignment is not None, self._job.budget.max_usd > 0
        if trains:
            records.spent()
            self._ending.ask()
        if self._ending.asked:
            return here, 0
        most = records.missing if trains and limited else None
        return nodes, may_start(state, rented, most=most, now_s=self._ports.now())

    def _book(self, kind: str, data: Mapping[str, Any]) -> None:
        progress, at_s = self._records.progress, self._ports.now()
        self._ports.books.event(kind, progress, at_s=at_s, data=data)
