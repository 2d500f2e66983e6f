"""Whole runs in one thread: real trainers, a network and a log whose order a seed decides.

Each action of the schedule lets one thing happen: a node runs a few operations, one message
arrives, one report is committed, one node reads one decision, one node dies. A death takes with it
a random end of what the dead had sent and said, which is what SIGKILL does. So orders that real
processes meet once in a thousand runs are met every time, and any of them can be repeated.
"""

import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, TypeAlias

from torch import Tensor

from bamboo.config.resolve import resolve, semantics
from bamboo.config.tree import JobConfig
from bamboo.core.effects import Effect
from bamboo.core.events import Event, NodeJoined, PeerLost
from bamboo.core.invariants import check, check_step
from bamboo.core.machine import transition
from bamboo.core.state import Phase, Policy, State, initial_state
from bamboo.ids import InstanceId, NodeId, RunId, ZoneId
from bamboo.ports import YIELDING, Buffer, Delivered, MessageKey, PeerGone
from bamboo.runtime.device.devices import device_of
from bamboo.runtime.device.lagging import Lagging
from bamboo.runtime.node.preempt import Preemptions
from bamboo.runtime.node.trainer import Trainer
from bamboo.runtime.state.decision import Decided
from bamboo.runtime.step.executor import Completed
from bamboo.runtime.step.numerics import prepare
from bamboo.runtime.step.slots import SlotBuilder
from bamboo.runtime.wire.outbox import Outbox
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Placement, Strategy
from bamboo.topology.sync import Sync
from testbed.calm import trained_by

POLICY = Policy(suspect_s=1.0, gone_s=3.0)
NOW_S = 1000.0
NO_RULES = Sync()
Link = tuple[NodeId, NodeId, bool]
"""From one node to another; whether it is the lane of what yields."""


class Wires:
    """Two queues of messages for each ordered pair of nodes: of what yields, and of all else."""

    def __init__(self) -> None:
        self.queues: dict[Link, deque[Delivered]] = {}

    def busy(self) -> list[Link]:
        """Links on which something is under way."""
        return [link for link, queue in self.queues.items() if queue]


class SimulatedTransport:
    """`ports.Transport` over `Wires`; who is heard follows the rule of the port."""

    def __init__(self, wires: Wires, me: NodeId) -> None:
        self._wires, self._me = wires, me
        self._generation = 0
        self._members: frozenset[NodeId] = frozenset()
        self.arrived: deque[Delivered] = deque()
        self.endpoint = f"sim://{me}"
        self.sent_to: Counter[tuple[NodeId, str]] = Counter()
        """Bytes of tensors, by receiver and kind of message."""

    @property
    def sent_bytes(self) -> Mapping[str, int]:
        """Of tensors alone; the real one counts headers, too."""
        sent: Counter[str] = Counter()
        for (_, kind), size in self.sent_to.items():
            sent[kind] += size
        return sent

    def reconfigure(self, *, generation: int, members: Mapping[NodeId, str]) -> None:
        self._generation, self._members = generation, frozenset(members)

    def send(
        self,
        node: NodeId,
        key: MessageKey,
        buffers: Sequence[Buffer],
        meta: Mapping[str, Any],
        generation: int | None = None,
    ) -> bool:
        if node not in self._members or node == self._me:
            return False
        message = Delivered(
            key=key,
            sender=self._me,
            generation=self._generation if generation is None else generation,
            meta=dict(meta),
            buffers=tuple(
                Buffer(dtype=b.dtype, shape=b.shape, data=memoryview(bytearray(b.data)))
                for b in buffers
            ),
        )
        self.sent_to[node, key.kind] += sum(buffer.data.nbytes for buffer in message.buffers)
        link = (self._me, node, key.kind in YIELDING)
        self._wires.queues.setdefault(link, deque()).append(message)
        return True

    def poll(self, timeout_s: float) -> Sequence[Delivered]:
        del timeout_s
        heard, early = [], []
        for message in self.arrived:
            if message.sender in self._members:
                heard.append(message)
            elif message.generation > self._generation:
                early.append(message)
        self.arrived = deque(early)
        return heard

    def wait_gone(self, timeout_s: float) -> Sequence[PeerGone]:
        del timeout_s
        return ()

    def wake(self) -> None:
        """Nobody waits here."""

    def close(self) -> None:
        """There is nothing to close."""


