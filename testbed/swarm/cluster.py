"""A played world: nodes, their launcher, the store between them, and time.

Rule: everything happens through here, in the order of the agenda; randomness comes from one seed.
`faults` causes the faults, and `checkers` checks what must hold.
"""

import random
from collections.abc import Iterable
from dataclasses import replace

from bamboo.core.evaluation import after_evaluations
from bamboo.core.events import FaultScope, NodeFailed, NodeJoined, PeerLost, Stalled
from bamboo.core.liveness.partition import patience_s
from bamboo.core.state import Checkpoint, Fact, GridTime, Phase, Policy, State, initial_state
from bamboo.ids import InstanceId, NodeId, RunId, ZoneId
from bamboo.topology.grid import Grid
from testbed.swarm.agenda import Agenda
from testbed.swarm.checkers import Checkers
from testbed.swarm.evaluations import done_before
from testbed.swarm.faults import WorldFaults
from testbed.swarm.keeping import LAYER_BYTES
from testbed.swarm.launcher import Launcher
from testbed.swarm.leases import BEAT_S, Leases
from testbed.swarm.liveness import Liveness
from testbed.swarm.member import Member
from testbed.swarm.plane import Plane
from testbed.swarm.saving import Vault
from testbed.swarm.scenario import Scenario
from testbed.swarm.store import Entry, Log
from testbed.swarm.voice import SLOW_READER, Voice

FAILED_S = 0.3
"""Time from a fault to the end of its process."""
DETECT_S = 0.05
"""Time from the end of a connection to its detection by a peer."""
SWEEP_S = 1.0
STALL_S = 8.0
"""A step that takes longer is reported as stalled."""
VIRTUAL_NODES = 4


