"""The paper's rules as its published simulator plays them (Thorpe et al., Bamboo, NSDI 2023).

Rule: only what the paper's system does with the nodes that it has. Callers give the step times, the
renting of nodes and their prices, so that the same rules also run on other step times and terms.

    gathering     a node that comes up starts it if no training goes on; after 30 s all present
                  nodes get places in the order in which they joined, in as many pipelines of fixed
                  length as they fill. It is repeated if one of them vanished; with too few nodes
                  for one pipeline nothing happens until the next node is up
    training      every node also shadows its successor's stage
    failover      without any pause: the predecessor of a lost node does both stages. The rest of
                  the present step grows by half, and all steps take x1.5 until places are assigned
                  again, even if the lost node only waited. The factor does not accumulate
    fatal loss    the loss of a node with two stages, or of one whose predecessor has two. All
                  nodes gather; no finished step is lost
    step's end    reconfigure if as many nodes wait as have two stages, or if more than 5 % of all
                  active nodes are in such a pair, or if there are nodes for a further pipeline: all
                  nodes gather, for a shorter time, and nothing is trained meanwhile
    old places    stay valid until there are new ones, so failovers and fatal losses can also happen
                  while all nodes gather

Four behaviours of the published simulator are accidents rather than rules. They are reproduced if
the terms say so (`as_simulated`), to meet its figures, and left out where the paper's system is a
rival:

- A gathering that starts again does not cancel the end of the previous one. The first end assigns
  places; the second finds no gathered node, and all wait until the next node is up.
- During this wait, the loss of a first stage's node has no effect: its predecessor is not found.
- Steps continue after a fatal loss until all nodes have gathered.
- A lost node that waited still counts as waiting until places are assigned again.

One thing differs from the source, which ends with an error if there are nodes for more pipelines
than it has step times for: here the number of pipelines has a given limit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial

from bamboo.ids import NodeId, ZoneId
from bamboo.sim.boundaries import Boundaries
from bamboo.sim.kernel import Entry, Kernel
from bamboo.sim.progress import Progress
from bamboo.sim.world import FAILOVER, RECONFIGURATION, RESTORE, World

MORE_THAN_PAIRED = 0.05
"""Share of the active nodes: a pair is a lost node's place and the node that also works for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperTerms:
    """The costs of changes in the paper's system."""

    start_s: float = 30.0
    """Time of each start and each fatal loss."""
    reconfiguration_s: float = 20.0
    slow: float = 1.5
    """Factor on the step time from a loss until places are assigned again."""
    waiting_slows: bool = True
    """As published: also after the loss of a node that only waited."""
    as_simulated: bool = False
    """With the accidents of the published simulator."""


class Phase(Enum):
    """The phase of the job."""

    IDLE = "too few nodes for one pipeline"
    GATHERING = "gathering"
    TRAINING = "training"
    PAUSED = "reconfiguring"


Place = tuple[int, int]
"""Pipeline and stage."""


