"""What must hold in every played world, checked from the log's data and the nodes' own reports.

Rule: nothing here asks the core for its intention. A checker that fails raises Red, with its name
and a sentence; the first one ends the play.
"""

from typing import TYPE_CHECKING

from bamboo.core.effects import FLEET, CompleteCheckpoint, TerminateAll
from bamboo.core.events import (
    CaughtUp,
    CheckpointDamaged,
    CheckpointDone,
    Event,
    NodeFinished,
    PeerLost,
    Reconsider,
    RunFailed,
    StopRequested,
    StoreRefilled,
)
from bamboo.core.invariants import check, check_cause, check_step
from bamboo.core.keep import shards_of
from bamboo.core.rounds import fed_layers
from bamboo.core.state import NodeStatus, Outcome, Phase, Reconfiguration, State
from bamboo.core.transition import Transition
from bamboo.ids import NodeId
from bamboo.topology.slots import Slot
from testbed.swarm.copies import Copy, Kept
from testbed.swarm.evaluations import last_step_of
from testbed.swarm.keeping import check_given_up, check_lost
from testbed.swarm.red import Red
from testbed.swarm.store import Entry

if TYPE_CHECKING:
    from testbed.swarm.cluster import Cluster
    from testbed.swarm.member import Member

STOPS_WITHIN_S = 25.0
"""The longest time from a requested stop to its end, once no more faults come."""


