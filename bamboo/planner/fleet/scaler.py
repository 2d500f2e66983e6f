"""A run that chooses its own size: measured step times by size, and the resulting fleet size.

    decisions: when it trained at which size  \
    steps: when each of them was finished     /  ->  step times by size  ->  `autoscale`
      ->  more nodes wanted, or nodes given back  ->  the core, as for any other node

Rules. (1) Only whole steps of an undisturbed run count, and only such a run is resized. (2) This
code never ends a node that takes part: it asks the run to continue without the node, which leaves
with the next layout. (3) A caller that keeps a fleet drives this code: a launcher with the nodes of
a cloud, or the simulator with those of its world.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bamboo.core.events import NodesReleased
from bamboo.core.reconfiguration import at_rest
from bamboo.core.state import NodeStatus, Phase, State
from bamboo.core.straggler import kept_beyond
from bamboo.ids import InstanceId, NodeId
from bamboo.planner.fleet.autoscale import Resize, Scaling, decide, with_times, without_capacity
from bamboo.planner.fleet.fleet_size import Rule, Situation

SETTLING = 2
"""Number of steps after a new layout that do not count."""
LEAST_WAIT_S = 5.0
"""The shortest time to wait for more nodes, whatever `ScalerTerms.pool_out_s`."""
DIGITS = 6
"""Digits of a step's seconds; the recorded times have no more."""


@dataclass(slots=True, kw_only=True)
class _Window:
    """A period in which the run trained undisturbed with a fixed number of nodes."""

    nodes: int
    from_s: float
    until_s: float = math.inf
    steps: int = 0
    """Steps that were seen to begin and end in it."""


class Watch:
    """Folds decisions, and steps in order of their times, into step times by size."""

    def __init__(self, *, after_s: float = 0.0) -> None:
        """Events before `after_s` are already known."""
        self._after_s = after_s
        self._windows: list[_Window] = []
        self._layout: tuple[int, int] | None = None
        self._pending: list[tuple[float, int]] = []
        self._last: tuple[float, int] | None = None

    def decided(self, state: State, at_s: float) -> None:
        """A decision at `at_s` led to this state."""
        trains = state.phase is Phase.RUNNING and _stays(state)
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
        """(nodes, seconds) of every step that counts and was not returned yet."""
        found = []
        for at_s, step in sorted(self._pending):
            last, self._last = self._last, (at_s, step)
            if last is None or step != last[1] + 1:
                continue
            window = self._window_of(last[0], at_s)
            if window is not None:
                window.steps += 1
                if window.steps > SETTLING:
                    found.append((window.nodes, round(at_s - last[0], DIGITS)))
        self._pending.clear()
        del self._windows[:-1]
        return found

    def _window_of(self, from_s: float, until_s: float) -> _Window | None:
        for window in reversed(self._windows):
            if window.from_s <= from_s and until_s <= window.until_s:
                return window
        return None


def _stays(state: State) -> bool:
    """Whether all present nodes have their final roles."""
    return at_rest(state) and state.preparing is None