class PaperRules:
    """A system (`bamboo.sim.world.System`) that sets `progress` by the paper's rules.

    `step_s` is the step time by the number of pipelines. `happened` is called with each failover,
    reconfiguration and restore (a fatal loss), and with "" when only the pace changes.
    """

    def __init__(
        self,
        kernel: Kernel,
        progress: Progress,
        boundaries: Boundaries,
        *,
        stages: int,
        pipelines: int,
        step_s: Callable[[int], float],
        happened: Callable[[str], None],
        terms: PaperTerms | None = None,
        standbys: int = 0,
    ) -> None:
        self._kernel = kernel
        self._progress = progress
        self._boundaries = boundaries
        self._stages = stages
        self._most = pipelines
        self._standbys = standbys
        self._step_s = step_s
        self._happened = happened
        self._terms = terms or PaperTerms()
        self.phase = Phase.IDLE
        self.pipelines = 0
        self.places: dict[NodeId, list[Place]] = {}
        """Places of the nodes that have any; the second one is that of a lost successor."""
        self.zones: Mapping[NodeId, ZoneId] = {}
        """Zones of all nodes that ever joined."""
        self._nodes: list[NodeId] = []
        """Nodes that are up, in the order in which they joined."""
        self._gathered: list[NodeId] = []
        self._counted = 0
        """Nodes that waited when places were assigned, plus those that joined since."""
        self._slow = False
        self._entry: Entry | None = None
        """The end of a gathering."""
        self._look_due = False

    @classmethod
    def in_world(
        cls,
        world: World,
        *,
        stages: int,
        pipelines: int,
        step_s: Callable[[int], float],
        terms: PaperTerms | None = None,
        standbys: int = 0,
        crossing_bytes: Callable[["PaperRules"], float] = lambda _: 0.0,
    ) -> "PaperRules":
        """The rules as a system of `world`, which rents, bills and counts. `crossing_bytes`: bytes
        that a step sends between zones with the present places."""

        def happened(kind: str) -> None:
            trains = rules.phase is Phase.TRAINING
            world.crosses(crossing_bytes(rules) if trains else 0.0)
            if kind:
                world.happened(kind)
            else:
                world.note()

        rules = cls(
            world.kernel,
            world.progress,
            world.boundaries,
            stages=stages,
            pipelines=pipelines,
            step_s=step_s,
            happened=happened,
            terms=terms,
            standbys=standbys,
        )
        return rules

    def wanted(self) -> int:
        return self._most * self._stages + self._standbys

    def spare(self) -> NodeId | None:
        return None

    def noticed(self, node: NodeId, deadline_s: float) -> None:
        """A notice has no effect before the loss."""

    def joined(self, node: NodeId, zone: ZoneId) -> None:
        """A node is up; unless all nodes gather, it waits for the end of a step."""
        self.zones = {**self.zones, node: zone}
        self._nodes.append(node)
        if self.phase is Phase.IDLE:
            self._gather(Phase.GATHERING)
        elif self.phase is Phase.TRAINING:
            self._counted += 1
            self._look()
        else:
            self._gathered.append(node)

    def lost(self, node: NodeId) -> None:
        """A node that was up is gone."""
        self._nodes.remove(node)
        held = self.places.pop(node, [])
        if held and not self._taken_over(held):
            self._gather(Phase.GATHERING)
            self._happened(RESTORE)
        elif held or self._terms.waiting_slows:
            self._slow_down()
        self._look()

    def lost_before_up(self) -> None:
        """A node is gone before it was up; steps become slow all the same."""
        if self._terms.waiting_slows:
            self._slow_down()

    def _slow_down(self) -> None:
        if self.phase is Phase.TRAINING and not self._slow:
            self._slow = True
            self._go()

    @property
    def pairs(self) -> int:
        """Number of nodes with two stages."""
        return sum(len(held) > 1 for held in self.places.values())

    @property
    def active(self) -> int:
        """Number of nodes with a stage."""
        return self.pipelines * self._stages - self.pairs

    @property
    def waiting(self) -> int:
        if self._terms.as_simulated:
            return self._counted
        return len(self._nodes) - self.active

    def _taken_over(self, held: list[Place]) -> bool:
        """The predecessor takes over; False if the job does not survive the loss."""
        if len(held) > 1:
            return False
        pipeline, stage = held[0]
        if self.phase is Phase.IDLE and not stage:
            return True
        before = pipeline, (stage - 1) % self._stages
        its = next((places for places in self.places.values() if before in places), None)
        if its is None:
            # A fatal loss left a hole there and all gather, or a pipeline has only one stage.
            return self.phase is not Phase.TRAINING
        if len(its) > 1:
            return False
        its.append(held[0])
        self._happened(FAILOVER)
        return True

    def _gather(self, phase: Phase) -> None:
        """Start a gathering: to start (GATHERING) or to reconfigure (PAUSED)."""
        if phase is Phase.PAUSED or not self._terms.as_simulated:
            self._progress.back_to(self._progress.whole)
            self._progress.stand()
        self.phase = phase
        self._wait(phase)

    def _wait(self, phase: Phase) -> None:
        self._gathered = list(self._nodes)
        if not self._terms.as_simulated:
            self._kernel.cancel(self._entry)
        paused = phase is Phase.PAUSED
        self._entry = self._kernel.after(
            self._terms.reconfiguration_s if paused else self._terms.start_s,
            partial(self._time_is_over, phase),
        )

    def _time_is_over(self, phase: Phase) -> None:
        """The end of a gathering that began in `phase`."""
        if not set(self._gathered) <= set(self._nodes):
            self._wait(phase)
            return
        self._man()
        self._progress.back_to(self._progress.whole)
        if self.pipelines:
            self.phase = Phase.TRAINING
            self._go()
        else:
            self.phase = Phase.IDLE
            self._progress.stand()
            self._happened("")

    def _man(self) -> None:
        """Assign places again, in as many pipelines as the gathered nodes fill."""
        gathered, self._gathered = self._gathered, []
        self.pipelines = min(self._most, len(gathered) // self._stages)
        active = self.pipelines * self._stages
        for number, node in enumerate(gathered[:active]):
            self.places[node] = [divmod(number, self._stages)]
        for node in gathered[active:]:
            self.places.pop(node, None)
        self._counted = len(gathered) - active
        self._slow = False

    def _look(self) -> None:
        """Check at the end of the present step whether to reconfigure."""
        if not self._look_due:
            self._look_due = True
            self._boundaries.when_next(self._step_ends)

    def _step_ends(self) -> None:
        self._look_due = False
        if self._should_reconfigure():
            self._gather(Phase.PAUSED)
            self._happened(RECONFIGURATION)

    def _should_reconfigure(self) -> bool:
        pairs = self.pairs
        active = self.active
        waiting = self.waiting
        if pairs and (waiting >= pairs or 2 * pairs / active > MORE_THAN_PAIRED):
            return True
        return self._most > self.pipelines < (active + waiting) // self._stages

    def _go(self) -> None:
        step_s = self._step_s(self.pipelines) * (self._terms.slow if self._slow else 1.0)
        if step_s != self._progress.step_s:
            self._progress.run(step_s)
            self._happened("")
