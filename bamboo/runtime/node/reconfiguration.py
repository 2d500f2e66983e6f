"""A node's part in a reconfiguration: stop, report what it holds, fetch what it lacks, go on.

    node  (event) Quiesced      the layers that it holds, and as of which step
    node  (event) LayoutBuilt   all that it is to own or shadow in the new layout is here

Rule: what a node held when it stopped stays until all nodes go on, because other nodes may ask for
it and another round may begin. What the new layout needs is fetched by `new_layout`.
"""

from collections.abc import Callable

from bamboo.core.events import BoundaryReady, Quiesced
from bamboo.core.state import State
from bamboo.ids import NodeId
from bamboo.runtime.node.new_layout import NewLayout
from bamboo.runtime.state.prefetch import NodePrefetch
from bamboo.runtime.state.restore import Vault
from bamboo.runtime.state.stopped import Stopped
from bamboo.runtime.step.executor import Executor
from bamboo.runtime.step.slots import SlotBuilder
from bamboo.runtime.wire.messages import Mailbox
from bamboo.runtime.wire.outbox import Outbox


class NodeReconfiguration:
    """The reconfigurations of one node. Belongs to the trainer's thread and never waits."""

    def __init__(
        self,
        *,
        me: NodeId,
        mailbox: Mailbox,
        executor: Executor,
        builder: SlotBuilder,
        outbox: Outbox,
        vault: Vault | None,
        prefetch: NodePrefetch,
    ) -> None:
        self._me = me
        self._mailbox = mailbox
        self._executor = executor
        self._outbox = outbox
        self._vault = vault
        self._prefetch = prefetch
        self.holding = False
        """Whether no step may begin before a boundary is agreed."""
        self.since = -1
        """The round that this node stops, or has stopped, for."""
        self._stopping = False
        self._stopped = Stopped(me=me, mailbox=mailbox, executor=executor)
        self.say_losses: Callable[[], None] = lambda: None
        self._said_era = -1
        self.layout = NewLayout(
            me=me,
            mailbox=mailbox,
            builder=builder,
            outbox=outbox,
            vault=vault,
            stopped=self._stopped,
        )

    # ------------------------------------------------------------------ stopping

    def agree(self, since: int, begun: int) -> None:
        """Begin no step, and report which was begun last."""
        self.since = since
        self.holding = True
        self._executor.operations.shadows_first.begin()
        self._outbox.event(BoundaryReady(node=self._me, since=since, step=begun))

    def stop_after(self, since: int, step: int) -> None:
        """Finish `step`, then stop."""
        self.since = since
        self.holding = False
        self._stopping = True
        self._executor.stop_after(step)

    def stop(self, since: int) -> None:
        """Stop with what is here, but take the steps that need nothing more to be computed."""
        self.since = since
        self.holding = False
        self._stopping = True
        self._executor.freeze()

    def serve(self) -> None:
        """Once nothing moves any more, report what is here. Called when no operation is ready."""
        if not self._stopping or not (self._executor.frozen or self._at_boundary()):
            return
        self._stopping = False
        self._executor.freeze()
        self._stopped.take(self._executor.release_all())
        self._stopped.held |= self._prefetch.take()
        self._outbox.event(
            Quiesced(
                node=self._me,
                since=self.since,
                holdings=self._stopped.holdings(),
                norms=self._stopped.norms(),
            )
        )

    def _at_boundary(self) -> bool:
        runs = (*self._executor.owned.values(), *self._executor.shadowed.values())
        boundary = self._executor.boundary
        if boundary is None or not self._prefetch.stands_after(boundary):
            return False
        there = all(run.step > boundary and not run.cursor for run in runs)
        return there and (not runs or self._mailbox.safe_step > boundary)

    # ------------------------------------------------------------------ the new layout

    def sync(self, state: State) -> None:
        """Begin to build the layout that the newest state has decided, once."""
        reconfiguration = state.reconfiguration
        layout = self.layout
        if state.assignment is not None and (
            reconfiguration is None or reconfiguration.base is not None
        ):
            # Independent of the reconfiguration: a log that was refilled may begin after it.
            layout.builder = layout.builder.laid_out(state.grid, state.cut, state.shares)
        if reconfiguration is None or reconfiguration.since != layout.round:
            layout.end_reading()
        if reconfiguration is None:
            if self.since >= 0 or layout.round >= 0:
                self._forget(state)
            return
        if reconfiguration.keep is not None and self._vault is not None:
            self._stopped.keep(reconfiguration.keep, self._vault, layout.builder.layout_of)
            if reconfiguration.keep.era != self._said_era:
                # The node that reported the losses so far may be lost, and no node that goes on
                # would repeat them.
                self._said_era = reconfiguration.keep.era
                self.say_losses()
        if reconfiguration.base is not None and layout.round != reconfiguration.since:
            layout.begin(state, reconfiguration)

    def reach_base(self, state: State) -> None:
        """Take the step that this node lacks of the base that the newest state has decided. What it
        tells the others of that step is about slots of the old layout, so this comes before its
        messages are of the new layout's generation."""
        reconfiguration = state.reconfiguration
        if reconfiguration is None or reconfiguration.base is None:
            return
        if self.layout.round != reconfiguration.since:
            self._stopped.reach(reconfiguration.base, reconfiguration.total_square)

    def finish(self) -> None:
        """Hand the new runs over to the executor: all nodes go on."""
        self._executor.release_all()
        for run in self.layout.runs:
            self._executor.adopt(run)
        self._clear()

    def _forget(self, state: State) -> None:
        assignment = state.assignment
        if assignment is None or self._me not in assignment.members():
            self._clear()  # a member gets the effect GoOn instead

    def _clear(self) -> None:
        self.since = -1
        self.holding = False
        self._stopping = False
        self._executor.go_on()
        self._executor.operations.shadows_first.end()
        self._stopped.clear()
        self.layout.clear()

    def pump(self) -> None:
        """Take in the messages about layers, and what was read."""
        self.layout.pump()