def trained_size(state: State) -> int:
    """Nodes that a run keeps, without those that wait for an advised or a slow node to leave."""
    roll = state.roll
    for_slow = kept_beyond(state) - roll.advised
    waiting = sum(node.status is NodeStatus.READY and node.usable for node in roll.aside)
    return len(roll.usable) - roll.advised - min(for_slow, waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The actions that follow now."""

    nodes: int
    """Number of nodes to keep."""
    resize: Resize | None = None
    kept: bool = False
    """Whether the present size was just chosen to be kept."""
    release: NodesReleased | None = None
    spare: tuple[InstanceId, ...] = ()
    """Instances that have no node yet and are no longer needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerTerms:
    """What is fixed before a run begins."""

    rule: Rule
    begin: int
    """Nodes at the beginning, standbys included."""
    max_usd: float = 0.0
    """The limit of [budget]; 0: no limit."""
    pool_out_s: float = 0.0
    """Time for which a pool without capacity is not asked again."""
    again_s: float = 60.0
    """The shortest time before more nodes are asked for again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The progress of the run."""

    passed_s: float
    """Time since its start, as its deadline counts."""
    step: int
    """Finished steps."""
    steps: int
    usd: float
    """Dollars spent so far, as the limit counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hired:
    """An instance that is paid for now."""

    instance: str
    started_at_s: float
    usd_per_hour: float


class Scaler:
    """The scaler of one run. `scaling`: what is already known of it; `after_s`: until when."""

    def __init__(
        self, terms: ScalerTerms, scaling: Scaling | None = None, *, after_s: float = 0.0
    ) -> None:
        self.terms = terms
        self.scaling = scaling or Scaling(nodes=terms.begin)
        self._watch = Watch(after_s=after_s)
        self._short_since_s: float | None = None
        self._why = ""
        """The reason of the shrink in progress; "" if there is none."""
        self._ending: set[str] = set()
        """Instances that the fleet was asked to end; no node is expected from them."""

    def decided(self, state: State, at_s: float) -> None:
        """Takes every decision, in order."""
        self._watch.decided(state, at_s)

    def stepped(self, step: int, at_s: float) -> None:
        """Takes every finished step."""
        self._watch.stepped(step, at_s)

    @property
    def settled(self) -> bool:
        """Whether the present size was chosen to be kept."""
        return self.scaling.kept_step_s > 0

    def changes_at_s(self) -> float:
        """When time alone may cause a resize, because a request is given up or may be repeated;
        infinite if never."""
        wish_s = [] if self._short_since_s is None else [self._short_since_s + self._patience_s]
        return min((*wish_s, *(until_s for _, until_s in self.scaling.barred)), default=math.inf)

    @property
    def _patience_s(self) -> float:
        return max(self.terms.pool_out_s, LEAST_WAIT_S)

    def turn(
        self, state: State, standing: Standing, hired: Sequence[Hired], *, now_s: float
    ) -> Turn:
        """The actions that follow from everything reported so far."""
        for nodes, took_s in self._watch.times():
            # A node that does not fit into a grid is idle: its size says nothing about scaling.
            if nodes in self.terms.rule.sizes:
                self.scaling = with_times(self.scaling, nodes, [took_s])
        resize, kept = None, False
        if state.assignment is not None and _stays(state):
            size, booting = trained_size(state), len(self._booting(state, hired))
            resize = self._without_capacity(standing, size, booting=booting, now_s=now_s)
            if resize is None and size == self.scaling.nodes and state.phase is Phase.RUNNING:
                resize, kept = self._decided(standing, hired, now_s=now_s)
        if resize is not None:
            self._why = resize.reason
        return self._wish(state, hired, resize=resize, kept=kept)

    def _decided(
        self, standing: Standing, hired: Sequence[Hired], *, now_s: float
    ) -> tuple[Resize | None, bool]:
        before = self.scaling
        situation = Situation(
            at_s=now_s,
            passed_s=standing.passed_s,
            steps_left=standing.steps - standing.step,
            node_usd_per_hour=sum(one.usd_per_hour for one in hired) / max(1, len(hired)),
            spent_usd=standing.usd,
            max_usd=self.terms.max_usd,
        )
        self.scaling, resize = decide(before, self.terms.rule, situation, step=standing.step)
        return resize, resize is None and self.scaling.kept_left != before.kept_left

    def _without_capacity(
        self, standing: Standing, size: int, *, booting: int, now_s: float
    ) -> Resize | None:
        """Give up a request that has not been met for long enough."""
        if size >= self.scaling.nodes or booting:
            self._short_since_s = None
            return None
        if self._short_since_s is None:
            self._short_since_s = now_s
        if now_s < self._short_since_s + self._patience_s:
            return None
        until_s = now_s + max(self.terms.pool_out_s, self.terms.again_s)
        before = self.scaling.nodes
        self.scaling, reason = without_capacity(
            self.scaling, self.terms.rule, here=size, now_s=now_s, until_s=until_s
        )
        if not reason:
            return None
        return Resize(
            at_s=now_s,
            step=standing.step,
            before=before,
            nodes=self.scaling.nodes,
            reason=reason,
            samples_per_s=0.0,
            expected_samples_per_s=0.0,
        )

    def _wish(
        self, state: State, hired: Sequence[Hired], *, resize: Resize | None, kept: bool
    ) -> Turn:
        wanted = self.scaling.nodes + kept_beyond(state)
        usable = len(state.roll.usable)
        booting = self._booting(state, hired)
        booting.sort(key=lambda one: (one.started_at_s, one.instance), reverse=True)
        beyond = usable + len(booting) - wanted
        spare = tuple(InstanceId(one.instance) for one in booting[: max(0, beyond)])
        self._ending.update(spare)
        if usable <= wanted:
            self._why = ""  # no shrink is in progress; a later surplus has its own reason
        release = None
        if usable > wanted and state.assignment is not None and at_rest(state):
            given = tuple(to_give_back(state))[: usable - wanted]
            reason = self._why or f"{usable} nodes are there, and {wanted} wanted"
            release = NodesReleased(reporter="launcher", nodes=given, reason=reason, keep=wanted)
        # Nodes that take part are not surplus: they leave when the run can do without them.
        nodes = max(wanted, usable)
        return Turn(nodes=nodes, resize=resize, kept=kept, release=release, spare=spare)

    def _booting(self, state: State, hired: Sequence[Hired]) -> list[Hired]:
        """Instances that may still get a node."""
        joined = {node.instance for node in state.nodes}
        return [one for one in hired if one.instance not in joined | self._ending]


def to_give_back(state: State) -> Iterable[NodeId]:
    """Usable nodes, the first to be given back first: standbys, the newest of them first, then the
    nodes of the last pipelines."""
    assert state.assignment is not None
    usable = state.roll.usable
    idle = [n.id for n in reversed(state.nodes) if n.status is NodeStatus.READY]
    owners = [state.assignment.owner(slot) for slot in reversed(state.grid.slots())]
    others = [node.id for node in reversed(state.nodes)]
    return [node for node in dict.fromkeys([*idle, *owners, *others]) if node in usable]