def _with_a_device(builder: SlotBuilder) -> SlotBuilder:
    """The builder of one node: builders are shared here, and each node has a device of its own."""
    own = copy(builder)
    own.device = device_of(builder.job.cluster, builder.strategy.placement.cut)
    if isinstance(own.device, Lagging):
        asked = itertools.count()
        own.device = Lagging(clock=lambda: float(next(asked)), most_delay_s=6.0)
    return own


class Node:
    """One trainer with what it has said and not yet been heard."""

    def __init__(
        self, builder: SlotBuilder, wires: Wires, me: NodeId, storage: "Storage" = lambda *_: {}
    ) -> None:
        self.id = me
        self.transport = SimulatedTransport(wires, me)
        self.said: deque[Event | Mapping[str, Any]] = deque()
        self.trainer = Trainer(
            me=me,
            builder=_with_a_device(builder),
            transport=self.transport,
            outbox=self,
            preemptions=Preemptions((), node=str(me), stamp_file=None),
            **{"keep_final": None, **storage(me, self)},
        )
        self.read = 0
        """Decisions of the log that it has read."""
        self.alive = True
        self._turns = self._loops = 0
        self._until_idle = False
        self.trainer.executor.ask(attention=self._attention)
        # The executor asks its listener, and finds this one on it.
        self.trainer.idle = partial(self._idle, self.trainer.idle)  # type: ignore[method-assign]
        self.trainer._boundaries.clock = lambda: float(self._loops)

    def event(self, event: Event) -> None:
        """`Outbox`: an event."""
        self.said.append(event)

    def metric(self, record: Mapping[str, Any]) -> None:
        """`Outbox`: a record."""
        self.said.append(record)

    @property
    def running(self) -> bool:
        return self.alive and self.trainer._goodbye is None

    def _attention(self) -> bool:
        self._turns -= 1
        self._loops += 1
        return bool(self.trainer._inbound) or self._turns < 0

    def _idle(self, idle: Callable[[], None]) -> None:
        idle()
        if self._until_idle:
            self._turns = 0

    def turn(self, loops: int, *, until_idle: bool = False) -> None:
        """Let the executor's loop go round at most so often, or until nothing is ready; as
        `Trainer.run` does otherwise."""
        self._turns, self._until_idle = loops, until_idle
        trainer = self.trainer
        executor = trainer.executor
        if not (executor.owned or executor.shadowed or trainer._inbound):
            trainer.rest(0.0)
            return
        result = trainer.executor.run(linger=trainer.finish.said)
        if isinstance(result, Completed):
            trainer.say_finished()
        else:
            trainer._attend(result)


Storage: TypeAlias = Callable[[NodeId, Outbox], Mapping[str, Any]]
"""A node and its outbox -> what stores for it, as arguments of its trainer."""


