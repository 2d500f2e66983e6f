"""A reconfiguration of a simulated run: all nodes stop, report holdings, and get what they lack.

Rule: if nothing is lost, all nodes finish the agreed step. Otherwise they stop where they are, and
the work of the present step is repeated. All nodes receive what they lack at the same time, and the
node that lacks most decides the duration.
"""

from collections.abc import Sequence

from bamboo.core.effects import AgreeBoundary, Effect, Quiesce, QuiesceAfter
from bamboo.core.events import BoundaryReady, LayoutBuilt, Quiesced
from bamboo.core.next_layout import layers_by_node
from bamboo.core.state import Reconfiguration, State
from bamboo.sim.holdings import Holdings
from bamboo.sim.members import Run, layout_of, step_in_hand
from bamboo.sim.world import RESTORE

_TO_ALL = (AgreeBoundary, Quiesce, QuiesceAfter)


class Reconfigurations:
    """The reconfigurations of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._holdings = Holdings()

    def follow(self, before: State, *, ended: bool) -> None:
        """Handle what is new in the present reconfiguration. `ended`: the one before it has just
        ended."""
        run, known = self._run, None if ended else before.reconfiguration
        reconfiguration = run.state.reconfiguration
        assert reconfiguration is not None, "followed only while one is under way"
        if known is None:
            ahead = () if reconfiguration.ahead is None else reconfiguration.ahead.feeds
            self._holdings.begin(layout_of(before, run.policy), before.assignment, ahead)
        new = known is None or known.since != reconfiguration.since
        if new and not reconfiguration.planned:
            self._stand()
            run.world.progress.back_to(step_in_hand(run))
        if reconfiguration.base is not None and (new or known is None or known.base is None):
            self._build(reconfiguration)

    def obey(self, effects: Sequence[Effect]) -> None:
        """All nodes that must stop, or agree on where to stop, do so at the same times."""
        if not effects:
            return
        world, answer_s = self._run.world, self._run.pauses.answer_s
        kinds = set(map(type, effects))  # thousands of effects have only a few kinds
        if kinds.isdisjoint(_TO_ALL):
            return
        agree = [e for e in effects if isinstance(e, AgreeBoundary)]
        stop = [e for e in effects if isinstance(e, Quiesce)]
        finish = [e for e in effects if isinstance(e, QuiesceAfter)]
        if agree:
            world.kernel.after(answer_s, lambda: self._agree(agree))
        if stop:
            world.kernel.after(answer_s, lambda: self._stop(stop))
        if finish:
            world.boundaries.when(finish[0].step + 1, lambda: self._stop(finish))

    def _agree(self, told: Sequence[AgreeBoundary]) -> None:
        step = step_in_hand(self._run)
        self._run.say_all([BoundaryReady(node=e.to, since=e.since, step=step) for e in told])

    def _stop(self, told: Sequence[Quiesce | QuiesceAfter]) -> None:
        run, since = self._run, told[0].since
        if run.state.reconfiguration is None or run.state.reconfiguration.since != since:
            return
        self._stand()
        step = step_in_hand(run)
        held = {one.to: self._holdings.of(one.to, step=step) for one in told}
        run.say_all([Quiesced(node=n, since=since, holdings=h, norms=()) for n, h in held.items()])

    def _stand(self) -> None:
        """No step is taken. Bytes that earlier steps sent count, even if a step is undone."""
        self._run.world.crosses(0.0)
        self._run.world.progress.stand()

    def _build(self, reconfiguration: Reconfiguration) -> None:
        run = self._run
        work = self._run.workload
        pauses = self._run.pauses
        assignment, base = run.state.assignment, reconfiguration.base
        assert assignment is not None
        assert base is not None
        run.world.progress.back_to(base)
        if reconfiguration.checkpoint:
            run.world.happened(RESTORE)
        wants = layers_by_node(assignment, layout_of(run.state, run.policy).cut)
        lacking = self._holdings.lacking(wants, step=base)
        bytes_of = {layers: work.state_bytes(sorted(layers)) for layers in set(lacking.values())}
        sizes = {node: bytes_of[layers] for node, layers in lacking.items()}
        if not reconfiguration.checkpoint:  # the object store is in no zone
            afar = self._holdings.from_afar(lacking, run.state.roll.zones, step=base)
            run.world.sends(sum(work.state_bytes([layer]) for layer in afar))
        rate = work.store_bytes_per_s if reconfiguration.checkpoint else work.state_bytes_per_s
        took_s = pauses.restore_s if reconfiguration.checkpoint else pauses.reconfiguration_s
        took_s += max(sizes.values()) / rate if rate else 0.0

        def built() -> None:
            now = run.state.reconfiguration
            if now is None or now.since != reconfiguration.since:
                return
            for node, layers in wants.items():
                self._holdings.built(node, layers, step=base)
            run.say_all(
                [LayoutBuilt(node=n, since=reconfiguration.since, bytes=sizes[n]) for n in wants]
            )

        run.world.kernel.after(took_s, built)
