"""Carries out a swarm on a running run: real signals at drawn times, from one thread.

    first step  ->  faults, until their time is over  ->  heal  ->  ask to stop  ->  receipt

Rules. (1) What is done and seen is written to `chaos.jsonl` in the run's folder as it happens. (2)
Every wait has an end. (3) Whatever happens, stopped processes continue.
"""

import contextlib
import heapq
import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from bamboo import wiring
from bamboo.chaos.draw import Fault, Kind
from bamboo.chaos.hands import Hands
from bamboo.chaos.led import LedRun
from bamboo.chaos.whom import Target, hit
from bamboo.coord.follow import Follower
from bamboo.core.events import StopRequested
from bamboo.core.state import Outcome, Phase, State
from bamboo.errors import BambooError, InputError, StoreUnavailable
from bamboo.ids import InstanceId
from bamboo.jsonl import LineWriter
from bamboo.ports import Store
from bamboo.telemetry.records import Tail

RECORDS = "chaos.jsonl"
FIRST_STEP_S = 240.0
STOP_S = 150.0
"""How long members may take to agree on a step, and the launcher to end everything."""
HEALED_STEPS = 5
"""The run counts as healed so many steps after the last fault."""
TICK_S = 0.03
NAP_S = 0.1
"""A slow worker is stopped for so long and continued for so long, in turn."""
FOLLOW_EVERY_S = 0.2
LEADER_EVERY_S = 1.0
CAPACITY = "InsufficientInstanceCapacity"

Tell = Callable[[str], None]


@dataclass(slots=True)
class _Plan:
    """What is due when, by `time.monotonic`."""

    heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    count: int = 0

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.heap, (when_s, self.count, what))

    def do_due(self) -> None:
        while self.heap and self.heap[0][0] <= time.monotonic():
            heapq.heappop(self.heap)[2]()


class _Strikes:
    """Carries out single faults, and ends their causes later; `over` is told then."""

    def __init__(
        self, led: LedRun, hands: Hands, plan: _Plan, over: Callable[[Fault], None]
    ) -> None:
        self._led = led
        self._cloud = led.cloud
        self._hands = hands
        self._plan = plan
        self._over = over
        self._lacks = 0
        """Faults under way that withhold capacity."""
        self.store_hit = 0
        """Faults under way that keep the store from answering."""
        self.noticed: set[str] = set()
        """Instances that have had a notice."""

    def do(self, fault: Fault, targets: Sequence[Target]) -> None:
        """Raises BambooError where it cannot be done, ProcessLookupError where its process has
        gone."""
        match fault.kind:
            case Kind.STOP_STORE | Kind.KILL_STORE:
                self._hit_store(fault)
                return
            case Kind.WIPE_STORE:
                self._wipe_store()
                return
            case Kind.KILL_LAUNCHER:
                self._led.kill_launcher()
                self._later(fault, fault.lasts_s, self._led.attend)
                return
        if not targets:
            raise InputError("there is nobody whom it could hit")
        match fault.kind:
            case Kind.NOTICE_KEPT | Kind.NOTICE_TO_MANY | Kind.NOTICE_NOT_KEPT:
                self._give_notice(fault, targets)
            case Kind.NOTICE_CUT_SHORT:
                self._give_notice(fault, targets, then=lambda: self._cut_short(targets[0]))
            case Kind.STOP_WORKER | Kind.STALL_WORKER:
                pid = _worker(targets[0])
                self._hands.stop(pid)
                self._later(fault, fault.lasts_s, lambda: self._hands.go_on(pid))
            case Kind.SLOW_WORKER:
                self._slow_down(fault, _worker(targets[0]))
            case Kind.ADVICE:
                self._cloud.control.advise(InstanceId(targets[0].instance))
            case Kind.KILL_WORKER:
                self._hands.kill(_worker(targets[0]))
            case Kind.KILL_AGENT:
                self._hands.kill(targets[0].agent)
            case Kind.KILL_ONE:
                self._preempt(targets[0], 0.0)
            case Kind.DISK_FULL:
                self._fill_disks(fault, [_worker(target) for target in targets])
            case _:
                if fault.kind in (Kind.NO_CAPACITY, Kind.NOTHING_LEFT):
                    self._withhold(fault)
                if fault.kind is Kind.KILL_ZONE:
                    self._withhold(fault, zone=targets[0].zone)
                self._hands.kill_groups([target.agent for target in targets])

    def _slow_down(self, fault: Fault, pid: int) -> None:
        end_s = time.monotonic() + fault.lasts_s

        def stop() -> None:
            if time.monotonic() >= end_s:
                self._over(fault)
                return
            with contextlib.suppress(ProcessLookupError):  # another fault may have ended it
                if not self._hands.stopped(pid):
                    self._hands.stop(pid)
                    self._plan.at(time.monotonic() + NAP_S, go_on)
                    return
            self._plan.at(time.monotonic() + NAP_S, stop)

        def go_on() -> None:
            self._hands.go_on(pid)
            self._plan.at(time.monotonic() + NAP_S, stop)

        stop()

    def _hit_store(self, fault: Fault) -> None:
        pid = self._cloud.control.services()["store"]
        if pid is None:
            raise InputError("the store is not the run's own")
        if fault.kind is Kind.KILL_STORE:
            self._hands.kill(pid)
            return
        self._hands.stop(pid)
        self.store_hit += 1

        def again() -> None:
            self._hands.go_on(pid)
            self.store_hit -= 1

        self._later(fault, fault.lasts_s, again)

    def _wipe_store(self) -> None:
        if self.store_hit:
            raise InputError("the store does not answer at present")
        if self._led.launcher() is None:
            raise InputError("the run has no launcher, and perhaps nobody who could give it back")
        wiring.wipe_store(self._cloud)

    def _fill_disks(self, fault: Fault, workers: Sequence[int]) -> None:
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                self._hands.fill_disk(pid)

        def again() -> None:
            for pid in workers:
                self._hands.free_disk(pid)

        self._later(fault, fault.lasts_s, again)

    def _withhold(self, fault: Fault, *, zone: str = "") -> None:
        self._cloud.control.refuse(code=CAPACITY, zone=zone, count=1_000_000)
        self._lacks += 1

        def again() -> None:
            self._lacks -= 1
            if self._lacks == 0:  # all are forgotten together
                self._cloud.control.relent()

        self._later(fault, fault.lasts_s, again)

    def _give_notice(
        self, fault: Fault, targets: Sequence[Target], *, then: Callable[[], None] | None = None
    ) -> None:
        for target in targets:
            self.noticed.add(target.instance)
            if fault.kind is Kind.NOTICE_NOT_KEPT:
                self._cloud.control.notice(InstanceId(target.instance), notice_s=fault.lasts_s)
            else:
                self._preempt(target, fault.lasts_s)
        self._later(fault, fault.cut_s or fault.lasts_s, then or (lambda: None))

    def _preempt(self, target: Target, notice_s: float) -> None:
        instance = InstanceId(target.instance)
        self._cloud.control.preempt(instance, notice_s=notice_s, cause="swarm")

    def _cut_short(self, target: Target) -> None:
        with contextlib.suppress(InputError):  # it has handed over and ended meanwhile
            self._preempt(target, 0.0)

    def _later(self, fault: Fault, delay_s: float, what: Callable[[], None]) -> None:
        """End the cause of a fault after a while."""

        def over() -> None:
            with contextlib.suppress(BambooError):
                what()
            self._over(fault)

        self._plan.at(time.monotonic() + delay_s, over)


