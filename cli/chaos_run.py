"""Carrying out a swarm: a launched run in a process of its own, and real signals at drawn times.

    start the launcher  ->  first step  ->  faults, until their time is over  ->  heal  ->  ask to
    stop  ->  the launcher ends

Rules. (1) The launcher is the program that users call; nothing in it knows of the swarm. (2) What
was done and what was seen is written to `chaos.jsonl` in the run's folder as it happens. (3) Every
wait has an end; whatever happens, what was stopped goes on and the launcher is gone.
"""

import contextlib
import heapq
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bamboo.core.events import StopRequested
from bamboo.core.state import Outcome, Phase, State
from bamboo.errors import BambooError, InputError, StoreUnavailable
from bamboo.ids import InstanceId
from bamboo.ports import Store
from bamboo.telemetry.reader import Tail
from bamboo.telemetry.writer import LineWriter
from cli import wiring
from cli.chaos_launch import LaunchedRun
from cli.chaos_swarm import Fault, Kind, Target, hit
from cli.follow import Follower

if TYPE_CHECKING:
    from cloud.local.start import LocalCloud

FIRST_STEP_S = 240.0
STOP_S = 90.0
"""How long the members may take to agree on a step, and the launcher to leave."""
HEALED_STEPS = 5
"""So many steps after the last fault the run counts as healed."""
TICK_S = 0.03
FOLLOW_EVERY_S = 0.2
CAPACITY = "InsufficientInstanceCapacity"

Tell = Callable[[str], None]


@dataclass(slots=True)
class _Plan:
    """What is to be done when, by `time.monotonic`."""

    heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    count: int = 0

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.heap, (when_s, self.count, what))

    def do_due(self) -> None:
        while self.heap and self.heap[0][0] <= time.monotonic():
            heapq.heappop(self.heap)[2]()


