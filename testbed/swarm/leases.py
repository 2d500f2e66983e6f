"""The leases of a played world: every node beats and judges the others, as its agent does.

Rule: `core.liveness.detector` judges which nodes are gone, only from what the store shows and from
what the observer knows of its own writes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bamboo.coord.writes import Writes
from bamboo.core.events import PeerLost
from bamboo.core.liveness.detector import LeaseView, judge
from bamboo.core.state import Phase
from bamboo.ids import NodeId
from bamboo.ports import Lease

if TYPE_CHECKING:
    from testbed.swarm.cluster import Cluster
    from testbed.swarm.member import Member

BEAT_S = 0.5
REPORTERS = 2
"""Number of observers that report a node as gone; more reports change nothing."""


class Watch:
    """What one node remembers."""

    def __init__(self, world: "Cluster") -> None:
        self.writes = Writes(every_s=BEAT_S, clock=lambda: world.now_s)
        self.view = LeaseView()
        self.calm: tuple[float, float] | None = None
        """The time of the last skipped look, at which all leases would have grown, and what the
        node's writes proved by then. Most looks find no change, so they are made up for later."""

    def make_up(self) -> None:
        """Set the view to what the skipped looks would have left, except for the counters."""
        if self.calm is not None:
            at_s, in_all_s = self.calm
            seen = tuple(replace(one, in_all_s=in_all_s) for one in self.view.seen)
            self.view, self.calm = replace(self.view, read_at_s=at_s, seen=seen), None


class Leases:
    """The leases of one world; `go_round` is called every BEAT_S."""

    def __init__(self, world: "Cluster") -> None:
        self._world = world
        self._leases: dict[NodeId, Lease] = {}
        self._watches: dict[str, Watch] = {}
        self._beats = 0

    def wipe(self) -> None:
        """The store loses the leases."""
        self._leases.clear()

    def go_round(self) -> None:
        """Each node in turn beats and looks. After an outage the first one sees old leases of all
        others."""
        world = self._world
        self._beats += 1
        awake = [member for member in world.members if member.awake]
        over = world.log.state.phase is Phase.FINISHED
        calm = over or self._is_calm()
        accused: dict[NodeId, list[tuple[Member, PeerLost]]] = {}
        for member in awake:
            self._beat(member)
            if member.mute or not world.log.up:
                continue
            watch = self._watches[member.name]
            if calm and all(seen.leased for seen in watch.view.seen):
                watch.calm = (world.now_s, watch.writes.now().in_all_s)
                continue
            for event in self._look(member, watch):
                accused.setdefault(event.node, []).append((member, event))
        for _, reports in sorted(accused.items()):
            for _ in range(min(REPORTERS, len(reports))):
                reporter, event = reports.pop(world.pick(len(reports)))
                reporter.say_at_once(event)

    def _is_calm(self) -> bool:
        """Whether all nodes beat last time. A node that saw all their leases before would then see
        no change but the time."""
        least_s = self._world.now_s - 1.5 * BEAT_S
        return all(
            node.id in self._leases and self._leases[node.id].beaten_at_s >= least_s
            for node in self._world.log.state.nodes
            if node.status.live
        )

    def _beat(self, member: "Member") -> None:
        watch = self._watches.get(member.name)
        if watch is None:
            watch = self._watches[member.name] = Watch(self._world)
        log = self._world.log
        if member.mute or member.refused or not log.up or log.refuses:
            watch.writes.refused()
            return
        payload = f'{{"progress": {self._beats}}}'
        self._leases[member.node] = Lease(payload=payload, beaten_at_s=self._world.now_s)
        watch.writes.written()

    def _look(self, member: "Member", watch: Watch) -> Sequence[PeerLost]:
        world = self._world
        watch.make_up()
        live = (node.id for node in member.view.nodes if node.status.live)
        watch.view, lost = judge(
            watch.view,
            watched=[node for node in live if node != member.node],
            leases=self._leases,
            now_s=world.now_s,
            writing=watch.writes.now(),
            policy=world.policy,
            reporter=member.name,
        )
        return lost
