"""A run that chooses its own size: what its steps took at which, and what follows for the fleet.

    decisions: when it trained at which size  \
    metrics: when each step was finished      /  ->  step times by size  ->  `planner.autoscale`
      ->  more nodes wanted, or nodes given back  ->  the core, as for any other node

Rules. (1) Only whole steps of an undisturbed run count, and only such a run is resized. (2) A node
that takes part is never ended from here: the run is asked to go on without it, and it leaves with
the next layout. (3) Every resize is in the books and in the ledger, with its sentence and with all
that was known, so that a later launcher goes on from it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bamboo.config.resolve import nodes_at_begin
from bamboo.config.tree import JobConfig
from bamboo.core.events import NodesReleased
from bamboo.core.place import grid_for
from bamboo.core.policy import Policy
from bamboo.core.reform import at_rest
from bamboo.core.state import NodeStatus, Phase, State
from bamboo.ids import InstanceId, NodeId
from bamboo.planner.autoscale import (
    Resize,
    Scaling,
    decide,
    with_times,
    without_capacity,
)
from bamboo.planner.fleet_size import Rule, Situation, Utility
from cli.books import RESIZED, SIZE_KEPT, Booked
from cli.ledger import Accounts
from cli.money import Rented
from cli.planning import nodes_of
from cli.ports import Ports
from cli.progress import Progress

SETTLING = 2
"""So many steps after a new layout do not count."""
APPEND_DEADLINE_S = 2.0
LEAST_WAIT_S = 5.0
"""So long more nodes are waited for at least, whatever `cloud.pool_out_s`."""
LEAST_BAR_S = 60.0
"""And so long at least they are not wished for again."""
PACED_BY = "paced_by"
"""The field beside the step times that says what they hang on."""


def rule_of(job: JobConfig, policy: Policy) -> Rule:
    """The sizes that a run may have, standbys included, and when the next is worth it: those that
    a layout has work for on every node that is no standby."""
    asked, standbys = job.autoscale, job.cluster.standbys
    begin = nodes_at_begin(job)
    least = min(begin, max(asked.min_nodes, job.cluster.stages + standbys))
    limits = (asked.max_nodes, job.budget.max_instances, nodes_of(job))
    most = max(begin, min(limit for limit in limits if limit))
    sizes = {n for n in range(least, most + 1) if grid_for(n, policy).size == n - standbys}
    return Rule(
        sizes=tuple(sorted(sizes | {begin})),
        batch=job.train.batch,
        marginal=asked.marginal,
        utility=Utility(
            kind=asked.utility,
            usd=asked.utility_usd,
            deadline_s=asked.deadline_hours * 3600,
        ),
    )


@dataclass(slots=True, kw_only=True)
class _Window:
    """The run trained undisturbed with so many nodes."""

    nodes: int
    from_s: float
    until_s: float = math.inf
    steps: int = 0
    """That were seen to begin and end in it."""


class Watch:
    """Folds decisions, and steps in order of their times, into step times by size."""

    def __init__(self, *, after_s: float = 0.0) -> None:
        """What was before `after_s` is known already."""
        self._after_s = after_s
        self._windows: list[_Window] = []
        self._layout: tuple[int, int] | None = None
        self._pending: list[tuple[float, int]] = []
        self._last: tuple[float, int] | None = None

    def decided(self, state: State, at_s: float) -> None:
        """A decision at `at_s` led to this state."""
        trains = state.phase is Phase.RUNNING and at_rest(state)
        layout = (state.era, trained_size(state)) if trains else None
        if layout == self._layout:
            return
        if self._layout is not None:
            self._windows[-1].until_s = at_s
        self._layout = layout
        if layout is not None:
            self._windows.append(_Window(nodes=layout[1], from_s=max(at_s, self._after_s)))

    def stepped(self, step: int, at_s: float) -> None:
        """A step was finished."""
        self._pending.append((at_s, step))

    def times(self) -> list[tuple[int, float]]:
        """(nodes, seconds) of every step that counts and was not told yet."""
        found = []
        for at_s, step in sorted(self._pending):
            last, self._last = self._last, (at_s, step)
            if last is None or step != last[1] + 1:
                continue
            window = self._window_of(last[0], at_s)
            if window is not None:
                window.steps += 1
                if window.steps > SETTLING:
                    found.append((window.nodes, at_s - last[0]))
        self._pending.clear()
        del self._windows[:-1]
        return found

    def _window_of(self, from_s: float, until_s: float) -> _Window | None:
        for window in reversed(self._windows):
            if window.from_s <= from_s and until_s <= window.until_s:
                return window
        return None


def trained_size(state: State) -> int:
    """Nodes that a run keeps, without those that only wait for an advised one to go."""
    return len(state.roll.usable) - state.roll.advised


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What is to be done now."""

    nodes: int
    """To be kept."""
    resize: Resize | None = None
    kept: bool = False
    """Whether it was just found that the size of now is to stay."""
    release: NodesReleased | None = None
    spare: tuple[InstanceId, ...] = ()
    """Instances that no node has come from yet, and are not needed any more."""


