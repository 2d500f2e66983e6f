"""Checks that a healed world makes progress: no standstill, no slot without a shadow, no idle node.

Rule: it checks once a second, from `heal_s` on; each condition has a time limit to be resolved.
"""

from typing import TYPE_CHECKING

from bamboo.core.state import NodeStatus, Phase, State
from bamboo.topology.strategy import BARE_MODES
from testbed.swarm.red import Red

if TYPE_CHECKING:
    from testbed.swarm.cluster import Cluster


class Liveness:
    """The liveness of one world."""

    def __init__(self, world: "Cluster") -> None:
        self._world = world
        self._bare_s: float | None = None
        self._idle_s: float | None = None
        self._done, self._done_s = 0, 0.0

    def sweep(self) -> None:
        """Once a second: standstills, and slots that stay without a shadow."""
        world = self._world
        state, plane = world.log.state, world.plane
        if plane.done != self._done or state.phase is Phase.FINISHED:
            self._done, self._done_s = plane.done, world.now_s
        if not world.healed or state.phase is Phase.FINISHED:
            return
        scenario = world.scenario
        stood_s = world.now_s - max(self._done_s, scenario.heal_s)
        most_s = scenario.park_s + scenario.patience_s + 4 * scenario.boot_s + 30.0
        if stood_s > most_s:
            raise Red("standstill", f"nothing moves for {stood_s:.0f} s: {state.sentence}")
        self._look_at_protection(state)
        self._look_at_idle(state)

    def _look_at_protection(self, state: State) -> None:
        world, assignment = self._world, state.assignment
        usable = [n for n in state.live_nodes() if n.notice_deadline_s is None]
        wants = state.redundancy not in BARE_MODES and len(usable) > 1
        trains = state.reconfiguration is None and state.stop_reason is None and not state.finished
        far = world.plane.done < world.scenario.steps - 3
        bare = assignment is not None and None in assignment.shadows
        if not (wants and trains and far and bare):
            self._bare_s = None
            return
        if self._bare_s is None:
            self._bare_s = world.now_s
        most_s = 12.0 + 4 * world.scenario.transfer_s + 6 * world.scenario.step_s
        if world.now_s - self._bare_s > most_s:
            raise Red("protection", f"a slot has no shadow for {most_s:.0f} s: {state.sentence}")

    def _look_at_idle(self, state: State) -> None:
        """No node owns several slots for long while a standby is there, and no run stays small
        while there are nodes for it."""
        world, assignment = self._world, state.assignment
        trains = state.reconfiguration is None and state.stop_reason is None and not state.finished
        far = world.plane.done < world.scenario.steps - 3
        idle = [n for n in state.nodes if n.status is NodeStatus.READY and n.usable]
        if assignment is None or not (trains and far and idle):
            self._idle_s = None
            return
        usable = sum(n.usable for n in state.nodes)
        merged = len(set(assignment.owners)) < assignment.grid.size
        scenario = world.scenario
        most = scenario.pipelines_max * scenario.stages
        small = scenario.elastic and not scenario.timed_grids and state.grid.size < most
        whole = usable // scenario.stages > state.grid.size // scenario.stages
        if not ((merged and state.redundancy not in BARE_MODES) or (small and whole)):
            self._idle_s = None
            return
        if self._idle_s is None:
            self._idle_s = world.now_s
        most_s = 25.0 + 8 * scenario.transfer_s + 12 * scenario.step_s
        if world.now_s - self._idle_s > most_s:
            raise Red("idle", f"{idle[0].id} stands by for {most_s:.0f} s: {state.sentence}")
