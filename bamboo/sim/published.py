"""The paper's rules as its published simulator plays them (Thorpe et al., Bamboo, NSDI 2023).

Rule: only what the paper's system does with the nodes that it has. How long a step takes, who rents
nodes and what they cost is told from outside, so that the same rules run on other step times and
on other terms.

    gathering     all nodes that are there wait 30 s for each other, and begin anew if one vanishes
    training      fixed pipelines of a fixed length; every node also shadows its successor's stage
    failover      without any pause: the predecessor of a lost node does both stages. The rest of
                  the step in hand grows by half, and all steps take x1.5 until the next
                  reconfiguration; so do they if the lost node only waited. It does not add up
    fatal loss    of a node with two stages, or of one whose predecessor has two: in a pipeline, of
                  the neighbours of a place that is empty already. All gather again; no step that
                  is done is lost
    step's end    reconfigure if as many wait as have two stages, or if more than 5 % of all active
                  nodes are in such a pair, or if a further pipeline can be manned. That is a pause

Where the description leaves open what is meant, the reading was taken that fits the published
figures of all models and of the random markets (`benchmarks/nsdi23.py` puts both side by side):

- A reconfiguration keeps the pipelines that lack fewest nodes, and everybody's place in them; the
  empty places are manned in the order in which nodes joined. (All anew in that order gives half of
  the fatal losses that are published for eight stages.)
- The new places hold from the begin of the pause: a loss in it is a failover, or fatal, among
  them. (With the old ones the hardest random market has half as many fatal losses again.)
- A reconfiguration that finds too few nodes for one pipeline is a fatal loss. (Published runs stop
  at the end of the step in which nodes became too few; and only with these has the hardest random
  market as many fatal losses as were published.)
- A start after a fatal loss is no reconfiguration: x1.5 goes on. (Without, the recorded trace gives
  a hundredth more steps, and they are too many as it is.)
- As many wait as have two stages: only where a node has two. (Were it enough that x1.5 holds, the
  recorded trace would give a tenth too many steps.)
- The step in hand grows again with each further loss in it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from bamboo.ids import NodeId, ZoneId
from bamboo.sim.boundaries import Boundaries
from bamboo.sim.kernel import Entry, Kernel
from bamboo.sim.progress import Progress
from bamboo.sim.world import FAILOVER, RECONFIGURATION, RESTORE, World

MORE_THAN_PAIRED = 0.05
"""Of the active nodes: a pair is a lost node's place and the node that has it as its second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperTerms:
    """What the changes of the paper's system cost."""

    start_s: float = 30.0
    """Of each start and each fatal loss."""
    reconfiguration_s: float = 20.0
    slow: float = 1.5
    """So many times as long takes a step from a failover to the next reconfiguration."""


class Phase(Enum):
    """What the job is at."""

    IDLE = "too few nodes for one pipeline"
    GATHERING = "gathering"
    TRAINING = "training"
    PAUSED = "reconfiguring"


Pipeline = list[NodeId | None]
"""Who has which stage; None: the node before it has it as its second."""


