"""The fleet of a run as the launcher sees it: EC2 code for the instances, the cloud's log for the
bill, the run's site for preemptions.

Rule: a cloud that throttles calls, or does not answer for a moment, stops nothing, and the work is
done in a later turn. Only a permanent refusal ends the launch, and only while the run forms. Later
it stops nothing either, because a launcher's credentials may expire and be renewed.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from bamboo.billing.money import BillLog, Rented, lasts_until_s, rented_in
from bamboo.core.state import NodeStatus, Phase, State
from bamboo.core.straggler import kept_beyond
from bamboo.errors import BambooError, BooksUnwritable
from bamboo.ids import InstanceId, ZoneId
from bamboo.runs.stamps import kill_stamps_s
from bamboo.sites.site import Site
from cloud.ending import StillLive
from cloud.fleet import Fleet
from cloud.provider import CloudRefused, CloudThrottled, CloudUnavailable
from cloud.reconcile import Gang

QUIET_TIMES = 2.0
"""A cloud that gave no answer is asked again after this many times the time that it took. So it
delays the launcher for a third of the time at most."""
UNREACHABLE_S = 10.0
"""A run does not form when the cloud on this machine is unreachable for so long."""
GRACE_S = 120.0
"""An instance with a notice is left to the cloud until so long after its deadline."""


class FormerFleet:
    """What is left of the fleet when a run's local cloud is gone: its bill."""

    def __init__(
        self,
        *,
        journal: Path,
        kills: Path,
        on_demand_usd_per_hour: Mapping[str, float],
        free_first_hour: bool,
    ) -> None:
        self._journal = journal
        self._kills = kills
        self._on_demand = on_demand_usd_per_hour
        self._free_first_hour = free_first_hour

    def reconcile(self, state: State, *, nodes: int | None = None, new: int | None = None) -> None:
        """Does nothing: without the cloud nothing can be started."""

    def terminate(self, instance: InstanceId, *, reason: str) -> None:
        """Does nothing: the instance ended with its cloud."""

    def terminate_all(self) -> None:
        """Does nothing: the instances ended with their cloud."""

    def rented(self) -> Sequence[Rented]:
        return rented_in(
            self._journal,
            on_demand_usd_per_hour=self._on_demand,
            free_first_hour=self._free_first_hour,
        )

    def preempt(self, instance: InstanceId, *, notice_s: float, cause: str = "chaos") -> None:
        """Does nothing: there is no cloud that could take it."""

    def kill_stamps_s(self) -> Mapping[str, float]:
        return kill_stamps_s(self._kills)

    def asked(self) -> Collection[InstanceId]:
        return ()

    def alive(self) -> bool:
        return False


