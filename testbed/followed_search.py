"""A run whose strategies are searched for while it trains: real worker processes on the virtual
device, the mixed job in a small size on two pipelines, and the launcher's own searcher, which
follows it without a launch around it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from bamboo import wiring
from bamboo.config.tree import JobConfig
from bamboo.controller.ports import Fleet, Ports
from bamboo.controller.searching import Searched, Searcher
from bamboo.coord.follow import Follower
from bamboo.core.state import Phase, State
from bamboo.ids import RunId
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.step.step_time import StepTimes
from bamboo.planner.step.synced import parameters_of
from bamboo.planner.sync.situation import Situation
from bamboo.runs.ports import Books, Screen
from bamboo.runs.progress import Progress
from bamboo.study.planning import Planned, plan_job
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from testbed import strategy_jobs
from testbed.cluster import Cluster

GBPS, FORWARD_MS = 0.1, 8.0
TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The job, and what the planner knows of it."""

    job: JobConfig
    planned: Planned
    facts: tuple[ParameterFacts, ...]
    situation: Situation


def case_of(folder: Path, steps: int) -> Case:
    """The mixed job on two pipelines."""
    strategy_jobs.write_small(folder)
    job = strategy_jobs.medium("mixed", folder)
    cluster_ = replace(
        job.cluster,
        pipelines=2,
        stages=1,
        redundancy="peer",
        device="virtual",
        virtual_forward_ms=(FORWARD_MS,),
        virtual_backward_ms=(2 * FORWARD_MS,),
        virtual_link_gbps=GBPS,
    )
    train = replace(job.train, steps=steps, batch=16, microbatch=4, virtual_nodes=2)
    job = replace(job, cluster=cluster_, train=train)
    seen = wiring.run_preflight(job)
    planned = plan_job(job, seen, run=RunId("search"), now_s=0.0)
    optimizer_s = tuple(float(layer["optimizer_ms"]) / 1e3 for layer in seen["layers"])
    workload = replace(planned.workload, optimizer_s=optimizer_s)
    times = StepTimes(workload, job.cluster.redundancy)
    situation = times.situation(Grid(pipelines=2, stages=1), equal_shares(2, 2))
    facts = tuple(one for one in parameters_of(workload) if one.trained)
    return Case(job=job, planned=planned, facts=facts, situation=situation)


@dataclass(slots=True)
class Said:
    """Keeps what a launcher would print on its screen and write into its books."""

    notes: list[str] = field(default_factory=list)
    booked: list[Mapping[str, Any]] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keep what would be printed."""
        self.notes.append(text)

    def event(self, kind: str, progress: Progress, *, at_s: float, data: Mapping[str, Any]) -> None:
        """Keep the data of the event."""
        del kind, progress, at_s
        self.booked.append(data)


class Followed:
    """A searcher, and the run that it follows. `log`: that of trials."""

    def __init__(self, case: Case, running: Cluster, log: Path) -> None:
        self.said = Said()
        self._running = running
        self._follower, self._told = Follower(), 0
        self.ended = running.sync
        """The strategy that was chosen last."""
        placement = replace(case.planned.strategy.placement, sync=running.sync)
        searched = Searched(
            strategy=replace(case.planned.strategy, placement=placement),
            words="`auto`",
            facts=case.facts,
            situation=case.situation,
            log=log,
            newest=log.with_name("newest.json"),
        )
        ports = Ports(
            append=running.driver.append,
            fleet=cast(Fleet, None),
            screen=cast(Screen, self.said),
            books=cast(Books, self.said),
            now=time.time,
        )
        self._searcher = Searcher(searched, ports, running.store)
        self._progress = Progress(
            run="search",
            steps=case.job.train.steps,
            tokens_per_step=0,
            samples_per_step=0,
            state=running.state(),
            started_at_s=0.0,
            now_s=0.0,
        )

    def until(self, there: Callable[[State], bool]) -> State:
        """Tell the searcher what happens, and propose what it answers, until the state is so, or
        the run is over. Raises RuntimeError after a while."""
        until_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until_s:
            for decision in self._follower.poll(self._running.store, timeout_s=0.02):
                self._searcher.decided(decision)
            records = self._running.metrics("step")
            for record in records[self._told :]:
                self._searcher.measured(record)
            self._told = len(records)
            self._searcher.act(self._progress)
            state = self._running.state()
            if state.phase is Phase.FINISHED:
                if state.syncs:
                    self.ended = self._searcher.sync_of_hash(state.syncs[-1].hash)
                self._searcher.close(self._progress)
                return state
            if there(state):
                return state
        raise RuntimeError(self._running.report())