class PaperRules:
    """A system (`bamboo.sim.world.System`) that sets `progress` by the paper's rules.

    `step_s` is the time of a step with so many pipelines; `happened` is told of each failover,
    reconfiguration and restore (that is a fatal loss), and of "" when only the pace changes.
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
        self._kernel, self._progress, self._boundaries = kernel, progress, boundaries
        self._stages, self._most, self._standbys = stages, pipelines, standbys
        self._step_s, self._happened = step_s, happened
        self._terms = terms or PaperTerms()
        self.phase = Phase.IDLE
        self.pipelines: list[Pipeline] = []
        self._nodes: list[NodeId] = []
        """In the order in which they joined."""
        self._slow = False
        self._pace_s = 0.0
        """A step takes so long now, where training goes on."""
        self._entry: Entry | None = None
        """The end of what is waited for."""
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
    ) -> "PaperRules":
        """The rules as a system of `world`, which rents, bills and counts."""
        return cls(
            world.kernel,
            world.progress,
            world.boundaries,
            stages=stages,
            pipelines=pipelines,
            step_s=step_s,
            happened=lambda kind: world.happened(kind) if kind else world.note(),
            terms=terms,
            standbys=standbys,
        )

    def wanted(self) -> int:
        return self._most * self._stages + self._standbys

    def spare(self) -> NodeId | None:
        return None

    def noticed(self, node: NodeId, deadline_s: float) -> None:
        """Nothing is done before the loss."""

    def joined(self, node: NodeId, zone: ZoneId) -> None:
        """A node is up; unless all gather, it waits for the end of a step."""
        del zone
        self._nodes.append(node)
        if self.phase is Phase.IDLE:
            self._gather()
        elif self.phase is not Phase.GATHERING and self._should_reconfigure():
            self._look()

    def lost(self, node: NodeId) -> None:
        """A node that was up is gone."""
        self._nodes.remove(node)
        if self.phase is Phase.IDLE:
            return
        if self.phase is Phase.GATHERING:
            self._gather()
        elif not self._leave(node):
            self._fatal()
        else:
            self._slow = True
            if self.phase is Phase.TRAINING:
                self._go(self._pace_s * self._terms.slow)
            self._look()

    @property
    def pairs(self) -> int:
        """Nodes with two stages."""
        return sum(pipeline.count(None) for pipeline in self.pipelines)

    @property
    def active(self) -> int:
        """Nodes that have a stage."""
        return len(self.pipelines) * self._stages - self.pairs

    @property
    def waiting(self) -> int:
        return len(self._nodes) - self.active

    def _leave(self, node: NodeId) -> bool:
        """Empty its place; whether the job survives that."""
        for pipeline in self.pipelines:
            if node in pipeline:
                stage = pipeline.index(node)
                pipeline[stage] = None
                before, after = pipeline[stage - 1], pipeline[(stage + 1) % self._stages]
                if before is None or after is None:
                    return False
                self._happened(FAILOVER)
                return True
        return True

    def _fatal(self) -> None:
        self._progress.back_to(self._progress.whole)
        self.pipelines = []
        self._gather()
        self._happened(RESTORE)

    def _gather(self) -> None:
        enough = len(self._nodes) >= self._stages
        self._wait(
            Phase.GATHERING if enough else Phase.IDLE,
            (self._terms.start_s, self._start) if enough else None,
        )

    def _start(self) -> None:
        """With those who have come meanwhile, too."""
        self._man()
        self._train()

    def _look(self) -> None:
        """At the end of the step in hand see whether to reconfigure."""
        if not self._look_due:
            self._look_due = True
            self._boundaries.when_next(self._step_ends)

    def _step_ends(self) -> None:
        self._look_due = False
        if self.phase is not Phase.TRAINING:
            return
        if self._should_reconfigure():
            self._reconfigure()
        else:
            self._train()

    def _should_reconfigure(self) -> bool:
        pairs, active, waiting = self.pairs, self.active, self.waiting
        if pairs and (waiting >= pairs or 2 * pairs / active > MORE_THAN_PAIRED):
            return True
        more = len(self.pipelines) + 1
        return more <= self._most and len(self._nodes) >= more * self._stages

    def _reconfigure(self) -> None:
        if len(self._nodes) < self._stages:
            self._fatal()
            return
        self._man()
        self._slow = False
        self._wait(Phase.PAUSED, (self._terms.reconfiguration_s, self._train))
        self._happened(RECONFIGURATION)

    def _man(self) -> None:
        """As many pipelines as there are nodes for; see the first point above."""
        count = min(self._most, len(self._nodes) // self._stages)
        kept = sorted(self.pipelines, key=lambda pipeline: pipeline.count(None))[:count]
        placed = {node for pipeline in kept for node in pipeline}
        free = (node for node in self._nodes if node not in placed)
        kept += [[None] * self._stages for _ in range(count - len(kept))]
        self.pipelines = [
            [next(free) if node is None else node for node in pipeline] for pipeline in kept
        ]

    def _train(self) -> None:
        self._entry, self.phase = None, Phase.TRAINING
        self._go(self._step_s(len(self.pipelines)) * (self._terms.slow if self._slow else 1.0))

    def _go(self, step_s: float) -> None:
        if step_s == self._progress.step_s:
            return
        self._pace_s = step_s
        self._progress.run(step_s)
        self._happened("")

    def _wait(self, phase: Phase, then: tuple[float, Callable[[], None]] | None) -> None:
        """Stand still in `phase`, and do something after so many seconds."""
        self._kernel.cancel(self._entry)
        self.phase = phase
        self._progress.stand()
        self._entry = None if then is None else self._kernel.after(*then)
