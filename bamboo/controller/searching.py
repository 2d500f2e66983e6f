"""The launcher's side of a search for a better strategy while a run trains. `planner.sync.live`
decides what is tried. This file tells it what the launcher sees, proposes the strategies that it
answers, and writes what was measured into `$BAMBOO_HOME/trials.jsonl`.

Rule: a search is of one fleet and of the densities that it began with. When one of them changes,
another search begins, which knows the log. Nothing here is needed for the run to go on.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bamboo.controller.ports import APPEND_DEADLINE_S, Ports
from bamboo.controller.terms import Terms
from bamboo.coord.follow import Decision
from bamboo.coord.strategies import store_sync, stored_sync
from bamboo.core.events import StrategyProposed
from bamboo.core.rounds import choice_at
from bamboo.core.state import Phase, State
from bamboo.errors import BooksUnwritable, InputError, StoreUnavailable
from bamboo.jsonl import LineWriter
from bamboo.named_files import open_named
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.candidates import candidates
from bamboo.planner.sync.live import LiveSearch
from bamboo.planner.sync.resolved import fits, resolve
from bamboo.planner.sync.situation import Situation
from bamboo.planner.sync.slowness import Slowness
from bamboo.planner.sync.trials import Finding, Log, Trial, read_log
from bamboo.planner.sync.written import facts_from, situation_from
from bamboo.ports import Store
from bamboo.quantities import count
from bamboo.runs.books import TRIED
from bamboo.runs.progress import Progress
from bamboo.runs.run_folder import REMEDY, RunFolder, home, write_json
from bamboo.runs.run_status import newest_sync_of, strategy_of
from bamboo.study.planning import Planned
from bamboo.study.strategies import SYNCED_KEY
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.strategy import Strategy, canonical_json
from bamboo.topology.sync import Sync

TRIALS = "trials.jsonl"
MOST_BYTES = 2**23
"""How much a launcher reads of the log, from its end: some thousand lines."""
DRIFT = 1.5
"""A density that has grown or shrunk by this factor begins another search."""
RECENT = 0.3
"""The weight of the newest record in the moving average of a density."""
ASKED_AGAIN_S = 2.0
"""A proposal that the run did not take is made again after this time."""
OF_ANOTHER = "the strategy that another launcher chose"
FIGURE_ERRORS = (ArithmeticError, ValueError)
"""What a search may raise where figures are too large, or no numbers: those of a log that anybody
may have written, or of unforeseen steps. They end the search, and not the run."""
CUT_SHORT = "the run ended before it, or has another fleet, grid or density"
_CALM = (Phase.RUNNING, Phase.DEGRADED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What the searches of a run begin with."""

    strategy: Strategy
    words: str
    """What made the strategy's rules, for the sentence of a proposal."""
    facts: tuple[ParameterFacts, ...]
    situation: Situation
    """Of the grid that the strategy has."""
    log: Path
    newest: Path
    """Where the newest strategy of the run is kept, for a resume."""
    eval_every: int = 0
    """Steps between evaluations, whose time does not count for a step; 0: there are none."""


def searcher_of(folder: RunFolder, terms: Terms, ports: Ports, store: Store) -> "Searcher | None":
    """The searcher of a run; None where nothing is known of its parameters. Raises InputError for a
    damaged file."""
    job = terms.job
    kept = folder.read_json(folder.resolved).get(SYNCED_KEY)
    if not kept or not kept.get("parameters"):
        ports.screen.note("nothing is known of this model's parameters: no strategy is tried")
        return None
    try:
        facts = tuple(map(facts_from, kept["parameters"]))
        searched = Searched(
            strategy=terms.strategy,
            words=f"`{kept['builder']}`",
            facts=tuple(one for one in facts if one.trained),
            situation=situation_from(kept["situation"]),
            log=home() / TRIALS,
            newest=folder.newest_sync,
            eval_every=job.eval.every_steps,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder.resolved} is damaged: {error}; {REMEDY}") from error
    return Searcher(searched, ports, store)


