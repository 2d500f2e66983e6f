"""A simulated run that chooses its own size: the launcher's scaler, driven by a world.

Rule: nothing is decided here. A launcher checks several times a second. The simulation checks at
the end of each step while a size is being measured, after a number of steps once it is kept, after
every decision, and when time alone may change the wanted size. Steps have no noise, so a size needs
fewer of them than in a real run.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from bamboo.core.state import Phase
from bamboo.ids import NodeId, ZoneId
from bamboo.planner.fleet.autoscale import Resize
from bamboo.planner.fleet.scaler import Hired, Scaler, ScalerTerms, Standing, trained_size
from bamboo.planner.fleet.scaling_curve import MOST
from bamboo.sim.kernel import Entry
from bamboo.sim.members import Run
from bamboo.sim.world import RESIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a simulated run chooses its size by."""

    terms: ScalerTerms
    steps: int
    """Steps that the job asks for."""
    endless: bool = False
    """The run continues beyond them, and always has that many steps left."""


class Sizing:
    """The sizing of one run. `price`: present price of an instance of a zone; `spent`: dollars so
    far."""

    def __init__(
        self,
        run: Run,
        sizes: Sizes,
        *,
        price: Callable[[ZoneId], float],
        spent: Callable[[], float],
    ) -> None:
        self._run = run
        self._sizes = sizes
        self._scaler = Scaler(sizes.terms)
        self._price = price
        self._spent = spent
        self.nodes = sizes.terms.begin
        """Number of nodes to keep now."""
        self.resizes: list[Resize] = []
        self._told = 0
        """Steps whose end was reported."""
        self._look_due = False
        self._awaited_step = 0
        self._entry: Entry | None = None

    def decided(self) -> None:
        """The state has just changed."""
        now_s = self._run.world.kernel.now_s
        self._tell(now_s)
        self._scaler.decided(self._run.state, now_s)
        if not self._look_due:
            self._look_due = True
            self._run.world.kernel.after(0.0, self._look)

    def _tell(self, now_s: float) -> None:
        """Report the ends of the steps since the last change of pace."""
        progress = self._run.world.progress
        whole = progress.whole
        done = progress.steps
        step_s = progress.step_s
        from_s = progress.straight_since_s
        first = min(whole, max(self._told, whole - MOST - 1)) + 1
        for step in range(first, whole + 1) if math.isfinite(step_s) else ():
            at_s = now_s - (done - step) * step_s
            if at_s >= from_s:
                self._scaler.stepped(step, at_s)
        self._told = whole

    def _look(self) -> None:
        self._look_due = False
        run, world = self._run, self._run.world
        if run.state.phase is Phase.FINISHED:
            return
        now_s = world.kernel.now_s
        self._tell(now_s)
        hired = [
            Hired(
                instance=rental.node,
                started_at_s=rental.from_s,
                usd_per_hour=self._price(rental.zone),
            )
            for rental in world.hired()
        ]
        step, steps = world.progress.whole, self._sizes.steps
        steps += step if self._sizes.endless else 0
        standing = Standing(passed_s=now_s, step=step, steps=steps, usd=self._spent())
        turn = self._scaler.turn(run.state, standing, hired, now_s=now_s)
        if turn.resize is not None:
            self.resizes.append(turn.resize)
            world.happened(RESIZE, turn.resize.reason)
        for instance in turn.spare:
            world.release(NodeId(instance))
        if turn.nodes != self.nodes:
            self.nodes = turn.nodes
            world.look()
        if turn.release is not None:
            run.say(turn.release)
        self._look_again(now_s)

    def _look_again(self, now_s: float) -> None:
        """Check at the end of a step, and when time alone may change something."""
        kernel, whole = self._run.world.kernel, self._run.world.progress.whole
        scaler = self._scaler
        stays = scaler.settled and trained_size(self._run.state) == scaler.scaling.nodes
        step = whole + (MOST if stays else 1)
        if not whole < self._awaited_step <= step:
            self._awaited_step = step
            self._run.world.boundaries.when(step, self._look)
        kernel.cancel(self._entry)
        self._entry = None
        at_s = scaler.changes_at_s()
        if now_s < at_s < math.inf:
            self._entry = kernel.at(at_s, self._look)