def paced_by(job: JobConfig) -> dict[str, Any]:
    """What, beside the number of nodes, decides how long a step takes and a resume may change. As
    JSON has it."""
    cluster = job.cluster
    return {
        "stages": cluster.stages,
        "cut": list(cluster.cut),
        "standbys": cluster.standbys,
        "redundancy": cluster.redundancy,
        "device": cluster.device,
        "instance_types": list(job.cloud.instance_types),
    }


class Autoscaler:
    """For one launcher; `booked` is what those before it wrote, `led_before_s` how long the earlier
    parts of the run went on."""

    def __init__(
        self, job: JobConfig, policy: Policy, booked: Booked, *, led_before_s: float = 0.0
    ) -> None:
        self._job = job
        self._led_before_s = led_before_s
        self._rule = rule_of(job, policy)
        self.scaling = Scaling(nodes=nodes_at_begin(job))
        if booked.scaling is not None:
            self.scaling = Scaling.of_body(booked.scaling)
            if booked.scaling_part != booked.part:  # it began anew, with what it begins with
                same = booked.scaling.get(PACED_BY) == paced_by(job)
                times_s = self.scaling.times_s if same else ()
                self.scaling = Scaling(nodes=nodes_at_begin(job), times_s=times_s)
        self._watch = Watch(after_s=booked.scaled_at_s)
        self._short_since_s: float | None = None
        self._why = ""
        """The reason of the shrink that is under way; "": none is."""
        self._ending: set[str] = set()
        """Instances that the fleet was asked to end: no node is awaited from them any more."""

    @property
    def sentence(self) -> str:
        """Where it stands, for people."""
        sizes = ", ".join(map(str, self._rule.sizes))
        return f"autoscale: {self.scaling.nodes} nodes now, of {sizes}"

    def to_body(self) -> dict[str, Any]:
        """All that is known, and of which run, for `Booked.scaling`."""
        return self.scaling.to_body() | {PACED_BY: paced_by(self._job)}

    def decided(self, state: State, at_s: float) -> None:
        """Every decision, in order."""
        self._watch.decided(state, at_s)

    def stepped(self, step: int, at_s: float) -> None:
        """Every step that was finished."""
        self._watch.stepped(step, at_s)

    def turn(self, progress: Progress, rented: Sequence[Rented], *, now_s: float) -> Turn:
        """What follows from all that was told."""
        state = progress.state
        for nodes, took_s in self._watch.times():
            self.scaling = with_times(self.scaling, nodes, [took_s])
        here = [one for one in rented if one.ended_at_s is None]
        resize, kept = None, False
        if state.assignment is not None and at_rest(state):
            size, booting = trained_size(state), len(self._booting(state, here))
            resize = self._without_capacity(progress, size, booting=booting, now_s=now_s)
            if resize is None and size == self.scaling.nodes and state.phase is Phase.RUNNING:
                resize, kept = self._decided(progress, here, now_s=now_s)
        if resize is not None:
            self._why = resize.reason
        return self._wish(state, here, resize=resize, kept=kept)

    def _decided(
        self, progress: Progress, here: Sequence[Rented], *, now_s: float
    ) -> tuple[Resize | None, bool]:
        before = self.scaling
        situation = Situation(
            at_s=now_s,
            passed_s=self._led_before_s + now_s - progress.started_at_s,
            steps_left=progress.steps - progress.step,
            node_usd_per_hour=sum(one.usd_per_hour for one in here) / max(1, len(here)),
            spent_usd=progress.usd,
            max_usd=self._job.budget.max_usd,
        )
        self.scaling, resize = decide(before, self._rule, situation, step=progress.step)
        return resize, resize is None and self.scaling.kept_left != before.kept_left

    def _without_capacity(
        self, progress: Progress, size: int, *, booting: int, now_s: float
    ) -> Resize | None:
        """Give a wish up that nobody has filled for long enough."""
        if size >= self.scaling.nodes or booting:
            self._short_since_s = None
            return None
        if self._short_since_s is None:
            self._short_since_s = now_s
        out_s = self._job.cloud.pool_out_s
        if now_s - self._short_since_s < max(out_s, LEAST_WAIT_S):
            return None
        until_s, before = now_s + max(out_s, LEAST_BAR_S), self.scaling.nodes
        self.scaling, reason = without_capacity(
            self.scaling, self._rule, here=size, now_s=now_s, until_s=until_s
        )
        if not reason:
            return None
        return Resize(
            at_s=now_s,
            step=progress.step,
            before=before,
            nodes=self.scaling.nodes,
            reason=reason,
            samples_per_s=0.0,
            expected_samples_per_s=0.0,
        )

    def _wish(
        self, state: State, here: Sequence[Rented], *, resize: Resize | None, kept: bool
    ) -> Turn:
        wanted = self.scaling.nodes + state.roll.advised
        usable = len(state.roll.usable)
        booting = self._booting(state, here)
        booting.sort(key=lambda one: (one.started_at_s, one.instance), reverse=True)
        beyond = usable + len(booting) - wanted
        spare = tuple(InstanceId(one.instance) for one in booting[: max(0, beyond)])
        self._ending.update(spare)
        if usable <= wanted:
            self._why = ""  # nothing is, or no more: what is too many later has its own reason
        release = None
        if usable > wanted and state.assignment is not None and at_rest(state):
            given = tuple(to_give_back(state))[: usable - wanted]
            reason = self._why or f"{usable} nodes are there, and {wanted} wanted"
            release = NodesReleased(reporter="launcher", nodes=given, reason=reason, keep=wanted)
        # Those who take part are not surplus: they go when the run can do without them.
        nodes = max(wanted, usable)
        return Turn(nodes=nodes, resize=resize, kept=kept, release=release, spare=spare)

    def _booting(self, state: State, here: Sequence[Rented]) -> list[Rented]:
        """Instances that a node may still come from."""
        joined = {node.instance for node in state.nodes}
        return [one for one in here if one.instance not in joined | self._ending]