class Swarm:
    """The chaos side of one run; `run` is called once."""

    def __init__(self, led: LedRun, faults: Sequence[Fault], *, hands: Hands, tell: Tell) -> None:
        self._led = led
        self._cloud = led.cloud
        self._hands = hands
        self._faults = faults
        self._tell = tell
        self._plan = _Plan()
        self._strikes = _Strikes(led, hands, self._plan, self._over)
        self._follower = Follower()
        self._metrics = Tail(led.folder.metrics)
        self._steps = 0
        self._follow_at_s = self._leader_at_s = 0.0
        self._missed_leaders: set[int] = set()
        self._stands: dict[str, Any] = {}
        self._over_at_s = time.monotonic()
        """When the last cause was gone."""

    def run(self, *, minutes: float, heal_s: float, seen_s: float) -> None:
        """Play to the run's receipt, if it leaves one. `seen_s`: an effect may stay unseen for so
        long after its cause is gone. Raises BambooError when the run does not come far enough for
        faults."""
        folder = self._led.folder
        with ExitStack() as stack:
            self._books = stack.enter_context(LineWriter(folder.path / RECORDS))
            self._store: Store = stack.enter_context(
                wiring.store_of(folder.id, self._cloud.store_url)
            )
            stack.callback(self._hands.undo_all)
            if not self._until(lambda: self._steps > 0, time.monotonic() + FIRST_STEP_S):
                raise BambooError(
                    f"no step within {FIRST_STEP_S:g} s; see the logs in {folder.path}"
                )
            begin_s = time.monotonic()
            self._write("begin")
            for fault in self._faults:
                self._plan.at(begin_s + fault.at_s, lambda f=fault: self._strike(f))  # type: ignore[misc]
            self._until(lambda: False, begin_s + 60 * minutes)
            self._write("healing")
            self._tell("no more faults; waiting until every stage has all its copies again")
            calm_at = self._steps + HEALED_STEPS
            self._until(lambda: self._healed(calm_at, seen_s), time.monotonic() + heal_s)
            self._stop()

    def _until(self, reached: Callable[[], bool], end_s: float) -> bool:
        """Do what is due until the condition holds, the time is over, or the run has ended."""
        while time.monotonic() < end_s and not self._led.ended():
            self._plan.do_due()
            self._look()
            if reached():
                return True
            time.sleep(TICK_S)  # the pace of looking, not a wait for a condition
        self._look()
        return reached()

    def _look(self) -> None:
        lines = self._metrics.lines()
        if lines:
            steps = 1 + max(int(json.loads(line)["step"]) for line in lines)
            if steps > self._steps:
                self._steps = steps
                self._write("steps", steps=steps)
        if time.monotonic() >= self._follow_at_s:
            self._follow()
        if time.monotonic() >= self._leader_at_s:
            self._leader_at_s = time.monotonic() + LEADER_EVERY_S
            self._see_who_leads()

    def _see_who_leads(self) -> None:
        lost = self._led.gone_by_itself()
        if lost is not None and lost not in self._missed_leaders:
            self._missed_leaders.add(lost)
            self._write("launcher", pid=lost)
        self._led.look_after()

    def _follow(self) -> None:
        """Read the log, unless its store is known not to answer."""
        if self._strikes.store_hit:
            return
        with contextlib.suppress(StoreUnavailable):
            while self._follower.poll(self._store, timeout_s=0.0):
                pass
        self._follow_at_s = time.monotonic() + FOLLOW_EVERY_S
        state = self._follower.state
        if state is not None and standing(state) != self._stands:
            self._stands = standing(state)
            self._write("stands", **self._stands)

    def _healed(self, calm_at: int, seen_s: float) -> bool:
        state = self._follower.state
        return (
            not self._plan.heap
            and time.monotonic() > self._over_at_s + seen_s
            and self._steps >= calm_at
            and state is not None
            and protected(state)
        )

    # ------------------------------------------------------------------ striking

    def _strike(self, fault: Fault) -> None:
        targets: Sequence[Target] = ()
        missed = ""
        at_s = time.time()
        try:
            self._follow()
            targets = hit(fault, self._running())
            at_s = time.time()
            self._strikes.do(fault, targets)
        except (BambooError, ProcessLookupError) as error:
            missed = str(error) or "its process had just gone"
        self._write(
            "fault",
            t=at_s,
            number=fault.number,
            fault=fault.kind,
            drawn_s=fault.at_s,
            lasts_s=fault.lasts_s,
            targets=[{"instance": t.instance, "slots": list(t.slots)} for t in targets],
            missed=missed,
        )
        whom = ", ".join(t.instance for t in targets)
        said = f"not done: {missed}" if missed else whom
        self._tell(f"{fault.at_s:6.1f} s  {fault.number:3d}  {fault.kind}: {said}".rstrip(": "))
        if not missed and fault.over_s == fault.at_s:
            self._over(fault)

    def _over(self, fault: Fault) -> None:
        self._over_at_s = time.monotonic()
        self._write("over", number=fault.number)

    # ------------------------------------------------------------------ whom

    def _running(self) -> list[Target]:
        """The running instances by the cloud, with their slots by the run's log."""
        state = self._follower.state
        nodes = {} if state is None else {node.instance: node for node in state.live_nodes()}
        found = []
        for told in self._cloud.control.instances():
            if told["state"] != "running" or told["pid"] is None:
                continue
            node = nodes.get(InstanceId(str(told["instance"])))
            worker = None if node is None else node.pid
            found.append(
                Target(
                    instance=str(told["instance"]),
                    zone=str(told["zone"]),
                    agent=int(told["pid"]),
                    worker=worker,
                    slots=() if state is None or node is None else _slots(state, node.id),
                    noticed=told["instance"] in self._strikes.noticed,
                    stopped=self._hands.stopped(worker),
                )
            )
        return found

    # ------------------------------------------------------------------ the end

    def _stop(self) -> None:
        """Request a stop at a step boundary, and wait for the run's receipt."""
        end_s = time.monotonic() + STOP_S
        self._write("stop")
        self._tell("asking the run to stop at a step boundary")
        while not self._led.ended() and time.monotonic() < end_s:
            try:
                wiring.driver(self._store, "chaos").append(
                    StopRequested(reason="the swarm is over", outcome=Outcome.STOPPED),
                    deadline_s=5.0,
                )
                break
            except StoreUnavailable:
                self._look()
        self._until(lambda: False, end_s)

    def _write(self, kind: str, **body: Any) -> None:
        self._books.write(json.dumps({"kind": kind, "t": time.time(), **body}))


def _worker(target: Target) -> int:
    assert target.worker is not None, "such a fault hits those alone who have one"
    return target.worker


def _slots(state: State, node: str) -> tuple[tuple[int, int], ...]:
    if state.assignment is None:
        return ()
    owned = [s for s in state.grid.slots() if state.assignment.owner(s) == node]
    return tuple((slot.pipeline, slot.stage) for slot in owned)


def standing(state: State) -> dict[str, Any]:
    """What `chaos.jsonl` keeps of a run by its decisions: its phase, and how many failovers,
    transfers, moves and reconfigurations are under way."""
    under_way = len(state.failovers) + len(state.transfers) + len(state.moves)
    return {
        "phase": state.phase.value,
        "under_way": under_way + (state.reconfiguration is not None),
    }


def protected(state: State) -> bool:
    """Whether it could lose any node and go on: it has all its copies, and nothing is under way
    that would change which nodes hold them. DEGRADED is not enough: a slot without a copy is lost
    with its node."""
    return standing(state) == {"phase": Phase.RUNNING.value, "under_way": 0}
