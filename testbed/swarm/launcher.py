"""The launcher of a played world: it rents, ends unneeded instances, waits, measures and stops.

Rule: it decides nothing about the run and only reports what it sees, like
`bamboo/controller/launcher.py`. The successor of a dead launcher knows only what the log says.
"""

from typing import TYPE_CHECKING

from bamboo.core.effects import TerminateInstance
from bamboo.core.events import (
    Pace,
    PaceMeasured,
    PeerLost,
    RunFailed,
    Speed,
    SpeedsMeasured,
    StopRequested,
)
from bamboo.core.faults import may_rent
from bamboo.core.liveness.outage import WaitClock
from bamboo.core.liveness.patience import Patience
from bamboo.core.state import NodeStatus, Outcome, Phase, State
from bamboo.core.straggler import kept_beyond
from testbed.swarm.store import Entry
from testbed.swarm.voice import Voice

if TYPE_CHECKING:
    from testbed.swarm.cluster import Cluster

FORMING_S = 60.0
"""A run that has not begun by then ends."""


class Launcher(Voice):
    """Reads with a delay of its own, and makes its rounds once a second."""

    def __init__(self, world: "Cluster") -> None:
        super().__init__(world, "launcher")
        self.view: State = world.log.first
        self._booting = 0
        self._asked_to_stop = False
        self._begin_to_wait()

    def _begin_to_wait(self) -> None:
        scenario = self.world.scenario
        self._patience = Patience(patience_s=scenario.patience_s, park_s=scenario.park_s)
        self._clock = WaitClock(lease_s=self.world.policy.gone_s)

    # ---------------------------------------------------------------- life and death

    def die(self) -> None:
        """Its process ends; a successor starts some seconds later, from the log."""
        if self.running:
            self.running = False
            self.world.agenda.after(3.0, self._succeed)

    def overtaken(self) -> None:
        """Its decisions no longer count: it takes the new history."""
        self.version, self.fills = 0, self.world.log.fills
        self.view = self.world.log.first
        self.hear()

    def _succeed(self) -> None:
        self.running = True
        self.version, self.fills = 0, self.world.log.fills
        self.view = self.world.log.first
        self.outbox.clear()
        self.said.clear()
        self._posting = self._reading = False
        self._asked_to_stop = False
        self._begin_to_wait()
        self.hear()

    # ---------------------------------------------------------------- decisions

    def read(self, entry: Entry) -> None:
        self.view = entry.state
        for effect in entry.to.get("fleet", ()):
            if isinstance(effect, TerminateInstance):
                self._end(effect.instance)

    def _end(self, instance: str) -> None:
        for member in self.world.members:
            if member.instance == instance and member.running:
                self.world.checkers.terminated(member)
                self.world.leaves(member)

    # ---------------------------------------------------------------- its rounds

    def sweep(self) -> None:
        """Check the fleet, and send the reports that are due."""
        if not self.awake or self.view.phase is Phase.FINISHED:
            return
        if not self.can_write:
            self._clock.away(self.world.now_s)
            return
        self._rent()
        self._wait()
        self._miss()
        self._stop_for_budget()
        self._measure()
        late_s = self._clock.at(self.world.now_s) - FORMING_S
        if self.view.phase is Phase.FORMING and late_s > 0:
            self.say_at_once(
                RunFailed(
                    reporter=self.name,
                    outcome=Outcome.UNRECOVERABLE,
                    reason="no capacity by the forming deadline",
                )
            )

    def _rent(self) -> None:
        """Replace lost nodes and those with a notice, and end gone or unneeded ones."""
        world, state, scenario = self.world, self.view, self.world.scenario
        nodes = {str(node.id): node for node in state.nodes}
        here = self._booting
        for member in world.members:
            known = nodes.get(member.name)
            leaves = known is not None and not known.usable
            if known is not None and known.status is NodeStatus.GONE and member.running:
                self._end(member.instance)
            here += member.running and not leaves
        if state.stop_reason is not None or not (scenario.replaced or world.healed):
            return
        pipelines = scenario.pipelines_max if scenario.elastic else scenario.pipelines
        wanted = pipelines * scenario.stages + scenario.standbys + kept_beyond(state)
        most = may_rent(state, booting=self._booting, now_s=world.now_s)
        lacking = wanted - here
        for _ in range(lacking if most is None else min(lacking, most)):
            self._booting += 1
            world.agenda.after(scenario.boot_s * world.uniform(0.7, 2.0), self._boot)

    def _boot(self) -> None:
        self._booting -= 1
        self.world.boot()

    def _wait(self) -> None:
        event = self._patience.due(self.view, now_s=self._clock.at(self.world.now_s))
        if event is not None:
            self._patience.said(event, self.view)
            self.say_at_once(event)

    def _miss(self) -> None:
        """Report nodes as gone whose instance has ended, if no other node has."""
        world = self.world
        for member in world.members:
            if member.is_live_in(self.view) and member.ended_for_s() >= world.policy.gone_s:
                cause = "its instance was terminated"
                self.say_apart(PeerLost(node=member.node, reporter=self.name, cause=cause))

    def _stop_for_budget(self) -> None:
        step = self.world.scenario.budget_step
        spent = 0 < step <= self.world.plane.done
        if spent and self.view.stop_reason is None and not self._asked_to_stop:
            self._asked_to_stop = True
            self.say(StopRequested(reason="the budget is spent", outcome=Outcome.BUDGET))

    def _measure(self) -> None:
        world, state = self.world, self.view
        if state.assignment is None or state.phase is not Phase.RUNNING:
            return
        if all(member.speed == 1.0 for member in world.members):
            return
        owners = [
            m for m in map(world.member, sorted(set(state.assignment.owners))) if m is not None
        ]
        speeds = tuple(Speed(node=m.node, speed=m.speed) for m in owners)
        self.say(SpeedsMeasured(reporter=self.name, era=state.era, speeds=speeds))
        paces = tuple(Pace(node=m.node, microbatch_s=0.01 / m.speed) for m in owners)
        self.say(PaceMeasured(reporter=self.name, era=state.era, paces=paces))