def to_give_back(state: State) -> Iterable[NodeId]:
    """Usable nodes, the first to be given back first: standbys, the last to come before others,
    then those of the last pipelines."""
    assert state.assignment is not None
    usable = state.roll.usable
    idle = [n.id for n in reversed(state.nodes) if n.status is NodeStatus.READY]
    owners = [state.assignment.owner(slot) for slot in reversed(state.grid.slots())]
    others = [node.id for node in reversed(state.nodes)]
    return [node for node in dict.fromkeys([*idle, *owners, *others]) if node in usable]


def scale(scaler: Autoscaler, ports: Ports, progress: Progress, accounts: Accounts) -> int:
    """One turn of a launcher: write down what is decided, have it done; how many nodes to keep.
    Raises StoreUnavailable."""
    turn = scaler.turn(progress, ports.fleet.rented(), now_s=ports.now())

    def book(kind: str, data: dict[str, Any]) -> None:
        told = data | {"scaling": scaler.to_body()}
        ports.books.event(kind, progress, at_s=ports.now(), data=told)

    if turn.resize is not None:
        book(RESIZED, {"resize": asdict(turn.resize)})
        accounts.resized(turn.resize)
        ports.screen.note(turn.resize.reason)
    elif turn.kept:
        book(SIZE_KEPT, {"nodes": scaler.scaling.nodes})
    for instance in turn.spare:
        ports.fleet.terminate(instance, reason="no more nodes are wanted, and no node came from it")
    if turn.release is not None:
        ports.append(turn.release, deadline_s=APPEND_DEADLINE_S)
    return turn.nodes
