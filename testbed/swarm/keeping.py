"""A node's part in an emergency checkpoint: it reports when one is due, and stores its parts once
all nodes stand still. See `save_watch` and `stopped` in `bamboo/runtime/state`.
"""

from typing import TYPE_CHECKING

from bamboo.core.events import SaveDue
from bamboo.core.keep import MARGIN_S, SLACK
from bamboo.core.saving import hold_by_s, is_awaited
from bamboo.core.state import Emergency, Keep, State
from testbed.swarm.red import Red
from testbed.swarm.scenario import Scenario

if TYPE_CHECKING:
    from testbed.swarm.cluster import Cluster
    from testbed.swarm.member import Member

LAYER_BYTES = 1000
PROMPT_S = 0.02
"""Delay of reads and reports below which a world must store what it has time for."""


def in_time(scenario: Scenario) -> bool:
    """Whether notices are the only faults of a world, each long enough for one node to store all
    state after the present step. Then no step is lost."""
    needed_s = SLACK * scenario.save_s + MARGIN_S + scenario.step_s
    prompt = max(scenario.read_s, scenario.say_s) <= PROMPT_S
    calm = not (scenario.commit_s or scenario.twice or scenario.budget_step)
    return (
        scenario.elastic
        and prompt
        and calm
        and all(f.kind == "notice" and not f.other and f.for_s > needed_s for f in scenario.faults)
    )


def check_lost(world: "Cluster", step: int) -> None:
    """Checks a run that continues from `step`, or ends with it stored: no step is lost."""
    if in_time(world.scenario) and step < world.plane.done:
        raise Red("lost", f"{world.plane.done} steps were taken, what is left is of step {step}")


def check_given_up(world: "Cluster", step: int) -> None:
    """Checks a run that waited for nodes in vain, with `step` stored: it had a step to take."""
    steps, live = world.scenario.steps, world.log.state.roll.live
    if live and step >= steps:
        raise Red("given up", f"all {steps} steps are taken and stored, and nodes are there")


class Keeping:
    """The emergency checkpoints of one node."""

    def __init__(self, member: "Member") -> None:
        self._me = member
        self.holding = False
        self._by_s, self._due = 0.0, False
        self._emergency: Emergency | None = None
        self._training = False
        self._said: set[tuple[int, bool]] = set()
        self._kept: set[tuple[int, int]] = set()
        self._stepped_s: float | None = None
        self._step_s = 0.0

    def read(self, state: State) -> None:
        """The node has read a decision."""
        known, found = self._emergency, None if self._is_over(state) else state.emergency
        if found is None or known is None or found.since != known.since:
            self.holding = False
            self._due = False
            self._said.clear()
        self._emergency = found
        self._training = state.reconfiguration is None and state.stop_reason is None
        if not self._training:
            self.holding, self._stepped_s = False, None
        keep = None if state.reconfiguration is None else state.reconfiguration.keep
        if keep is not None:
            self._store(keep)

    def stepped(self) -> None:
        """An owned slot has taken a step."""
        now_s = self._me.world.now_s
        if self._stepped_s is not None and now_s > self._stepped_s:
            self._step_s = max(0.7 * self._step_s, now_s - self._stepped_s)
        self._stepped_s = now_s

    def serve(self) -> None:
        """Hold, and report that the checkpoint is due, if it is."""
        if self._emergency is None:
            return
        now_s = self._me.world.now_s
        if not self._due:
            self._by_s = hold_by_s(self._emergency, now_s=now_s, step_s=self._step_s)
        left_s = self._by_s - now_s
        owned = self._me.owned.values()
        waits = not self._due and is_awaited(self._emergency, now_s=now_s)
        self._due = self._due or (left_s < max(self._step_s, MARGIN_S) and not waits)
        if self._training and self._due and left_s < self._step_s:
            self.holding = True
            if owned and not any(copy.begun for copy in owned):
                self._say(self._emergency, at_once=False)
        if left_s <= 0:
            self._say(self._emergency, at_once=True)

    def _say(self, emergency: Emergency, *, at_once: bool) -> None:
        if (emergency.since, at_once) not in self._said:
            self._said.add((emergency.since, at_once))
            me = self._me
            me.say(SaveDue(node=me.node, since=emergency.since, at_once=at_once))

    def _is_over(self, state: State) -> bool:
        emergency, reconfiguration = state.emergency, state.reconfiguration
        if emergency is None or emergency.failed:
            return True
        if reconfiguration is None:
            return bool(state.finished)
        stopped = any(report.node == self._me.node for report in reconfiguration.reports)
        return reconfiguration.base is None and (stopped or not reconfiguration.planned)

    def _store(self, keep: Keep) -> None:
        me = self._me
        kept = me.reconfigurations.kept
        for number, part in enumerate(keep.parts):
            if part.node != me.node or (keep.era, number) in self._kept:
                continue
            self._kept.add((keep.era, number))
            if keep.total_square is not None:
                kept.reach_to(keep.step)
            if lacking := set(part.layers) - kept.layers_at(keep.step):
                words = f"{me.name} is to store layers {sorted(lacking)} before step {keep.step}"
                raise Red("keeps", f"{words}, and has them not")
            share = len(part.layers) / me.world.scenario.layers
            me.saver.keep(keep.step, keep.era, number, me.world.save_s() * share)