def policy_of(scenario: Scenario) -> Policy:
    """The policy of the decisions in such a world."""
    sizes = range(min(2, scenario.stages), scenario.stages + 1)
    cuts = tuple(tuple(s * scenario.layers // n for s in range(n + 1)) for n in sizes)
    grids = tuple(
        GridTime(pipelines=d, stages=p, step_s=(1.0 + 0.1 * p) / (d * p))
        for d in range(1, scenario.pipelines_max + 1)
        for p in sizes
    )
    return Policy(
        cuts=cuts if scenario.elastic else (),
        virtual_nodes=VIRTUAL_NODES,
        pipelines=scenario.pipelines_max,
        stages=scenario.stages,
        steps=scenario.steps,
        eval_every=scenario.eval_every,
        eval_patience=scenario.eval_patience,
        checkpoint_every=scenario.checkpoint_every,
        layer_bytes=(LAYER_BYTES,) * scenario.layers,
        store_bytes_per_s=LAYER_BYTES * scenario.layers / scenario.save_s,
        grids=grids if scenario.timed_grids else (),
        spread=("neighbours" if scenario.stages > 1 else "pipelines") if scenario.apart else "one",
    )


class Cluster:
    """Plays one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.agenda = Agenda()
        self._rng = random.Random(scenario.seed)
        self.policy = policy_of(scenario)
        grid = Grid(pipelines=scenario.pipelines, stages=scenario.stages)
        self.vault = Vault()
        kept: tuple[Checkpoint, ...] = ()
        if scenario.resume_step:
            kept = (Checkpoint(step=scenario.resume_step, era=0),)
            self.vault.complete.add(scenario.resume_step)
            self.vault.there.add(scenario.resume_step)
        first = initial_state(
            run=RunId("played"), grid=grid, redundancy=scenario.redundancy, checkpoints=kept
        )
        first = after_evaluations(first, done_before(scenario), self.policy)
        self.log = Log(first, self.policy)
        self.plane = Plane(self)
        self.checkers = Checkers(self)
        self.liveness = Liveness(self)
        self.members: list[Member] = []
        self._by_name: dict[str, Member] = {}
        self._cuts: set[frozenset[str]] = set()
        self.leases = Leases(self)
        self.hushed_s: tuple[float, float] | None = None
        """Start and end of the last long period in which the store took nothing."""
        self._hushed_since_s: float | None = None
        self._stood_s = 0.0
        self.refuses_until_s = 0.0
        """Nodes that come until then meet a fault of their own."""
        self.differs_until_s = 0.0
        """Nodes that come until then have other numerics than the run."""
        self.launcher = Launcher(self)
        self.log.watch = self._committed
        self.log.watch_stale = self.checkers.stale
        size = scenario.pipelines * scenario.stages + scenario.standbys
        for _ in range(size):
            self.agenda.after(self.uniform(0.0, 0.3), self.boot)
        self.faults = WorldFaults(self)
        self.agenda.after(0.3, self._tick)
        self.agenda.after(SWEEP_S, self._sweep)
        self.agenda.after(BEAT_S, self._beat)

    @property
    def is_over(self) -> bool:
        """Whether the run is over, and all nodes have read that."""
        return self.log.state.phase is Phase.FINISHED and not any(m.running for m in self.members)

    # ---------------------------------------------------------------- randomness and time

    @property
    def now_s(self) -> float:
        return self.agenda.now_s

    @property
    def healed(self) -> bool:
        """Whether no more faults come."""
        return self.agenda.now_s >= self.scenario.heal_s

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return self._rng.random() < share

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self._rng.random()

    def pick(self, count: int) -> int:
        """A random index below `count`."""
        return int(self._rng.random() * count)

    def read_s(self) -> float:
        """The read delay of one reader, which it keeps for ever."""
        slow = SLOW_READER if self.chance(0.1) else 1.0
        return self.scenario.read_s * slow * self.uniform(0.3, 1.5)

    def say_s(self) -> float:
        return self.scenario.say_s * self.uniform(0.2, 2.0)

    def commit_s(self) -> float:
        return self.scenario.commit_s * self.uniform(0.2, 2.0)

    def transfer_s(self) -> float:
        return self.scenario.transfer_s * self.uniform(0.5, 1.5)

    def build_s(self) -> float:
        return self.scenario.build_s * self.uniform(0.3, 1.5)

    def save_s(self) -> float:
        return self.scenario.save_s * self.uniform(0.5, 1.5)

    # ---------------------------------------------------------------- nodes

    def member(self, name: str | None) -> Member | None:
        return None if name is None else self._by_name.get(name)

    def running(self) -> list[Member]:
        """Nodes whose process runs."""
        return [member for member in self.members if member.running]

    def boot(self) -> None:
        """A node boots on an instance of its own, and joins."""
        if self.log.state.phase is Phase.FINISHED:
            return
        number = len(self.members)
        instance, zone = f"i{number:02}", ZoneId(f"z{number % self.scenario.zones}")
        member = Member(self, NodeId(f"{instance}.1"), instance, zone)
        self.members.append(member)
        self._by_name[member.name] = member
        if self.now_s < self.refuses_until_s:
            self.say_failed(member, FaultScope.RUN)
            return
        numerics = self._numerics()
        member.attest(numerics)
        event = NodeJoined(
            node=member.node,
            instance=InstanceId(instance),
            zone=zone,
            endpoint=f"sim://{instance}",
            pid=number,
            numerics=numerics,
        )
        member.say(event)
        member.hear()

    def _numerics(self) -> tuple[Fact, ...]:
        """Those of the run, for a node that comes; for a while others."""
        attested = self.log.state.attested
        own = (Fact(name="device", value="a card"),) if attested is None else attested.numerics
        if self.now_s >= self.differs_until_s:
            return own
        self.checkers.faults += 1  # a run may end when nobody comes who computes as it does
        return tuple(replace(fact, value=f"{fact.value} of another kind") for fact in own)

    def say_failed(self, member: Member, scope: FaultScope) -> None:
        """The node meets a fault of its own, reports it, and ends a moment later."""
        self.checkers.faults += scope is FaultScope.RUN
        event = NodeFailed(
            node=member.node,
            instance=InstanceId(member.instance),
            zone=member.zone,
            scope=scope,
            reason="a fault of its own",
        )
        member.say_apart(event)
        self.agenda.after(FAILED_S, self.lose, member)

    def lose(self, member: Member) -> None:
        """The process ends without a message; its peers see the connection end."""
        if not member.running:
            return
        self.plane.loses(member)
        self.leaves(member)
        self.agenda.after(DETECT_S, self._see_lost, member)

    def leaves(self, member: Member) -> None:
        """The process ends, in order or because it is fenced."""
        if member.running:
            member.running = False
            member.ended_at_s = self.now_s
            self.plane.changed()
            state = self.log.state
            if member.is_live_in(state) and state.phase is not Phase.FINISHED:
                self.agenda.after(DETECT_S, self._see_lost, member)

    def stand_still(self, member: Member) -> None:
        """The node's process is stopped."""
        if member.running and not member.mute:
            member.stopped = True
            self.plane.changed()

    def wake(self, member: Member) -> None:
        """The process continues, and knows nothing of what happened meanwhile."""
        if member.running and member.stopped:
            member.stopped = False
            member.able_since_s = self.now_s
            self.plane.changed()
            member.post_on()
            member.hear()

    def cut_from_store(self, member: Member) -> None:
        """The node continues training, but neither reads nor writes the store."""
        if member.running and not member.mute:
            member.cut_off = True

    def back_to_store(self, member: Member) -> None:
        """The node reads what was decided meanwhile."""
        if member.running and member.cut_off:
            member.cut_off = False
            member.able_since_s = self.now_s
            member.post_on()
            member.hear()

    def refuse(self, member: Member) -> None:
        """The store refuses the node's writes, as for a user who has lost a right."""
        member.refused = True

    def take_again(self, member: Member) -> None:
        """The store takes the node's writes again."""
        if member.refused:
            member.refused = False
            member.able_since_s = self.now_s
            member.post_on()

    def _see_lost(self, victim: Member) -> None:
        """Some peers of the node report it as lost; the first report counts."""
        able = [m for m in self.members if m.awake and victim.node in m.view.participants()]
        for _ in range(min(2, len(able))):
            reporter = able.pop(self.pick(len(able)))
            self.report(reporter, victim)

    def report(self, reporter: Voice, victim: Member, cause: str = "disconnect") -> None:
        """A node reports another as lost, unless it concludes that it is itself cut off."""
        delay_s = 0.0
        if isinstance(reporter, Member):
            away = [m.node for m in self.members if not m.running or self.apart(reporter, m)]
            delay_s = patience_s(reporter.view, reporter.node, away)
        event = PeerLost(node=victim.node, reporter=reporter.name, cause=cause)
        self.agenda.after(delay_s, reporter.say_apart, event)

    # ---------------------------------------------------------------- the network

    def cut_off(self, one: Member, other: Member) -> None:
        """These two nodes no longer reach each other, and each reports the other as lost."""
        self._cuts.add(frozenset((one.name, other.name)))
        for reporter, victim in ((one, other), (other, one)):
            if reporter.awake and victim.node in reporter.view.participants():
                self.agenda.after(DETECT_S * self.uniform(0.5, 1.5), self.report, reporter, victim)

    def join_up(self, one: Member, other: Member) -> None:
        """The two nodes reach each other again."""
        self._cuts.discard(frozenset((one.name, other.name)))

    def heal_cuts(self) -> None:
        """All nodes reach each other."""
        self._cuts.clear()

    def apart(self, one: Member, other: Member) -> bool:
        """Whether these two do not reach each other."""
        return bool(self._cuts) and frozenset((one.name, other.name)) in self._cuts

    def any_apart(self, members: Iterable[Member]) -> bool:
        """Whether any two of these do not reach each other."""
        if not self._cuts:
            return False
        names = {member.name for member in members}
        return any(pair <= names for pair in self._cuts)

    # ---------------------------------------------------------------- the log

    def cut(self, state: State) -> tuple[int, ...]:
        """First layer of each stage, and the layer count."""
        if state.cut:
            return state.cut
        stages, layers = state.grid.stages, self.scenario.layers
        return tuple(s * layers // stages for s in range(stages + 1))

    def _committed(self, entry: Entry) -> None:
        self.checkers.committed(entry)
        if entry.state.assignment is not entry.before.assignment:
            self.plane.changed()
        self.faults.committed(entry.author, entry.event)
        for member in self.members:
            if member.running and not member.stopped:
                member.hear()
        self.launcher.hear()

    def lose_store(self) -> None:
        """The store loses the run; nodes that had read it refill it after a lease."""
        if not self.log.lost:
            self.log.lose()
            self.leases.wipe()
            self.agenda.after(self.policy.gone_s, self._refill)

    def _refill(self) -> None:
        if not self.log.up or self.log.refuses:
            self.agenda.after(SWEEP_S, self._refill)
            return
        voices: list[Voice] = [*self.members, self.launcher]
        able = [v for v in voices if v.running and not (v.mute or v.refused or v.void)]
        if not able:
            self.agenda.after(SWEEP_S, self._refill)
            return
        best = max(able, key=lambda voice: voice.version)
        self.checkers.fell_back(best.version)
        self.log.refill(best.version, best.name, self.now_s)
        self.log.comes_back()

    # ---------------------------------------------------------------- the passage of time

    def _tick(self) -> None:
        slowest = 1.0
        share = self.plane.tick()
        safe_step = self.plane.safe_step
        for member in self.members:
            if member.running and not member.stopped:
                member.serve(safe_step)
                if member.owned and member.speed < slowest:
                    slowest = member.speed
        self.agenda.after(self.scenario.step_s * share / slowest, self._tick)

    def _sweep(self) -> None:
        """The checks of every second: cuts, stalls, the launcher's rounds, standstills."""
        state = self.log.state
        if self.log.takes:
            self._judge_cuts(state)
            self._judge_stall(state)
        else:
            self._stood_s = 0.0
        self._note_hush()
        self.launcher.sweep()
        self.liveness.sweep()
        self.agenda.after(SWEEP_S, self._sweep)

    def _judge_cuts(self, state: State) -> None:
        # In order: that of a set differs between processes, and each report draws a delay.
        for one, other in sorted(sorted(pair) for pair in self._cuts):
            reporter, victim = self._by_name[one], self._by_name[other]
            between = {reporter.node, victim.node} <= state.participants()
            if between and reporter.awake and victim.awake:
                self.report(reporter, victim)

    def _note_hush(self) -> None:
        """Note how long the store took nothing, if that was long enough for all to see it."""
        if not self.log.takes:
            if self._hushed_since_s is None:
                self._hushed_since_s = self.now_s
            if self.now_s - self._hushed_since_s >= 2 * SWEEP_S:
                self.hushed_s = (self._hushed_since_s, self.now_s)
        else:
            self._hushed_since_s = None

    def _beat(self) -> None:
        self.leases.go_round()
        self.agenda.after(BEAT_S, self._beat)

    def _judge_stall(self, state: State) -> None:
        """Report a stall if members wait for messages that no node has any more."""
        waits = self.plane.stuck and state.reconfiguration is None
        self._stood_s = self._stood_s + SWEEP_S if waits else 0.0
        if self._stood_s < STALL_S:
            return
        self._stood_s = 0.0
        for row in self.plane.rows[:3]:
            member = row.owner
            event = Stalled(
                node=member.node, era=member.era, step=member.begun_step(), reason="no message came"
            )
            self.checkers.stalls += 1
            member.say(event)
