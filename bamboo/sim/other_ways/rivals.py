"""Other ways to use spot instances, in the same worlds and with the same step times.

Rule: these are models of methods, named as such, and not of products. Each gets the same reports
and rents on the same terms, places its pipelines within zones where it can, and pays for the bytes
between them. All its costs beyond the work itself are stated figures with a source.

    Oracle             a change of membership costs nothing: always the best grid for the present
                       nodes, or the smallest one on fewer nodes than it has slots
    CheckpointRestart  all nodes stop at every change and continue from the newest checkpoint, in
                       the best grid for the present nodes (Athlur et al., Varuna, EuroSys 2022)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bamboo.core.layout import assign, layout_for, nodes_wanted
from bamboo.core.state import Node, NodeStatus, Policy
from bamboo.errors import CoreMisuse
from bamboo.ids import InstanceId, NodeId, ZoneId
from bamboo.planner.step.step_time import StepTimes
from bamboo.sim.kernel import Entry
from bamboo.sim.progress import NEARLY
from bamboo.sim.world import RECONFIGURATION, RESTORE, World
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout, equal_shares


class Spot:
    """What all of them have in common: nodes in the order in which they came, and a grid."""

    def __init__(self, world: World, times: StepTimes, policy: Policy, *, standbys: int) -> None:
        self._world = world
        self._times = times
        self._policy = policy
        self._standbys = standbys
        self._nodes: list[NodeId] = []
        self._zones: Mapping[NodeId, ZoneId] = {}
        """Zones of the nodes; each change makes a new mapping, because a caller may keep it."""
        if not policy.grids:
            raise CoreMisuse(
                "policy.grids is empty, so that a rival has no grid to choose; give each grid that "
                "the run may have and its step time, as bamboo.planner makes them"
            )
        least = min(policy.grids, key=lambda grid: grid.pipelines * grid.stages)
        self._least_grid = Grid(pipelines=least.pipelines, stages=least.stages)
        self._least = self._least_grid.size

    def wanted(self) -> int:
        return self._policy.pipelines * self._policy.stages + self._standbys

    def spare(self) -> NodeId | None:
        return None

    def noticed(self, node: NodeId, deadline_s: float) -> None:
        """A notice has no effect before the loss."""

    def _came(self, node: NodeId, zone: ZoneId) -> None:
        self._nodes.append(node)
        self._zones = {**self._zones, node: zone}

    def _went(self, node: NodeId) -> None:
        self._nodes.remove(node)
        self._zones = {one: zone for one, zone in self._zones.items() if one != node}

    def _laid(self, grid: Grid) -> Assignment:
        """Whole pipelines within a zone where possible, otherwise in the order of zone and age."""
        return assign([_ready(node, self._zones[node]) for node in self._nodes], grid, "off")

    def _train(self, assignment: Assignment, shares: tuple[int, ...], step_s: float) -> None:
        """Train with this step time from now on; each step sends the bytes between zones."""
        self._world.crosses(self._times.crossing_bytes(assignment, shares, self._zones))
        self._world.progress.run(step_s)
        self._world.note()

    def _train_calm(self, layout: ModelLayout) -> Assignment:
        """Train with a node for each slot of the layout."""
        assignment = self._laid(layout.grid)
        step_s = self._times.of(assignment, layout.shares, self._zones)
        self._train(assignment, layout.shares, step_s)
        return assignment

    def _stand(self) -> None:
        """Stop training. Bytes that earlier steps sent count, even if some steps are repeated."""
        self._world.crosses(0.0)
        self._world.progress.stand()

    def _best(self) -> ModelLayout | None:
        """The best layout for the present nodes; None if they are too few for any grid."""
        if len(self._nodes) < self._least:
            return None
        return layout_for(len(self._nodes), self._policy)

    def _calm_s(self, layout: ModelLayout) -> float:
        return self._times.calm_s(layout.grid, layout.shares)


def _ready(node: NodeId, zone: ZoneId) -> Node:
    return Node(
        id=node,
        instance=InstanceId(node),
        zone=zone,
        endpoint="",
        pid=0,
        status=NodeStatus.READY,
    )


class Oracle(Spot):
    """Always the best grid for the present nodes, at once and at no cost. `frugal`: nodes that this
    grid does not use are given back at once, too."""

    def __init__(
        self,
        world: World,
        times: StepTimes,
        policy: Policy,
        *,
        standbys: int,
        frugal: bool = False,
    ) -> None:
        super().__init__(world, times, policy, standbys=standbys)
        self._frugal = frugal

    def wanted(self) -> int:
        most = super().wanted()
        if not self._frugal:
            return most
        available = min(most, max(self._world.capacity, self._least))
        return nodes_wanted(available, self._policy, standbys=self._standbys)

    def spare(self) -> NodeId | None:
        return self._nodes[-1] if self._nodes else None

    def joined(self, node: NodeId, zone: ZoneId) -> None:
        self._came(node, zone)
        self._set_pace()

    def lost(self, node: NodeId) -> None:
        self._went(node)
        self._set_pace()

    def _set_pace(self) -> None:
        best = self._best()
        if best is not None:
            self._train_calm(best)
        elif self._nodes:
            self._train_merged()
        else:
            self._stand()
            self._world.note()

    def _train_merged(self) -> None:
        """Too few nodes for any grid: each takes neighbouring slots of the smallest one."""
        grid = self._least_grid
        nodes = sorted(self._nodes, key=lambda node: (self._zones[node], node))
        owners = [nodes[i * len(nodes) // grid.size] for i in range(grid.size)]
        merged = Assignment(grid=grid, owners=tuple(owners), shadows=(None,) * grid.size)
        shares = equal_shares(self._policy.virtual_nodes, grid.pipelines)
        self._train(merged, shares, self._times.of(merged, shares, self._zones))


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartTerms:
    """The cost of a restart, without the boot of a new instance, which is in the market's terms."""

    restart_s: float = 42.0
    """Time until all processes train again, without the load: torchrun elastic with a killed node,
    measured on one machine (`benchmarks/NOTES.md`). 76 to 701 s are published for Varuna."""
    load_s: float = 0.0
    """Time to find a checkpoint and read the largest part of it."""
    checkpoint_every: int = 10
    """Steps; checkpoints are written behind the training, like ours. 0: none."""
    write_s: float = 0.0
    """Time from the step of a checkpoint until it is complete."""
    between_losses_s: float = math.inf
    """Expected time between losses on the largest grid, in which a larger grid has to make up for
    its restart."""
    settle_s: float = 60.0
    """Time after a restart in which a larger grid is not yet worth another one."""