class Checkers:
    """All checkers of one world, each called with what it checks."""

    def __init__(self, world: "Cluster") -> None:
        self._world = world
        self.stalls = 0
        """How often a member reported that it waits in vain."""
        self.faults = 0
        """How often a node met a fault that it expected all nodes to meet."""
        self._acts: dict[tuple[int, Slot], str] = {}
        self._taken: dict[tuple[int, Slot], int] = {}
        """By era and slot, the last step that was taken."""
        self._by: set[tuple[int, Slot, int, str]] = set()
        self._said: dict[tuple[str, int], tuple[tuple[tuple[int, int, int, int], ...], ...]] = {}
        self._norms: dict[tuple[str, int], frozenset[int]] = {}
        self._gone: frozenset[NodeId] = frozenset()
        """The nodes that were gone when all nodes last began or continued."""
        self._stop_at_s: float | None = None
        """When somebody asked the run to stop."""
        self._given_up: list[Event] = []
        """What the launcher has reported of waits in vain; a store that lost it gets it again."""
        self._short_since_s: float | None = None
        """Since when all train with fewer usable nodes than slots; None: they do not."""
        self._stored = {made.step for made in world.log.first.checkpoints}
        """Checkpoints that were reported complete and not found damaged."""

    # ---------------------------------------------------------------- the log

    def stale(self, author: str, event: Event, state: State, decided: Transition) -> None:
        """An event that changed nothing."""
        if decided.effects:
            raise Red("stale", f"{event} changed nothing and has effects")
        self._check_heard(event, state)

    def committed(self, entry: Entry) -> None:
        """A decision."""
        before, after = entry.before, entry.state
        wrong = check_step(before, after) + check(after)
        wrong += check_cause(before, entry.event, after)
        if wrong:
            raise Red("invariants", f"{wrong[0]} after {entry.event}")
        self._check_fenced(entry)
        self._check_alike(entry.state)
        self._check_accused(entry)
        self._note_short(after)
        self._check_given(entry)
        if isinstance(entry.event, CaughtUp):
            self._check_caught_up(entry)
        if isinstance(entry.event, StoreRefilled):
            self._check_refilled(entry)
        self._note_stored(entry.event)
        self._check_checkpoints(entry)
        self._check_stop(entry)
        if after.phase is Phase.FINISHED and before.phase is not Phase.FINISHED:
            self._check_end(entry)
        reconfiguration, known = after.reconfiguration, before.reconfiguration
        if (
            reconfiguration is not None
            and reconfiguration.base is not None
            and _is_new(reconfiguration, known)
        ):
            self._check_base(after, reconfiguration, reconfiguration.base)
        if reconfiguration is None and (known is not None or before.assignment is None):
            self._gone = _gone(after)

    def _check_stop(self, entry: Entry) -> None:
        """A requested stop is noted at once, and no step after the begun ones is trained."""
        before, after = entry.before, entry.state
        self._check_heard(entry.event, after)
        if isinstance(entry.event, StopRequested) and self._stop_at_s is None:
            self._stop_at_s = self._world.now_s
        if after.stop_at_step is not None and before.stop_at_step is None:
            begun = max((m.begun_step() for m in self._world.members), default=-1)
            if after.stop_at_step > begun:
                words = f"all are to stop after step {after.stop_at_step}"
                raise Red("budget", f"{words}, nobody has begun one after {begun}")

    def _check_heard(self, event: Event, state: State) -> None:
        ignored = state.stop_reason is None and state.phase is not Phase.FINISHED
        if isinstance(event, StopRequested) and ignored:
            raise Red("budget", f"a stop was asked for and is not noted: {event.reason}")

    def _note_stored(self, event: Event) -> None:
        if isinstance(event, CheckpointDone):
            self._stored.add(event.step)
        elif isinstance(event, CheckpointDamaged):
            self._stored.discard(event.step)

    def _check_refilled(self, entry: Entry) -> None:
        """A refill starts a new generation, so that old reports are kept apart from new ones."""
        before, after = entry.before, entry.state
        trained = before.generation > 0 and before.phase is not Phase.FINISHED
        if trained and after.generation <= before.generation:
            raise Red("generation", f"refilled, and still generation {after.generation}")

    def _check_fenced(self, entry: Entry) -> None:
        """A node that was decided gone causes no change afterwards."""
        for name in {entry.author, str(getattr(entry.event, "node", ""))}:
            node = entry.before.node(NodeId(name))
            if node is not None and not node.status.live:
                raise Red("fenced", f"{name} is {node.status} and {entry.event} changes the run")

    def _check_alike(self, state: State) -> None:
        """All nodes that have a part in the run compute with what the first one attested."""
        known = state.attested
        for node in state.live_nodes():
            member = self._world.member(node.id)
            if member is not None and (known is None or member.numerics != known.numerics):
                raise Red("numerics", f"{node.id} joined with {member.numerics}, not {known}")

    def _check_accused(self, entry: Entry) -> None:
        """An outage of the store alone makes no node count as lost, and ends nothing."""
        world, event = self._world, entry.event
        lease_s = world.policy.gone_s
        if isinstance(event, PeerLost) and event.cause == "lease":
            victim = world.member(event.node)
            beats = victim is not None and victim.awake and not (victim.mute or victim.refused)
            if victim is not None and beats and world.now_s - victim.able_since_s > lease_s:
                raise Red("accused", f"{victim.name} beats, and {entry.author} says it is gone")
        if not isinstance(event, RunFailed | Reconsider) or event.reporter != "launcher":
            return
        hushed_s, again = world.hushed_s, any(event is word for word in self._given_up)
        if hushed_s is not None and world.now_s - hushed_s[1] < lease_s and not again:
            # A wait that was over before the store went away is not the fault of the outage.
            since_s, patience_s = self._short_since_s, world.scenario.patience_s
            over = since_s is not None and since_s + patience_s <= hushed_s[0]
            if not (over and isinstance(event, Reconsider)):
                words = f"the store is just back, and the launcher says: {entry.reason}"
                raise Red("hasty", words)
        self._given_up.append(event)

    def _note_short(self, state: State) -> None:
        trains = state.phase in (Phase.RUNNING, Phase.DEGRADED) and state.preparing is None
        if not trains or len(state.roll.usable) >= state.grid.size:
            self._short_since_s = None
        elif self._short_since_s is None:
            self._short_since_s = self._world.now_s

    def _check_given(self, entry: Entry) -> None:
        """A node with a notice is given nothing while other nodes are there."""
        before, after = entry.before, entry.state
        noticed = {n.id for n in after.live_nodes() if n.notice_deadline_s is not None}
        if not noticed or len(noticed) == len(after.live_nodes()):
            return
        given = {t.receiver for t in after.transfers if t not in before.transfers}
        if after.preparing is not None and after.preparing is not before.preparing:
            given |= after.preparing.receivers
        anew = after.reconfiguration is not None and after.reconfiguration.base is not None
        if anew and after.assignment is not None and after.assignment is not before.assignment:
            given |= after.assignment.members()
        for node in sorted(given & noticed):
            raise Red("given", f"{node} has a notice and is given something: {entry.reason}")

    def _check_caught_up(self, entry: Entry) -> None:
        """A failover ends when its successor reports that it has done the lost work again."""
        for failover in set(entry.before.failovers) - set(entry.state.failovers):
            successor = self._world.member(failover.successor)
            copy = None if successor is None else successor.owned.get(failover.slot)
            if copy is None or copy.hit is not None:
                words = f"of slot {failover.slot} is over, {failover.successor} has not caught up"
                raise Red("caught up", f"the failover {words}")

    def _check_checkpoints(self, entry: Entry) -> None:
        vault = self._world.vault
        for effect in entry.effects:
            if isinstance(effect, CompleteCheckpoint):
                stages = range(shards_of(entry.state, effect.era))
                missing = [p for p in stages if (effect.step, effect.era, p) not in vault.parts]
                if missing:
                    words = f"of step {effect.step} is to be completed without {missing}"
                    raise Red("complete", f"the checkpoint {words}")
        for made in entry.state.checkpoints:
            if made.step and made.step not in vault.complete:
                raise Red("complete", f"the checkpoint of step {made.step} has no manifest")

    def fell_back(self, version: int) -> None:
        """The store lost all versions after this one."""
        log = self._world.log
        state = log.entries[version - 1].state if version else log.first
        self._acts = {k: v for k, v in self._acts.items() if k[0] <= state.generation}
        self._taken = {k: v for k, v in self._taken.items() if k[0] <= state.era}
        self._by = {taken for taken in self._by if taken[0] <= state.era}
        self._world.plane.fell_back(state)
        if state.stop_reason is None:
            self._stop_at_s = None
        self._stored = {made.step for made in log.first.checkpoints}
        for entry in log.entries[:version]:
            self._note_stored(entry.event)

    # ---------------------------------------------------------------- the base of a new layout

    def quiesced(self, member: "Member", since: int, kept: Kept) -> None:
        """A node has stopped; its report is checked again when a base is decided."""
        mine = tuple((a, b, s, r) for a, b, s, r in kept.stopped)
        flat = tuple((layer, layer + 1, s, s) for s, layer in sorted(kept.fetched))
        self._said[(member.name, since)] = (mine, flat)
        self._norms[(member.name, since)] = frozenset(kept.norms)
        self._check_followed(member, since, kept)

    def _check_followed(self, member: "Member", since: int, kept: Kept) -> None:
        """What a node reports as prefetched is there at the boundary."""
        reconfiguration = member.view.reconfiguration
        if (
            reconfiguration is None
            or reconfiguration.since != since
            or reconfiguration.boundary is None
        ):
            return
        lacking = fed_layers(reconfiguration.ahead, member.node) - kept.layers_at(
            reconfiguration.boundary + 1
        )
        if lacking:
            raise Red("ahead", f"{member.name} was sent {sorted(lacking)} and has them not")

    def _check_base(self, state: State, reconfiguration: Reconfiguration, base: int) -> None:
        """The base is the newest step for which every layer is available. A step that live copies
        could have saved is not undone, and a restore names a complete checkpoint."""
        steps, layers = self._live(state, reconfiguration)
        kept = {0} if self._world.policy.checkpoint_every else set()
        kept |= self._stored | {made.step for made in state.checkpoints if made.step == 0}
        able = {step for step, found in steps.items() if len(found) == layers}
        if reconfiguration.checkpoint and base and base not in self._world.vault.complete:
            raise Red("restore", f"step {base} is restored and was never a complete checkpoint")
        check_lost(self._world, base)
        if base not in (kept if reconfiguration.checkpoint else able):
            raise Red("base", f"all go on from step {base}, which nobody has all of")
        if state.redundancy == "off" and _gone(state) - self._gone:
            able = set()  # it may continue from the live copies, but need not
        best = max(able | kept, default=base)
        if base < best:
            raise Red("base", f"all go on from step {base}, {best} could be had")
        if reconfiguration.checkpoint and base in able:
            raise Red("saved", f"step {base} is restored although live nodes have all of it")

    def _live(
        self, state: State, reconfiguration: Reconfiguration
    ) -> tuple[dict[int, set[int]], int]:
        """By step, the layers of live nodes that have stopped for this reconfiguration."""
        names = [str(n.id) for n in state.live_nodes()]
        said = [self._said.get((name, reconfiguration.since), ()) for name in names]
        norms: set[int] = set()
        for name in names:
            norms |= self._norms.get((name, reconfiguration.since), frozenset())
        steps: dict[int, set[int]] = {}
        for parts in said:
            for first, stop, step, reach in (h for part in parts for h in part):
                steps.setdefault(step, set()).update(range(first, stop))
                if reach != step and step in norms:
                    steps.setdefault(reach, set()).update(range(first, stop))
        return steps, self._world.scenario.layers

    def goes_on(self, member: "Member", base: int, needed: set[int], kept: Kept) -> None:
        """A node trains in a new layout: with what it has."""
        lacking = needed - kept.layers_at(base)
        if lacking:
            raise Red(
                "built",
                f"{member.name} goes on from step {base} and lacks layers {sorted(lacking)}",
            )

    # ---------------------------------------------------------------- owners and steps

    def two_owners(self, slot: Slot, one: "Member", other: "Member") -> None:
        """Two nodes act as owner of one slot."""
        generation = one.view.generation
        raise Red(
            "owner", f"{one.name} and {other.name} own slot {slot} under generation {generation}"
        )

    def promoted(self, member: "Member", slot: Slot, copy: Copy | None) -> None:
        """A node takes a slot over."""
        if copy is None:
            raise Red("replica", f"{member.name} is to own slot {slot} and has no replica of it")
        if copy.step < self._world.plane.pruned:
            raise Red(
                "replica",
                f"{member.name} owns slot {slot} from step {copy.step} on; of steps before "
                f"{self._world.plane.pruned} nobody keeps anything",
            )
        where = (member.era, slot)  # a replica takes what it was sent, wherever its owner stood
        last = self._taken.get(where, self._world.plane.base - 1)
        self._taken[where] = max(last, copy.step - 1)

    def stepped(self, member: "Member", copy: Copy) -> None:
        """An owner takes a step."""
        act = (member.view.generation, copy.slot)
        if self._acts.setdefault(act, member.name) != member.name:
            raise Red(
                "owner",
                f"{member.name} acts for slot {copy.slot} under generation {act[0]}, as "
                f"{self._acts[act]} did",
            )
        where = (member.era, copy.slot)
        last = self._taken.get(where, self._world.plane.base - 1)
        if copy.step > last + 1:
            raise Red("steps", f"slot {copy.slot} takes step {copy.step} after step {last}")
        mine = (*where, copy.step, member.name)
        if mine in self._by:
            raise Red("steps", f"{member.name} takes step {copy.step} of {copy.slot} twice")
        if copy.step < last - 1:
            raise Red("steps", f"slot {copy.slot} does step {copy.step} again, {last} was taken")
        self._by.add(mine)
        self._taken[where] = max(last, copy.step)
        if copy.step > last_step_of(self._world.scenario):
            raise Red("evaluated", f"{member.name} takes step {copy.step}, a calm run ended before")
        limit = self._world.log.state.stop_at_step
        if limit is not None and copy.step > limit and member.view.stop_at_step == limit:
            raise Red("stop", f"{member.name} takes step {copy.step}, all stop after {limit}")

    def terminated(self, member: "Member") -> None:
        """The fleet ends an instance, which must not have a node that takes part."""
        if member.is_live_in(self._world.log.state):
            raise Red("fleet", f"the instance of {member.name} is ended, which takes part")

    # ---------------------------------------------------------------- ends

    def _check_end(self, entry: Entry) -> None:
        before, state = entry.before, entry.state
        outcome = state.outcome
        asked = outcome in (before.stop_outcome, state.stop_outcome)
        if outcome in (Outcome.STOPPED, Outcome.BUDGET) and not asked:
            raise Red("outcome", f"the run is {outcome}, nobody asked for that")
        if outcome is Outcome.DONE and self._stop_at_s is not None:
            asked_s = max(self._stop_at_s, self._world.scenario.heal_s)
            if self._world.now_s - asked_s > STOPS_WITHIN_S:
                raise Red(
                    "budget", f"asked to stop at {self._stop_at_s:.0f} s, it trained to its end"
                )
        if isinstance(entry.event, NodeFinished):
            self._check_all_written(before, outcome)
        elif outcome is Outcome.DONE:
            raise Red("written", f"the run is done, by {entry.event}")
        if outcome is Outcome.UNRECOVERABLE and not isinstance(entry.event, RunFailed):
            self._check_unrecoverable(before, state)
        if outcome in (Outcome.UNRECOVERABLE, Outcome.PARKED):
            check_lost(self._world, max(self._stored, default=0))
            check_given_up(self._world, max(self._stored, default=0))
        if outcome is Outcome.FAULT and not self.stalls and not self.faults:
            raise Red("outcome", f"a fault that nobody had: {entry.reason}")
        if not any(isinstance(effect, TerminateAll) for effect in entry.to.get(FLEET, ())):
            raise Red("fleet", f"the run is {outcome} and its instances are kept")

    def _check_all_written(self, before: State, outcome: Outcome | None) -> None:
        """Every slot stands behind its last step, as its owner reports."""
        if before.assignment is None or before.reconfiguration is not None:
            return
        limit = before.stop_at_step
        calm = last_step_of(self._world.scenario)
        if outcome is Outcome.DONE and calm != (
            self._world.scenario.steps - 1 if limit is None else limit
        ):
            raise Red("evaluated", f"the run is done, after step {limit}; a calm one after {calm}")
        last = self._world.scenario.steps - 1 if limit is None else limit
        for slot in before.grid.slots():
            owner = self._world.member(before.assignment.owner(slot))
            copy = None if owner is None else owner.owned.get(slot)
            if copy is None or copy.step != last + 1:
                at = "nowhere" if copy is None else f"before step {copy.step}"
                words = f"the last is {last}, slot {slot} stands {at}"
                raise Red("written", f"the run is {outcome}: {words}")

    def _check_unrecoverable(self, before: State, state: State) -> None:
        """Nothing is given up that a live copy or a checkpoint has."""
        world = self._world
        if world.policy.elastic:
            if world.policy.checkpoint_every or self._stored:
                raise Red("given up", f"there are checkpoints: {state.sentence}")
            may = state.redundancy == "off" and _gone(state) - self._gone
            if before.reconfiguration is not None and not may:
                steps, layers = self._live(state, before.reconfiguration)
                if any(len(found) == layers for found in steps.values()):
                    raise Red("given up", f"live nodes have all of a step: {state.sentence}")
        elif before.assignment is not None:
            live = {str(n.id) for n in state.live_nodes()}
            held = set()
            for member in world.members:
                if member.name in live:
                    held |= {*member.owned}
                    held |= {s for s, copy in member.shadowed.items() if not copy.joining}
            if all(slot in held for slot in before.grid.slots()):
                raise Red("given up", f"live nodes hold every slot: {state.sentence}")

    def over(self, state: State) -> None:
        """The play has ended."""
        if state.phase is not Phase.FINISHED:
            raise Red("standstill", f"the run is not over: {state.sentence}")
        if state.outcome is None or not state.sentence:
            raise Red("outcome", "the run is over and does not say how")


def _gone(state: State) -> frozenset[NodeId]:
    return frozenset(n.id for n in state.nodes if n.status is NodeStatus.GONE)


def _is_new(reconfiguration: Reconfiguration, known: Reconfiguration | None) -> bool:
    """Whether a base was just decided."""
    return known is None or known.since != reconfiguration.since or known.base is None