def with_newest(folder: RunFolder, planned: Planned) -> Planned:
    """The plan of a run that is resumed, which begins with the strategy that a search chose last,
    where that suits the grid and fits into memory. Raises InputError for a damaged file."""
    sync = newest_sync_of(folder)
    placement = planned.strategy.placement
    before = strategy_of(folder).placement
    like = (before.grid, before.cut) == (placement.grid, placement.cut)
    if not like or sync is None:
        return planned
    facts = planned.synced.facts
    try:
        resolved = resolve(sync, facts, planned.synced.situation)
    except ValueError as error:
        raise InputError(f"{folder.newest_sync} is damaged: {error}; remove it") from error
    if not fits(resolved, facts):
        return planned
    strategy = replace(planned.strategy, placement=replace(placement, sync=sync))
    return replace(planned, strategy=strategy, synced=replace(planned.synced, sync=sync))


class TrialLog:
    """The log of trials, which is of all runs of this home. What it cannot keep is noted once."""

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        self._path = path
        self._note = note
        self._told = False

    def read(self) -> Log:
        """The newest lines of it."""
        try:
            with open_named(self._path) as file:
                begin = max(0, file.seek(0, os.SEEK_END) - MOST_BYTES)
                file.seek(begin)
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return Log()  # no run of this home has tried anything, or it cannot be read
        log = read_log(lines[1:] if begin else lines)  # the first one lacks its beginning
        if log.passed_over:
            many = count(log.passed_over, "line is no trial", "lines are no trials")
            self._note(f"{self._path}: {many}, and passed over")
        return log

    def write(self, found: Sequence[Trial | Finding]) -> None:
        """Append these, as far as the disk takes them."""
        if not found:
            return
        try:
            with LineWriter(self._path) as file:
                for one in found:
                    file.write(one.line())
        except BooksUnwritable as error:
            if not self._told:
                self._told = True
                self._note(f"later searches do not learn from this one: {error}")
            return
        self._told = False