class World:
    """A run of `job`; `step` lets one thing happen, chosen by `draw`. `standbys` are further nodes,
    which join when they are told to. `cut`: where the stages begin and end; (): as even as it
    can be. `sync`: how gradients are synchronised. `shares`: virtual nodes of each pipeline; ():
    equal ones."""

    def __init__(
        self,
        job: JobConfig,
        draw: random.Random,
        standbys: int = 0,
        policy: Policy = POLICY,
        storage: Storage = lambda *_: {},
        *,
        cut: tuple[int, ...] = (),
        sync: Sync = NO_RULES,
        shares: tuple[int, ...] = (),
    ) -> None:
        self.draw, self.policy = draw, policy
        builder = builder_of(job, cut, sync, shares)
        self.steps = job.train.steps
        grid = builder.strategy.placement.grid
        begun = initial_state(run=RunId("sim"), grid=grid, redundancy=job.cluster.redundancy)
        self.state: State = replace(begun, shares=shares)
        self.log: list[tuple[State, tuple[Effect, ...]]] = []
        self.reasons: list[str] = []
        self.records: list[Mapping[str, Any]] = []
        self.wires = Wires()
        self.nodes = {
            name: Node(builder, self.wires, name, storage)
            for name in (NodeId(f"n{i:02d}") for i in range(grid.size + standbys))
        }
        self.standbys = list(self.nodes)[grid.size :]
        self.reads_up_to: dict[NodeId, int] = {}
        """Nodes that read only so many decisions for now."""
        self.unreported: set[NodeId] = set()
        """Deaths that nobody has reported yet."""
        for node in list(self.nodes)[: grid.size]:
            self.join(node)

    def join(self, node: NodeId) -> None:
        """A node says that it is there."""
        zone, instance = ZoneId("z"), InstanceId(node)
        self.commit(NodeJoined(node=node, instance=instance, zone=zone, endpoint=node, pid=1))

    # ------------------------------------------------------------------ what can happen

    def commit(self, event: Event) -> None:
        """Let the core decide an event."""
        outcome = transition(self.state, event, now_s=NOW_S, policy=self.policy)
        wrong = check(outcome.state) + check_step(self.state, outcome.state)
        assert not wrong, f"{wrong} after {event}\n{self.report()}"
        self.reasons.append(outcome.reason)
        if outcome.state is not self.state:
            self.state = outcome.state
            self.log.append((outcome.state, outcome.effects))

    def kill(self, node: NodeId) -> None:
        """The node is gone, with a random end of what it had sent and said."""
        self.nodes[node].alive = False
        self.unreported.add(node)
        for link, queue in self.wires.queues.items():
            if link[0] == node:
                _cut(queue, self.draw)
            elif link[1] == node:
                queue.clear()
        _cut(self.nodes[node].said, self.draw)

    def actions(self) -> list[Callable[[], None]]:
        """All that can happen next, apart from a node's own turn."""
        out: list[Callable[[], None]] = [partial(self._arrive, link) for link in self.wires.busy()]
        for node in self.nodes.values():
            if node.said:
                out.append(partial(self._hear, node))
            if node.running and node.read < self.reads_up_to.get(node.id, len(self.log)):
                out.append(partial(self._read, node))
        out += [partial(self._report, node) for node in sorted(self.unreported)]
        return out

    def step(self) -> None:
        """Let one thing happen."""
        running = [n for n in self.nodes.values() if n.running]
        actions = self.actions()
        if not actions or (running and self.draw.random() < 0.4):
            self.draw.choice(running).turn(self.draw.choice((1, 1, 2, 5, 20)))
        else:
            self.draw.choice(actions)()

    def _arrive(self, link: Link) -> None:
        queue = self.wires.queues[link]
        for _ in range(min(len(queue), self.draw.choice((1, 1, 3, 10)))):
            message = queue.popleft()
            if self.nodes[link[1]].running:
                self.nodes[link[1]].transport.arrived.append(message)

    def _hear(self, node: Node) -> None:
        said = node.said.popleft()
        if isinstance(said, Mapping):
            self.records.append(said)
        else:
            self.commit(said)

    def _read(self, node: Node) -> None:
        state, effects = self.log[node.read]
        node.read += 1
        node.trainer.tell(Decided(state=state, effects=effects, read_s=0.0))

    def _report(self, node: NodeId) -> None:
        """Somebody saw the end of a connection. All will; the first whose word counts does it."""
        living = [n.id for n in self.nodes.values() if n.running]
        reporter = self.draw.choice(living) if living else "launcher"
        self.commit(PeerLost(node=node, reporter=reporter, cause="disconnect"))
        found = self.state.node(node)
        if found is None or not found.status.live or not living:
            self.unreported.discard(node)

    # ------------------------------------------------------------------ to the end

    @property
    def over(self) -> bool:
        return self.state.phase is Phase.FINISHED

    def run(self, until: Callable[[], bool], limit: int = 200_000) -> None:
        """Let things happen until `until` holds or the run is over. Fails when nothing moves."""
        for _ in range(limit):
            if until() or self.over:
                return
            self.step()
            if not self.actions() and not self._moves():
                raise AssertionError(f"nothing moves any more\n{self.report()}")
        raise AssertionError(f"no end after {limit} steps\n{self.report()}")

    def run_in_order(self, limit: int = 10_000) -> None:
        """Let the run come to its end with no order drawn: every node works as long as it can, and
        then all that was sent and said is heard. Fails when it does not end."""
        for _ in range(limit):
            if self.over:
                return
            for node in self.nodes.values():
                if node.running:
                    node.turn(50, until_idle=True)
            for action in self.actions():
                action()
        raise AssertionError(f"no end after {limit} rounds\n{self.report()}")

    def _moves(self) -> bool:
        """Whether some node does or says anything when all are given a few long turns."""
        before = self._progress()
        # Often enough for a slot that stands still for its taker to go on.
        for _ in range(100):
            for node in self.nodes.values():
                if node.running:
                    node.turn(50)
            if self.actions() or self._progress() != before:
                return True
        return False

    @property
    def operations(self) -> int:
        """How many forwards, backwards and steps were run, over all nodes."""
        return sum(counts[kind] for counts in self._progress() for kind in ("F", "B", "S"))

    def run_to_a_step(self) -> NodeId | None:
        """Go on until some node has taken an optimizer step just now; which one."""
        before = {n.id: n.trainer.executor.operations.counts["S"] for n in self.nodes.values()}

        def stepped() -> list[NodeId]:
            counts = {n.id: n.trainer.executor.operations.counts["S"] for n in self.nodes.values()}
            return [node for node in counts if counts[node] > before[node]]

        self.run(until=lambda: bool(stepped()))
        return next(iter(stepped()), None)

    def _progress(self) -> list[dict[str, int]]:
        return [dict(n.trainer.executor.operations.counts) for n in self.nodes.values()]

    def settle(self) -> None:
        """After the end: everything that was said is heard, and every node reads the end."""
        while actions := self.actions():
            self.draw.choice(actions)()
            for node in self.nodes.values():
                if node.running:
                    node.turn(1)

    def losses(self) -> dict[int, str]:
        """Loss by step as exact hex text; two records of a step must agree."""
        out: dict[int, str] = {}
        for record in self.records:
            if record["kind"] == "step":
                assert out.setdefault(record["step"], record["loss_hex"]) == record["loss_hex"]
        return out

    def sent_bytes(self) -> dict[str, int]:
        """Bytes of tensors that all nodes have sent, by kind of message."""
        sent: Counter[str] = Counter()
        for node in self.nodes.values():
            sent.update(node.transport.sent_bytes)
        return dict(sent)

    def between(self, kinds: Collection[str], zones: Sequence[int]) -> int:
        """Bytes of tensors in messages of these kinds between nodes of pipelines in different
        zones."""
        assert self.state.assignment is not None
        owners, stages = self.state.assignment.owners, self.state.grid.stages
        zone = {node: zones[number // stages] for number, node in enumerate(owners)}
        return sum(
            size
            for sender in zone
            for (receiver, kind), size in self.nodes[sender].transport.sent_to.items()
            if kind in kinds and zone[sender] != zone[receiver]
        )

    def tensors(self, pipeline: int) -> dict[str, Tensor]:
        """Parameters and moments of one pipeline, from whoever owns them."""
        out: dict[str, Tensor] = {}
        assert self.state.assignment is not None
        for slot in self.state.grid.pipeline(pipeline):
            owner = self.nodes[self.state.assignment.owner(slot)]
            out |= owner.trainer.executor.owned[slot].tensors()
        return out

    def report(self) -> str:
        """Where everybody stands."""
        lines = [*self.reasons[-12:], f"{self.state.phase}: {self.state.sentence}"]
        for node in self.nodes.values():
            executor, mailbox = node.trainer.executor, node.trainer.mailbox
            lines.append(
                f"{node.id} alive={node.alive} bye={node.trainer._goodbye} hold={executor.hold} "
                f"at {executor.cursor or '-'} shadows "
                f"{[f'{s} step {r.step}' for s, r in executor.shadowed.items()]} "
                f"safe={[v for _, v in sorted(mailbox.safe.items(), key=str)]}"
            )
        return "\n".join(lines)


def _cut(queue: deque[Any], draw: random.Random) -> None:
    """Drop a random end of a queue."""
    for _ in range(draw.randint(0, len(queue))):
        queue.pop()


@lru_cache(maxsize=64)
def builder_of(
    job: JobConfig,
    cut: tuple[int, ...] = (),
    sync: Sync = NO_RULES,
    shares: tuple[int, ...] = (),
) -> SlotBuilder:
    """What all nodes of a job build their slots with; an empty `cut` is as even as it can be, and
    empty `shares` are equal."""
    job = resolve(job)
    prepare(job.cluster)
    workload, data = trained_by(job.model, job.data, job.train)
    grid = Grid(pipelines=job.cluster.pipelines, stages=job.cluster.stages)
    layers = len(workload.layers)
    cut = cut or tuple(round(layers * p / grid.stages) for p in range(grid.stages + 1))
    strategy = Strategy(
        semantics=semantics(job, data_digest=data.digest, code={}),
        placement=Placement(cut=cut, grid=grid, redundancy=job.cluster.redundancy, sync=sync),
    )
    return SlotBuilder(job=job, strategy=strategy, workload=workload, dataset=data, shares=shares)
