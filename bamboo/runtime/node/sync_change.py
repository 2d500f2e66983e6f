"""A node's part in a change of how its steps are synchronised.

Rule: the node answers a proposal once, and keeps what it promises: it does nothing of a step beyond
until it has read what is decided, or that the proposal is withdrawn. Both follow from the newest
state alone, so nothing is lost with the node that asked.
"""

from bamboo.coord.strategies import Strategies
from bamboo.core.events import FaultScope, StrategyReady
from bamboo.core.faults import fault_of
from bamboo.core.proposals import MARGIN
from bamboo.core.rounds import Proposal, SyncChoice
from bamboo.core.state import State
from bamboo.ids import NodeId
from bamboo.runtime.state.transfer import Transfers
from bamboo.runtime.step.exchange_plan import SyncSchedule
from bamboo.runtime.step.executor import Executor
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.step.slots import SlotBuilder
from bamboo.runtime.wire.outbox import Outbox


class SyncChange:
    """Belongs to the trainer's thread."""

    def __init__(
        self,
        *,
        me: NodeId,
        executor: Executor,
        transfers: Transfers,
        outbox: Outbox,
        builder: SlotBuilder,
        strategies: Strategies | None,
    ) -> None:
        self._me = me
        self._executor = executor
        self._transfers = transfers
        self._outbox = outbox
        self._strategies = strategies or Strategies()
        self._schedule = builder.schedule = SyncSchedule(builder.strategy.placement.sync)
        self._syncs: tuple[SyncChoice, ...] = ()
        """Those that all runs here have."""
        self._answered = -1
        """`since` of the newest proposal that was answered here."""
        self._missed = False

    def read(self, state: State) -> None:
        """Follow the newest state, before anything is built by it. What it names was fetched
        before, where the store had it."""
        if self._syncs != state.syncs and not self._follow(state.syncs):
            if self._me in state.participants():
                self._miss(state)
            return
        proposal = state.proposal if self._me in state.participants() else None
        if proposal is None:
            self._executor.wait_before(None)
        elif proposal.since != self._answered:
            self._answer(proposal)

    def _follow(self, syncs: tuple[SyncChoice, ...]) -> bool:
        """Whether the strategies of all steps are known here, so that all runs have them."""
        found = [(c.from_step, self._strategies.known(c.hash)) for c in syncs]
        choices = [(step, sync) for step, sync in found if sync is not None]
        if len(choices) < len(found):
            return False
        known = {choice.number for choice in self._syncs}
        self._schedule.have(choices)
        for choice, (from_step, sync) in zip(syncs, choices, strict=True):
            for run in self._runs() if choice.number not in known else ():
                run.change_plan(from_step, run.plan.by(sync))
        self._syncs = syncs
        return True

    def _runs(self) -> list[SlotRun]:
        return [*self._executor.owned.values(), *self._executor.shadowed.values()]

    def _answer(self, proposal: Proposal) -> None:
        executor = self._executor
        known = self._strategies.known(proposal.hash) is not None
        replicas = self._transfers.replicas_from()
        owned = [run.step for run in executor.owned.values()]
        begun = max([executor.begun_step, *(run.step for run in executor.shadowed.values())])
        self._answered = proposal.since
        executor.wait_before(begun + MARGIN if known else None)
        self._outbox.event(
            StrategyReady(
                node=self._me,
                since=proposal.since,
                begun=begun,
                oldest=min([*owned, *replicas.values()], default=0),
                refused="" if known else "it is not in the store",
            )
        )

    def _miss(self, state: State) -> None:
        """The run goes on by a strategy that this node cannot read, so it goes on without it."""
        lost = next(c for c in state.syncs if self._strategies.known(c.hash) is None)
        self._executor.wait_before(lost.from_step)
        if not self._missed:
            self._missed = True
            me = state.node(self._me)
            assert me is not None, "who takes part has joined"
            reason = f"the strategy {lost.hash} of the run cannot be read from its store"
            self._outbox.event(fault_of(me, FaultScope.NODE, reason))