class CheckpointRestart(Spot):
    """All nodes stop at every loss of a member, and for a better grid. The steps since the newest
    checkpoint are repeated."""

    def __init__(
        self,
        world: World,
        times: StepTimes,
        policy: Policy,
        *,
        standbys: int,
        terms: RestartTerms | None = None,
    ) -> None:
        super().__init__(world, times, policy, standbys=standbys)
        self._terms = terms or RestartTerms()
        self._layout: ModelLayout | None = None
        self._members: frozenset[NodeId] = frozenset()
        self._newest = 0
        """The step of the checkpoint that was last read."""
        self._restarting: Entry | None = None
        self._look_at: Entry | None = None

    def joined(self, node: NodeId, zone: ZoneId) -> None:
        self._came(node, zone)
        if self._layout is None and self._restarting is None:
            self._restart(first=self._world.progress.steps == 0)
        elif self._look_at is None:
            self._look_at = self._world.kernel.after(self._terms.settle_s, self._grow)

    def lost(self, node: NodeId) -> None:
        self._went(node)
        if node in self._members:
            self._stand()
            self._world.happened(RESTORE)
            self._newest = max(self._newest, self._complete())
            self._world.progress.back_to(self._newest)
            self._restart()

    def _complete(self) -> int:
        """The step of the newest complete checkpoint."""
        every, progress = self._terms.checkpoint_every, self._world.progress
        if not every:
            return 0
        written = progress.was(self._world.kernel.now_s - self._terms.write_s)
        return int((min(written, progress.steps) + NEARLY) // every * every)

    def _pays(self, best: ModelLayout, layout: ModelLayout) -> bool:
        """Whether a larger grid does more work until the next loss, with its restart counted."""
        between_s, delay_s = self._terms.between_losses_s, self._delay_s
        larger_s, now_s = self._calm_s(best), self._calm_s(layout)
        if math.isinf(between_s):
            return larger_s < now_s
        return (between_s - delay_s) / larger_s > between_s / now_s

    @property
    def _delay_s(self) -> float:
        return self._terms.restart_s + self._terms.load_s

    def _grow(self) -> None:
        self._look_at = None
        best = self._best()
        if best is None or self._layout is None or self._restarting is not None:
            return
        if self._pays(best, self._layout):
            self._stand()
            self._newest = self._world.progress.whole  # it is written before all nodes stop
            self._world.progress.back_to(self._world.progress.whole)
            self._restart()

    def _restart(self, *, first: bool = False) -> None:
        """Start again, repeatedly if one of the gathered nodes is lost meanwhile."""
        self._world.kernel.cancel(self._restarting)
        self._restarting = None
        self._stand()
        best = self._best()
        self._layout = None
        self._members = frozenset()
        if best is not None:
            self._members = self._laid(best.grid).members()
            delay_s = 0.0 if first else self._delay_s
            self._restarting = self._world.kernel.after(delay_s, self._go_on)

    def _go_on(self) -> None:
        """Continue, including the nodes that have come meanwhile."""
        self._restarting = None
        best = self._best()
        assert best is not None, "a loss on the way starts over"
        self._world.happened(RECONFIGURATION)
        self._members = self._train_calm(best).members()
        self._layout = best
        if self._look_at is None:
            self._look_at = self._world.kernel.after(self._terms.settle_s, self._grow)