class RunFleet:
    """`launcher.Fleet` over `cloud.Fleet`.

    `note` tells a person what the cloud said. `zones` is how many nodes each zone is to have,
    `most` the most instances at once (0: no limit), `anchors` how many of them are on demand. A
    `gang` that does not come together while the run forms is given up. `max_usd` is the cost at
    which instances end without a launcher (0: no limit), `dearest_usd_per_hour` the highest price
    of an instance. `close` is called at the end and raises BooksUnwritable where the bill is not
    completely written.
    """

    def __init__(
        self,
        fleet: Fleet,
        site: Site,
        *,
        journal: Path,
        kills: Path,
        on_demand_usd_per_hour: Mapping[str, float],
        note: Callable[[str], None],
        nodes: int,
        zones: Mapping[ZoneId, int] | None = None,
        most: int = 0,
        anchors: int = 0,
        gang: Gang | None = None,
        close: Callable[[], None] = lambda: None,
        max_usd: float = 0.0,
        dearest_usd_per_hour: float = 0.0,
        free_first_hour: bool = False,
        detail: Callable[[str], None] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._site = site
        self._bill = BillLog(
            journal,
            on_demand_usd_per_hour=on_demand_usd_per_hour,
            free_first_hour=free_first_hour,
            note=note,
        )
        self._kills = kills
        self._note = note
        self._detail = detail or note
        self._nodes = nodes
        self._zones = zones
        self._most = most
        self._anchors = anchors
        self._gang = gang
        self._max_usd = max_usd
        self._dearest_usd_per_hour = dearest_usd_per_hour
        self._now = now
        self.close = close
        self._asked: set[InstanceId] = set()
        """Instances that this launcher has told the cloud to end."""
        self._noted = ""
        self._to_terminate: dict[InstanceId, str] = {}
        self._ask_at_s = -math.inf
        self._unreachable = ""
        self._unreachable_since_s = math.inf
        self._gave_up = False

    def reconcile(self, state: State, *, nodes: int | None = None, new: int | None = None) -> None:
        """Keep as many nodes as the job allows until the run is to end, plus those that the core
        wants as replacements for slow nodes and nodes with rebalance advice. A node that is lost or
        has a notice is replaced at once. When a node with advice then goes, the node that was
        started for it has its place. `nodes` overrides the number of nodes, for a trace or the
        autoscaler. `new` limits how many are started now, since no more were counted against the
        budget."""
        began_s = self._now()
        if began_s < self._ask_at_s:
            return
        refused: list[str] = []
        as_expected = False
        try:
            refused += self._end_waiting(began_s)
            if state.phase is not Phase.FINISHED and state.stop_reason is None:
                leaving = {n.instance for n in state.nodes if not n.usable}
                self._end_gone(state)
                self._end_left_over(state)
                wanted = self._nodes + kept_beyond(state) if nodes is None else nodes
                report = self._fleet.ensure(
                    wanted,
                    leaving=leaving,
                    zones=self._zones,
                    anchors=self._anchors,
                    gang=self._gang if state.phase is Phase.FORMING else None,
                    most=self._most,
                    new=new,
                    lasts_until_s=lasts_until_s(
                        self.rented(),
                        max_usd=self._max_usd,
                        nodes=wanted,
                        dearest_usd_per_hour=self._dearest_usd_per_hour,
                        now_s=began_s,
                    ),
                )
                refused += report.reasons
                replaced = bool(report.launched) and not report.refusals
                begins = state.assignment is None and not self._noted
                as_expected = replaced and (begins or state.assignment is not None)
            self._say("; ".join(refused), detail=as_expected)
            self._unreachable_since_s = math.inf
        except (CloudThrottled, CloudUnavailable, BooksUnwritable) as error:
            self._silent(error, began_s)
            self._give_up_forming(state)
        except CloudRefused as error:
            if state.phase is Phase.FORMING:
                raise
            # the existing instances train on
            self._say("; ".join([*refused, f"no replacement: {error}"]))

    def _end_waiting(self, began_s: float) -> list[str]:
        """End the instances whose end failed before. When the cloud refuses, as with expired
        credentials, a later turn tries again, and meanwhile the other nodes train on."""
        refused: dict[str, None] = {}
        for instance, reason in list(self._to_terminate.items()):
            try:
                self._fleet.terminate(instance, reason=reason)
            except CloudRefused as error:
                refused[_not_ended_yet(error)] = None
                self._wait(began_s)
            else:
                del self._to_terminate[instance]
        return list(refused)

    def _end_gone(self, state: State) -> None:
        """End the instance of every node that is gone or may go. The node that decided this ends
        the instance too, but if a launcher died then, or a log was lost or cut short, the instance
        would be billed to the end of the run."""
        gone = {
            n.instance
            for n in state.nodes
            if n.status is NodeStatus.GONE
            or (n.status is NodeStatus.LEFT and n.notice_deadline_s is None)
        }
        gone -= self._asked | {n.instance for n in state.nodes if n.status.live}
        for one in self.rented() if gone else ():
            if one.ended_at_s is None and one.instance in gone:
                self.terminate(InstanceId(one.instance), reason="its node is gone")

    def _end_left_over(self, state: State) -> None:
        """A node that has handed over is left to the cloud, which may take it free of charge. An
        instance that the cloud does not take after all costs money for nothing, so it is ended."""
        for node in state.nodes:
            due_s = node.notice_deadline_s
            over = due_s is not None and self._now() - due_s > GRACE_S
            if node.status is NodeStatus.LEFT and over and node.instance not in self._asked:
                self.terminate(node.instance, reason="the cloud gave notice and did not take it")

    def terminate(self, instance: InstanceId, *, reason: str) -> None:
        """End one instance, now or as soon as the cloud answers. Repeated calls end it once."""
        if instance in self._asked:
            return
        self._asked.add(instance)
        self._to_terminate[instance] = reason
        began_s = self._now()
        if began_s < self._ask_at_s:
            return
        try:
            self._fleet.terminate(instance, reason=reason)
        except (CloudThrottled, CloudUnavailable) as error:
            self._silent(error, began_s)
            return
        except CloudRefused as error:
            self._wait(began_s)
            self._say(_not_ended_yet(error))
            return
        del self._to_terminate[instance]

    def terminate_all(self) -> None:
        """End everything. With a dead local cloud there is nothing left to end. Raises BambooError
        when the cloud does not end everything in time, but only the first time, since waiting again
        would not help."""
        if self._gave_up or not self._site.alive():
            return
        try:
            self._fleet.terminate_all(deadline_s=self._site.end_s, waiting=self._note)
        except StillLive as error:
            self._gave_up = True
            raise self._site.not_ended(error) from error

    def rented(self) -> Sequence[Rented]:
        """All instances, by the log that stands for the cloud's bill, as far as it can be read."""
        return self._bill.rented()

    def asked(self) -> Collection[InstanceId]:
        return self._fleet.unwanted

    def preempt(self, instance: InstanceId, *, notice_s: float, cause: str = "chaos") -> None:
        """Have the cloud take the instance. If it went by itself, only a note is printed."""
        try:
            self._site.preempt(instance, notice_s=notice_s, cause=cause)
        except BambooError as error:
            self._say(f"a planned preemption did not happen: {error}")

    def kill_stamps_s(self) -> Mapping[str, float]:
        """As recorded by the local cloud, or by a worker that killed its own instance."""
        return kill_stamps_s(self._kills)

    def alive(self) -> bool:
        return self._site.alive()

    def _silent(self, error: BambooError, began_s: float) -> None:
        """The cloud was asked at `began_s` and gave no answer. If it is on this machine and cannot
        be reached, the note says that instead of the error of the call."""
        self._unreachable = self._site.unreachable() if isinstance(error, CloudUnavailable) else ""
        if not self._unreachable:
            self._unreachable_since_s = math.inf
        elif math.isinf(self._unreachable_since_s):
            self._unreachable_since_s = began_s
        self._wait(began_s)
        self._say(self._unreachable or str(error))

    def _give_up_forming(self, state: State) -> None:
        """Raises BambooError for a run that waits for nodes which cannot be started. A run that
        trains goes on, because its cloud may come back."""
        forms = state.phase is Phase.FORMING
        if forms and self._now() - self._unreachable_since_s >= UNREACHABLE_S:
            raise BambooError(self._unreachable)

    def _wait(self, began_s: float) -> None:
        """Ask nothing for a while: the pause grows with the time that the cloud took since
        `began_s`."""
        now_s = self._now()
        self._ask_at_s = now_s + QUIET_TIMES * (now_s - began_s)

    def _say(self, text: str, *, detail: bool = False) -> None:
        """Print it once, however often it holds. `detail` marks what is expected: the first start,
        and a replacement."""
        if text and text != self._noted:
            (self._detail if detail else self._note)(text)
        self._noted = text


def _not_ended_yet(error: CloudRefused) -> str:
    return f"an instance is not ended yet and is paid for: {error}"
