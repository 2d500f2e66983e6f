"""The faults of a played world, one method for each kind.

Rule: a fault hits a node that is present at its time, so that it has an effect in every world;
without such a node it does nothing. When the world heals, lasting faults end.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from bamboo.core.events import (
    BoundaryReady,
    CaughtUp,
    CheckpointDone,
    EvaluationDone,
    Event,
    FaultScope,
    HandedOver,
    LayoutBuilt,
    NodeFinished,
    NodeJoined,
    NodesReleased,
    NoticeReceived,
    PeerLost,
    Prepared,
    Quiesced,
    RebalanceAdvised,
    Reconsider,
    ReplicaJoined,
    ShardSaved,
    StopReady,
    StopRequested,
    Yielded,
)
from bamboo.core.state import NodeStatus, Outcome, Phase
from testbed.swarm.scenario import Fault

if TYPE_CHECKING:
    from testbed.swarm.cluster import Cluster
    from testbed.swarm.member import Member

WATCHED: tuple[type, ...] = (
    CaughtUp,
    ReplicaJoined,
    Yielded,
    HandedOver,
    NodeFinished,
    BoundaryReady,
    Quiesced,
    LayoutBuilt,
    StopReady,
    CheckpointDone,
    NodeJoined,
    PeerLost,
    Prepared,
    EvaluationDone,
)
"""Events that can time a loss."""
EVALUATION = WATCHED.index(EvaluationDone)


class WorldFaults:
    """The faults of one world."""

    def __init__(self, world: "Cluster") -> None:
        self._world = world
        self._waiting: list[Fault] = []
        for fault in world.scenario.faults:
            world.agenda.after(fault.at_s, self._do, fault)
        world.agenda.after(world.scenario.heal_s, self._heal)

    def _do(self, fault: Fault) -> None:
        if self._world.log.state.phase is not Phase.FINISHED and not self._world.healed:
            KINDS[fault.kind](self, fault)

    def _heal(self) -> None:
        world = self._world
        for member in world.members:
            world.wake(member)
            world.back_to_store(member)
            world.take_again(member)
            member.late_s, member.speed, member.dies_speaking = 0.0, 1.0, False
        world.launcher.dies_speaking = False
        world.refuses_until_s = world.differs_until_s = 0.0
        world.heal_cuts()
        world.log.up, world.log.refuses = True, False
        world.log.comes_back()

    def _who(self, index: int) -> "Member | None":
        """One of the running nodes; those with a part in the run come first."""
        running = self._world.running()
        return running[index % len(running)] if running else None

    # ---------------------------------------------------------------- losses

    def lose(self, fault: Fault) -> None:
        """Lose a node, and at the same time a number of others that follow it in its ring."""
        world, first = self._world, self._who(fault.who)
        if first is None:
            return
        victims = [first]
        assignment = world.log.state.assignment
        if fault.other and assignment is not None and assignment.owned_by(first.node):
            slot = assignment.owned_by(first.node)[0]
            for _ in range(fault.other):
                slot = assignment.grid.protected(slot)
                other = world.member(assignment.owner(slot))
                if other is not None:
                    victims.append(other)
        for victim in victims:
            world.lose(victim)

    def lose_after(self, fault: Fault) -> None:
        """Wait for the next event of a kind, then lose its reporter, or another node."""
        self._waiting.append(fault)

    def committed(self, author: str, event: Event) -> None:
        """An event was committed for which a fault may wait."""
        world = self._world
        for fault in self._waiting:
            if isinstance(event, WATCHED[fault.other % len(WATCHED)]):
                self._waiting.remove(fault)
                named = world.member(author) if fault.who % 2 else self._who(fault.who)
                if named is not None and not world.healed:
                    world.agenda.after(fault.for_s, world.lose, named)
                return

    def lose_zone(self, fault: Fault) -> None:
        """Lose a percentage of the nodes of a zone, within a moment."""
        world = self._world
        zone = f"z{fault.who % world.scenario.zones}"
        for member in world.running():
            if member.zone == zone and world.chance(fault.other / 100):
                world.agenda.after(world.uniform(0.0, fault.for_s), world.lose, member)

    def notice(self, fault: Fault) -> None:
        """The cloud takes a node in `for_s`; its agent reports that after `other` hundredths of
        that time. With `other` of 100 or more the node is not taken after all."""
        world, member = self._world, self._who(fault.who)
        if member is None:
            return
        event = NoticeReceived(node=member.node, deadline_s=world.now_s + fault.for_s)
        taken = fault.other < 100
        late_s = fault.for_s * (fault.other % 100) / 100
        world.agenda.after(late_s, member.say_apart, event)
        if taken:
            world.agenda.after(fault.for_s, world.lose, member)

    def advise(self, fault: Fault) -> None:
        member = self._who(fault.who)
        if member is not None:
            member.say_apart(RebalanceAdvised(node=member.node))

    def release(self, fault: Fault) -> None:
        """The fleet gives a number of nodes back, and does not replace them."""
        running = self._world.running()
        first = fault.who % len(running) if running else 0
        nodes = tuple(member.node for member in running[first:][: fault.other])
        if nodes:
            reason = "they cost more than they bring"
            self._world.launcher.say(NodesReleased(reporter="launcher", nodes=nodes, reason=reason))

    def fails(self, fault: Fault) -> None:
        """A node meets a fault of its own, reports it and ends. One that owns nothing, by its own
        account, may report it as a fault that all others would meet."""
        member = self._who(fault.who)
        if member is not None:
            everywhere = bool(fault.other) and not member.owned
            self._world.say_failed(member, FaultScope.RUN if everywhere else FaultScope.NODE)

    def refuses(self, fault: Fault) -> None:
        """For a while new nodes meet a fault before they join."""
        world = self._world
        world.refuses_until_s = max(world.refuses_until_s, world.now_s + fault.for_s)

    def differs(self, fault: Fault) -> None:
        """For a while new nodes have other numerics than the run."""
        world = self._world
        world.differs_until_s = max(world.differs_until_s, world.now_s + fault.for_s)

    def join(self, fault: Fault) -> None:
        """A node joins without a request."""
        self._world.boot()

    # ---------------------------------------------------------------- the network

    def cut(self, fault: Fault) -> None:
        """Two nodes do not reach each other for a while."""
        one, other = self._who(fault.who), self._who(fault.other)
        if one is not None and other is not None and one is not other:
            self._world.cut_off(one, other)
            self._world.agenda.after(fault.for_s, self._world.join_up, one, other)

    def isolate(self, fault: Fault) -> None:
        """A node reaches none of the others for a while."""
        world, one = self._world, self._who(fault.who)
        for other in world.running():
            if one is not None and one is not other:
                world.cut_off(one, other)
                world.agenda.after(fault.for_s, world.join_up, one, other)

    # ---------------------------------------------------------------- processes

    def freeze(self, fault: Fault) -> None:
        """A node is stopped, and wakes up later."""
        member = self._who(fault.who)
        if member is not None:
            self._world.stand_still(member)
            self._world.agenda.after(fault.for_s, self._world.wake, member)

    def no_store(self, fault: Fault) -> None:
        """A node reaches its peers and not the store."""
        member = self._who(fault.who)
        if member is not None:
            self._world.cut_from_store(member)
            self._world.agenda.after(fault.for_s, self._world.back_to_store, member)

    def slow(self, fault: Fault) -> None:
        """A node works at a percentage of its speed."""
        member = self._who(fault.who)
        if member is not None:
            member.speed = max(1, fault.other) / 100

    def late(self, fault: Fault) -> None:
        """From now on the reports of a node are delayed."""
        member = self._who(fault.who)
        if member is not None:
            member.late_s = fault.for_s

    def repeat(self, fault: Fault) -> None:
        """A node repeats its last `other` reports, as to a store that lost them, while it sends new
        ones. Often the node has given its slots away since."""
        world = self._world
        state = world.log.state
        standing_by = {str(n.id) for n in state.nodes if n.status is NodeStatus.READY}
        idle = [m for m in world.running() if m.name in standing_by and len(m.said) > 1]
        member = idle[fault.who % len(idle)] if idle and fault.who % 2 else self._who(fault.who)
        if member is not None:
            said = [s.event for s in member.said if not isinstance(s.event, ShardSaved)]
            for event in said[-fault.other :]:
                self._world.agenda.after(fault.for_s, member.say_apart, event)

    def dies_speaking(self, fault: Fault) -> None:
        """A node dies between the commit of its next report and what would follow from it."""
        member = self._who(fault.who)
        if member is not None:
            member.dies_speaking = True

    def launcher_dies(self, fault: Fault) -> None:
        self._world.launcher.die()

    def launcher_dies_speaking(self, fault: Fault) -> None:
        self._world.launcher.dies_speaking = True

    # ---------------------------------------------------------------- stores

    def store_away(self, fault: Fault) -> None:
        """The store does not answer for a while."""
        self._world.log.up = False
        self._world.agenda.after(fault.for_s, self._store_back)

    def _store_back(self) -> None:
        self._world.log.up = True
        self._world.log.comes_back()

    def store_refuses(self, fault: Fault) -> None:
        """The store can be read as usual, and refuses writes for a while."""
        self._world.log.refuses = True
        self._world.agenda.after(fault.for_s, self._store_takes)

    def _store_takes(self) -> None:
        self._world.log.refuses = False
        self._world.log.comes_back()

    def refused(self, fault: Fault) -> None:
        """The store refuses the writes of one node for a while, which can still read it."""
        member = self._who(fault.who)
        if member is not None:
            self._world.refuse(member)
            self._world.agenda.after(fault.for_s, self._world.take_again, member)

    def store_wiped(self, fault: Fault) -> None:
        """The store loses the run."""
        self._world.lose_store()

    def part_fails(self, fault: Fault) -> None:
        """The next parts of checkpoints cannot be stored."""
        self._world.vault.failing = fault.other

    def torn(self, fault: Fault) -> None:
        """The newest checkpoint is not what was written."""
        vault = self._world.vault
        if vault.there:
            vault.torn.add(max(vault.there))

    # ---------------------------------------------------------------- users

    def stop(self, fault: Fault) -> None:
        """A user stops the run."""
        self._world.launcher.say(StopRequested(reason="enough", outcome=Outcome.STOPPED))

    def reconsider(self, fault: Fault) -> None:
        """A reporter says that another layout would be better."""
        self._world.launcher.say(Reconsider(reporter="cli", reason="it may pay"))


KINDS: dict[str, Callable[[WorldFaults, Fault], None]] = {
    "lose": WorldFaults.lose,
    "lose_after": WorldFaults.lose_after,
    "lose_zone": WorldFaults.lose_zone,
    "notice": WorldFaults.notice,
    "advise": WorldFaults.advise,
    "join": WorldFaults.join,
    "cut": WorldFaults.cut,
    "isolate": WorldFaults.isolate,
    "freeze": WorldFaults.freeze,
    "no_store": WorldFaults.no_store,
    "slow": WorldFaults.slow,
    "late": WorldFaults.late,
    "repeat": WorldFaults.repeat,
    "dies_speaking": WorldFaults.dies_speaking,
    "launcher_dies": WorldFaults.launcher_dies,
    "launcher_dies_speaking": WorldFaults.launcher_dies_speaking,
    "store_away": WorldFaults.store_away,
    "store_refuses": WorldFaults.store_refuses,
    "refused": WorldFaults.refused,
    "store_wiped": WorldFaults.store_wiped,
    "part_fails": WorldFaults.part_fails,
    "torn": WorldFaults.torn,
    "stop": WorldFaults.stop,
    "reconsider": WorldFaults.reconsider,
    "release": WorldFaults.release,
    "fails": WorldFaults.fails,
    "refuses": WorldFaults.refuses,
    "differs": WorldFaults.differs,
}
"""Every kind of fault by its name in a scenario."""