class Searcher:
    """The searches of one launcher."""

    def __init__(self, searched: Searched, ports: Ports, store: Store) -> None:
        self._of = searched
        self._ports = ports
        self._store = store
        self._steps = searched.strategy.semantics.steps
        self._facts = searched.facts
        self._densities = {one.name: one.step_density for one in searched.facts}
        self._log = TrialLog(searched.log, ports.screen.note)
        log = self._log.read()
        self._past = list(log.trials)
        self._findings = {one.context: one for one in log.findings}
        """By context: what was found slow in a fleet."""
        self._search: LiveSearch | None = None
        self._fleet = ""
        self._syncs: dict[str, Sync] = {}
        self._words = {searched.strategy.placement.sync.hash(): searched.words}
        self._state: State | None = None
        self._last: tuple[int, float, int] | None = None
        """The newest step, when it was done, and the generation then."""
        self._wanted: StrategyProposed | None = None
        self._asked_s = 0.0
        self._over: list[LiveSearch] = []
        """Searches that are over and not booked yet."""

    # ------------------------------------------------------------------ what the launcher sees

    def decided(self, decision: Decision) -> None:
        """Take in a decision. Called for every one, in order."""
        before, after = self._state, decision.state
        self._state = after
        # A store that was filled again may have fewer choices than before, and none at all.
        if before is not None and after.syncs and before.syncs != after.syncs:
            self._keep(after)
        if before is None or self._search is None or before.proposal is None:
            return
        hash = before.proposal.hash
        if after.proposal is not None:
            return
        if after.syncs and after.syncs[-1].hash == hash:
            self._search.chosen(hash)
        elif after.generation == before.generation and after.phase in _CALM:
            self._search.refused(hash)
        else:
            self._search.withdrawn()

    def measured(self, record: Mapping[str, Any]) -> None:
        """Take in a record of the metrics stream. Raises StoreUnavailable."""
        match record.get("kind"):
            case "step":
                try:
                    self._stepped(int(record["step"]), float(record["t_s"]))
                except FIGURE_ERRORS as error:
                    self._give_up(error)
            case "density":
                self._average(record["density"])

    def _stepped(self, step: int, at_s: float) -> None:
        state, last = self._state, self._last
        if state is None or (last is not None and step <= last[0]):
            return
        self._last = (step, at_s, state.generation)
        search = self._search_of(state, step)
        if search is None:
            return
        calm = last is not None and last[0] == step - 1 and last[2] == state.generation
        evaluated = self._of.eval_every and step % self._of.eval_every == 0
        seconds = at_s - last[1] if last is not None and calm and not evaluated else None
        search.stepped(self._hash_at(state, step), seconds if seconds and seconds > 0 else None)
        was_over = bool(search.stopped)
        asked = search.next(step)
        self._write(search.ended())
        if search.stopped and not was_over and asked is None:
            self._ports.screen.note(_over_words(search, step))
        if asked is not None:
            self._syncs[asked.hash] = search.candidates[asked.hash].sync
            self._words.setdefault(asked.hash, search.candidates[asked.hash].words)
            self._wanted = StrategyProposed(reporter="launcher", hash=asked.hash, why=asked.why)
            self._asked_s = 0.0

    def _average(self, density: Mapping[str, float]) -> None:
        """Take densities of a step into the moving averages."""
        for name, share in density.items():
            known = self._densities.get(name)
            if known is not None:
                self._densities[name] = (1 - RECENT) * known + RECENT * share

    def act(self, progress: Progress) -> None:
        """Propose what is wanted, once the run can take it, and book searches that are over.
        Raises StoreUnavailable."""
        self._book(progress)
        state, wanted = self._state, self._wanted
        if state is None or wanted is None or self._ports.now() < self._asked_s + ASKED_AGAIN_S:
            return
        known = [choice.hash for choice in state.syncs[-1:]]
        if wanted.hash in known or (state.proposal and state.proposal.hash == wanted.hash):
            self._wanted = None
        elif state.phase in _CALM and state.proposal is None and state.stop_reason is None:
            store_sync(self._store, self._syncs[wanted.hash])
            self._ports.append(wanted, deadline_s=APPEND_DEADLINE_S)
            self._asked_s = self._ports.now()

    def close(self, progress: Progress) -> None:
        """The run is over."""
        try:
            self._end()
        except FIGURE_ERRORS as error:
            self._give_up(error)
        self._book(progress)

    def _give_up(self, error: Exception) -> None:
        """Search no more until the fleet or a density changes."""
        if self._search is not None:
            self._over.append(self._search)
        self._search = None
        self._ports.screen.note(f"no more strategies are tried on these nodes: {error}")

    def _end(self) -> None:
        if self._search is not None:
            self._write(self._search.close())
            if (finding := self._search.finding()) is not None:
                self._findings[finding.context] = finding
                self._write([finding])
            self._over.append(self._search)
        self._search = None

    # ------------------------------------------------------------------ one search

    def _search_of(self, state: State, step: int) -> LiveSearch | None:
        """The search of the present fleet, which begins with it; None where nothing is known of
        its grid, or the run does not go on. Raises StoreUnavailable, after which a later step
        begins it."""
        if state.phase not in _CALM or state.stop_reason is not None:
            return None
        self._follow_densities()
        fleet = self._fleet_of(state)
        if fleet == self._fleet:
            return self._search
        self._end()
        self._wanted = None
        self._fleet = fleet
        try:
            self._search = self._begun(state, step, fleet)
        except StoreUnavailable:
            self._fleet = ""
            raise
        return self._search

    def _begun(self, state: State, step: int, fleet: str) -> LiveSearch | None:
        situation = self._situation_of(state)
        if situation is None:
            self._ports.screen.note(
                "the layout is another one than was planned: no strategies are tried on it"
            )
            return None
        try:
            now = self.sync_of_hash(self._hash_at(state, step))
        except InputError as error:  # a store that began again may lack it
            self._ports.screen.note(f"no strategies are tried from step {step} on: {error}")
            return None
        words = self._words.get(now.hash(), OF_ANOTHER)
        return LiveSearch(
            candidates(self._facts, situation, now=now, now_words=words),
            context=(self._job(), fleet),
            now=now.hash(),
            steps=self._steps,
            begun=step,
            past=self._past,
            slowness=Slowness(self._facts, situation, list(self._findings.values())),
        )

    def sync_of_hash(self, hash: str) -> Sync:
        """The strategy of a step, which an earlier launcher may have proposed. Raises
        StoreUnavailable, InputError."""
        known = self._syncs.get(hash)
        if known is None and hash != self._of.strategy.placement.sync.hash():
            return stored_sync(self._store, hash)
        return known or self._of.strategy.placement.sync

    def _situation_of(self, state: State) -> Situation | None:
        placement = self._of.strategy.placement
        planned = (placement.grid, placement.cut, self._of.situation.shares)
        pipelines = state.grid.pipelines
        shares = state.shares or equal_shares(sum(self._of.situation.shares), pipelines)
        there = (state.grid, state.cut or placement.cut, shares)
        return self._of.situation if there == planned else None

    def _follow_densities(self) -> None:
        drifted = {
            one.name: self._densities[one.name]
            for one in self._facts
            if 0 < self._densities[one.name] <= 1
            and not 1 / DRIFT <= self._densities[one.name] / max(one.step_density, 1e-9) <= DRIFT
        }
        if drifted:
            self._facts = tuple(
                replace(
                    one,
                    step_density=drifted[one.name],
                    density=min(1.0, one.density * drifted[one.name] / one.step_density),
                )
                if one.name in drifted and one.step_density
                else one
                for one in self._facts
            )

    def _fleet_of(self, state: State) -> str:
        """A name for all that decides how fast a strategy is."""
        owners = () if state.assignment is None else state.assignment.owners
        instances = [node.instance for o in owners if (node := state.node(o)) is not None]
        return _digest(
            instances,
            [state.grid.pipelines, state.grid.stages, state.cut, state.shares],
            repr(self._of.situation),
            [(one.name, one.step_density) for one in self._facts],
        )

    def _job(self) -> str:
        told = self._of.strategy.semantics
        shape = [told.model, told.batch, told.microbatch, told.virtual_nodes, told.precision]
        return _digest(*shape)

    def _hash_at(self, state: State, step: int) -> str:
        choice = choice_at(state.syncs, step)
        return self._of.strategy.placement.sync.hash() if choice is None else choice.hash

    # ------------------------------------------------------------------ what is kept

    def _keep(self, state: State) -> None:
        sync = self._syncs.get(state.syncs[-1].hash)
        try:
            if sync is not None:
                write_json(self._of.newest, {"sync": sync.body()})
        except BooksUnwritable as error:
            self._ports.screen.note(f"a resume begins with the planned strategy: {error}")

    def _write(self, found: Sequence[Trial | Finding]) -> None:
        self._past += [one for one in found if isinstance(one, Trial)]
        self._log.write(found)

    def _book(self, progress: Progress) -> None:
        """Write what searches that are over have tried, each once."""
        for search in self._over:
            if search.trials:
                tried = {"trials": search.trials, "excess_s": search.excess_s}
                data = {**tried, "why": search.stopped or CUT_SHORT}
                self._ports.books.event(TRIED, progress, at_s=self._ports.now(), data=data)
        self._over = []


def _over_words(search: LiveSearch, step: int) -> str:
    """That a search is over and no other strategy follows, which no decision says."""
    stays = search.candidates[search.incumbent].words
    if not search.trials:
        return f"after step {step} no strategy is tried: {search.stopped}; {stays} stays"
    tried = count(search.trials, "trial")
    return f"the search is over after step {step} and {tried}: {search.stopped}; {stays} stays"


def _digest(*parts: Any) -> str:
    return hashlib.sha256(canonical_json(list(parts)).encode()).hexdigest()[:16]
