"""A node's part in a change of how its steps are synchronised.

Rule: the node answers a proposal once, and keeps what it promises: it does nothing of a step beyond
until it has read what is decided, or that the proposal is withdrawn. Both follow from the newest
state alone, so nothing is lost with the node that asked.
"""

from bamboo.coord.strategies import Strategies, needed
from bamboo.core.events import FaultScope, StrategyReady
from bamboo.core.faults import fault_of
from bamboo.core.proposals import MARGIN
from bamboo.core.rounds import Proposal
from bamboo.core.state import State
from bamboo.ids import NodeId
from bamboo.runtime.state.transfer import Transfers
from bamboo.runtime.step.executor import Executor
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
        strategies: Strategies,
    ) -> None:
        self._me = me
        self._executor = executor
        self._transfers = transfers
        self._outbox = outbox
        self._strategies = strategies
        self._answered = -1
        """`since` of the newest proposal that was answered here."""
        self._missed = False

    def read(self, state: State) -> None:
        """Follow the newest state. What it names was fetched before, where the store had it."""
        if self._me not in state.participants():
            self._executor.wait_before(None)
            return
        chosen = state.having(proposal=None)
        missing = [hash for hash in sorted(needed(chosen)) if self._strategies.known(hash) is None]
        if missing and not self._missed:
            self._miss(state, missing[0])
        proposal = state.proposal
        if proposal is None:
            self._executor.wait_before(None)
        elif proposal.since != self._answered:
            self._answer(proposal)

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

    def _miss(self, state: State, hash: str) -> None:
        """The run goes on by a strategy that this node cannot read, so it goes on without it."""
        self._missed = True
        me = state.node(self._me)
        assert me is not None, "who takes part has joined"
        reason = f"the strategy {hash} of the run cannot be read from its store"
        self._outbox.event(fault_of(me, FaultScope.NODE, reason))