class Swarm:
    """The chaos side of one run, in one thread."""

    def __init__(self, launched: LaunchedRun, faults: Sequence[Fault], *, tell: Tell) -> None:
        self._launched = launched
        self._faults = faults
        self._tell = tell
        self._plan = _Plan()
        self._follower = Follower()
        self._steps = 0
        self._followed_s = 0.0
        self._store_hit = 0
        """Faults under way that keep the store from answering."""
        self._lacks = 0
        """Faults under way that withhold capacity."""
        self._noticed: set[str] = set()
        self._stopped: dict[int, int] = {}
        """Process id -> pidfd of all that stands still by our hand."""

    def run(self, *, minutes: float, heal_s: float) -> None:
        """From the run's first step to the end of its launcher. Raises BambooError when the run
        does not come so far that anything can be done to it."""
        launched = self._launched
        launched.wait_for_first_step(FIRST_STEP_S)
        with ExitStack() as stack:
            self._cloud: LocalCloud = wiring.local_cloud_of(launched.folder)
            launched.cloud = self._cloud
            self._books = stack.enter_context(LineWriter(launched.folder.path / "chaos.jsonl"))
            self._metrics = Tail(launched.folder.metrics)
            self._store: Store = stack.enter_context(
                wiring.store_of(launched.folder.id, self._cloud.store_url)
            )
            stack.callback(self._let_all_go_on)
            self._begin_s = time.monotonic()
            for fault in self._faults:
                self._plan.at(self._begin_s + fault.at_s, lambda f=fault: self._strike(f))
            self._until(lambda: False, self._begin_s + 60 * minutes)
            self._write("healing")
            self._tell("no more faults; healing")
            calm_at = self._steps + HEALED_STEPS
            self._until(lambda: self._healed(calm_at), time.monotonic() + heal_s)
            self._stop()

    def _until(self, reached: Callable[[], bool], end_s: float) -> bool:
        """Do what is due until something is so, the time is over, or the run has ended."""
        while time.monotonic() < end_s and not self._launched.ended():
            self._plan.do_due()
            self._look()
            if reached():
                return True
            self._launched.wait(TICK_S)
        self._look()
        return False

    def _look(self) -> None:
        lines = self._metrics.lines()
        if lines:
            self._steps = max(self._steps, 1 + max(json.loads(line)["step"] for line in lines))
            self._write("steps", steps=self._steps)
        if time.monotonic() - self._followed_s >= FOLLOW_EVERY_S:
            self._follow()

    def _follow(self) -> None:
        """Read the log, unless that could only keep us waiting."""
        if self._store_hit:
            return
        self._followed_s = time.monotonic()
        with contextlib.suppress(StoreUnavailable):
            self._follower.catch_up(self._store)

    def _healed(self, calm_at: int) -> bool:
        state = self._follower.state
        return (
            not self._plan.heap
            and self._steps >= calm_at
            and state is not None
            and state.reform is None
            and state.phase in (Phase.RUNNING, Phase.DEGRADED)
        )

    # ------------------------------------------------------------------ striking

    def _strike(self, fault: Fault) -> None:
        self._follow()
        targets = hit(fault, self._running())
        missed = ""
        try:
            self._do(fault, targets)
        except (BambooError, ProcessLookupError) as error:
            missed = str(error)
        body = {
            "number": fault.number,
            "fault": fault.kind,
            "drawn_s": fault.at_s,
            "lasts_s": fault.lasts_s,
            "targets": [{"instance": t.instance, "slots": list(t.slots)} for t in targets],
            "missed": missed,
        }
        self._write("fault", **body)
        whom = ", ".join(t.instance for t in targets) or "the store"
        said = f"not done: {missed}" if missed else whom
        self._tell(f"{fault.at_s:6.1f} s  {fault.number:3d}  {fault.kind}: {said}")
        if not missed and fault.over_s == fault.at_s:
            self._over(fault)

    def _do(self, fault: Fault, targets: Sequence[Target]) -> None:
        match fault.kind:
            case Kind.STOP_STORE | Kind.KILL_STORE:
                self._hit_store(fault)
                return
            case Kind.NO_CAPACITY | Kind.NOTHING_LEFT:
                self._withhold(fault)
        if not targets:
            raise InputError("there is nobody whom it could hit")
        match fault.kind:
            case Kind.NOTICE_KEPT | Kind.NOTICE_TO_MANY:
                for target in targets:
                    self._preempt(target, fault.lasts_s)
                self._later(fault, fault.lasts_s, lambda: None)
            case Kind.NOTICE_NOT_KEPT:
                self._noticed.add(targets[0].instance)
                instance = InstanceId(targets[0].instance)
                self._cloud.control.notice(instance, notice_s=fault.lasts_s)
                self._later(fault, fault.lasts_s, lambda: None)
            case Kind.NOTICE_CUT_SHORT:
                self._preempt(targets[0], fault.lasts_s)
                self._later(fault, fault.cut_s, lambda: self._cut_short(targets[0]))
            case Kind.STOP_WORKER | Kind.STALL_WORKER:
                pid = _worker(targets[0])
                self._stand_still(pid)
                self._later(fault, fault.lasts_s, lambda: self._go_on(pid))
            case Kind.KILL_WORKER:
                self._kill_process(_worker(targets[0]))
            case Kind.KILL_AGENT:
                self._kill_process(targets[0].agent)
            case Kind.KILL_ONE:
                self._preempt(targets[0], 0.0)
            case _:
                for target in targets:  # one after the other, within a millisecond
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(target.agent, signal.SIGKILL)

    def _hit_store(self, fault: Fault) -> None:
        pid = self._cloud.control.services()["store"]
        if pid is None:
            raise InputError("the store is not the run's own")
        if fault.kind is Kind.KILL_STORE:
            self._kill_process(pid)
            return
        self._stand_still(pid)
        self._store_hit += 1

        def again() -> None:
            self._go_on(pid)
            self._store_hit -= 1

        self._later(fault, fault.lasts_s, again)

    def _withhold(self, fault: Fault) -> None:
        self._cloud.control.refuse(code=CAPACITY, count=1_000_000)
        self._lacks += 1
        self._later(fault, fault.lasts_s, self._give)

    def _give(self) -> None:
        self._lacks -= 1
        if self._lacks == 0:
            self._cloud.control.relent()

    def _preempt(self, target: Target, notice_s: float) -> None:
        if notice_s > 0:
            self._noticed.add(target.instance)
        self._cloud.control.preempt(
            InstanceId(target.instance), notice_s=notice_s, cause="swarm"
        )

    def _cut_short(self, target: Target) -> None:
        with contextlib.suppress(InputError):  # it handed over and has been ended meanwhile
            self._cloud.control.preempt(InstanceId(target.instance), cause="swarm")

    def _later(self, fault: Fault, delay_s: float, what: Callable[[], None]) -> None:
        """Take the cause of a fault away after a while."""

        def over() -> None:
            with contextlib.suppress(BambooError):
                what()
            self._over(fault)

        self._plan.at(time.monotonic() + delay_s, over)

    def _over(self, fault: Fault) -> None:
        self._write("over", number=fault.number)

    # ------------------------------------------------------------------ whom

    def _running(self) -> list[Target]:
        """The instances that run, by the cloud and, for their slots, by the run's log."""
        state, slots, workers = self._follower.state, {}, {}
        if state is not None:
            for node in state.live_nodes():
                slots[node.instance] = _slots(state, node.id)
                workers[node.instance] = node.pid
        return [
            Target(
                instance=str(told["instance"]),
                agent=int(told["pid"]),
                worker=workers.get(told["instance"]),
                slots=slots.get(told["instance"], ()),
                noticed=told["instance"] in self._noticed,
                stopped=workers.get(told["instance"]) in self._stopped,
            )
            for told in self._cloud.control.instances()
            if told["state"] == "running" and told["pid"] is not None
        ]

    # ------------------------------------------------------------------ processes

    def _pidfd(self, pid: int) -> int:
        """A handle of a process of this run's cloud, and of no other process. Raises
        ProcessLookupError."""
        from cloud.local.session import is_member

        pidfd = os.pidfd_open(pid)
        if not is_member(pid, self._cloud.pid):
            os.close(pidfd)
            raise ProcessLookupError(f"process {pid} is not of this run any more")
        return pidfd

    def _kill_process(self, pid: int) -> None:
        pidfd = self._pidfd(pid)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)

    def _stand_still(self, pid: int) -> None:
        self._stopped[pid] = pidfd = self._pidfd(pid)
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)

    def _go_on(self, pid: int) -> None:
        pidfd = self._stopped.pop(pid, None)
        if pidfd is not None:
            with contextlib.suppress(ProcessLookupError):  # it was ended meanwhile
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            os.close(pidfd)

    def _let_all_go_on(self) -> None:
        for pid in list(self._stopped):
            self._go_on(pid)

    # ------------------------------------------------------------------ the end

    def _stop(self) -> None:
        """Ask the run to end at a step boundary, and wait for its launcher."""
        if self._launched.ended():
            return
        self._write("stop")
        self._tell("asking the run to stop at a step boundary")
        end_s = time.monotonic() + STOP_S
        try:
            wiring.appender(self._store, "chaos")(
                StopRequested(reason="the swarm is over", outcome=Outcome.STOPPED),
                deadline_s=STOP_S / 3,
            )
        except StoreUnavailable as error:
            self._write("unstopped", why=str(error))
        self._until(lambda: False, end_s)
        if not self._launched.ended():
            self._write("unstopped", why=f"the launcher went on for {STOP_S:g} s")

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
