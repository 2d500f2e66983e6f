"""`bamboo cost JOB`: what a job could be rented as, what each option costs, and which one to take.

Rule: all options are ranked by the planner's figures. The best few, and the options they are
compared with, are played on simulated markets. Every dollar is modelled.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import inf, isinf
from pathlib import Path

from bamboo.config.catalogue import load_catalogue
from bamboo.config.load import load_job
from bamboo.config.prepared import bytes_in_bucket
from bamboo.config.resolve import nodes_of
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.planner.plans.candidates import savings_of
from bamboo.planner.prices.auxiliary import Part, auxiliary_parts, auxiliary_usd_per_hour, extras_of
from bamboo.planner.prices.catalogue import Catalogue, InstanceType
from bamboo.planner.profiles.gpus import Gpu
from bamboo.planner.renting.chosen import (
    BreakEven,
    Case,
    Chosen,
    Outcome,
    break_even,
    on_spot,
    value_at,
    value_in_short,
)
from bamboo.planner.renting.credible import OneCard, doubt_of, one_card
from bamboo.planner.renting.option import ON_DEMAND, SPOT, Offer, Option, Options, Question
from bamboo.planner.renting.options import again, options, shared_out, together
from bamboo.planner.risks.zones import RESTART_S
from bamboo.ports import Told
from bamboo.sim.processes import cores, in_order
from bamboo.sim.ways import CHECKPOINT_RESTART, terms_of_rivals
from bamboo.study.advised import advised, hopeless_of
from bamboo.study.devices import gpu_of
from bamboo.study.intervals import given_every, put_usd
from bamboo.study.outcomes import MarketTerms, Row, market_terms, outcomes, row_of
from bamboo.study.pricing import Offers, TimesAsked, offers_of
from bamboo.study.told import Bar

PARTS = 2
"""Processes that search the offers: a fixed number, so the answer depends on no machine."""
SIMULATED = 3
"""How many of the best options are played."""
MOST_HAZARD = 100.0
LEAST_SAMPLES_PER_S = 1e-6
MOST_SAMPLES_PER_S = 1e9
TIGHTER = 0.8
"""Share of a deadline to plan for where plans that meet it on average miss it in one run of ten."""
LOW_HAZARDS = (0.1, 0.01)
SHORT_H = 1.0
SLOWER = 10.0
TRANSFER = "transfer"
"""The overhead that an option's price already contains."""
Round = tuple[Options, tuple[Outcome, ...], Outcome | None]
"""What was found, its outcomes, and the outcome of checkpoint-restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAsked:
    """What the command line asks for."""

    times: TimesAsked
    deadline_h: float | None = None
    budget_usd: float | None = None
    """None: the job's own budget."""
    max_nodes: int | None = None
    hazard: float | None = None
    trace: Path | None = None
    seeds: int = 10
    rows: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCost:
    """Everything that the command says of a job."""

    job: JobConfig
    offers: Offers
    question: Question
    terms: MarketTerms
    asked: CostAsked
    table: Options
    outcomes: tuple[Outcome, ...]
    restarts: Outcome | None
    """Checkpoint-restart on spot."""
    chosen: Chosen
    break_even: BreakEven
    cases: tuple[Case, ...]
    seeds: int
    deadline_h: float
    budget_usd: float
    """inf: no budget."""
    alone: OneCard | None
    """The model on one GPU, where it fits and the GPU's times are modelled."""

    @property
    def rows(self) -> tuple[Option, ...]:
        """Simulated options first, by their outcome; then all others that were found."""
        ranked = sorted(self.outcomes, key=lambda one: -one.value)
        first = [one.option for one in ranked]
        return (*first, *(one for one in self.table.found if one not in first))

    @property
    def restarts_terms(self) -> str:
        """What checkpoint-restart is charged, in words."""
        assert self.restarts is not None, "asked only where it was played"
        every = self.restarts.option.plan.losses.checkpoint_every
        return terms_of_rivals({}, every=every)[CHECKPOINT_RESTART]

    def kinds(self) -> tuple[InstanceType, ...]:
        """The instance types of the rows, each once."""
        names = dict.fromkeys(option.line.instance_type for option in self.rows)
        return tuple(map(self.offers.catalogue.find, names))

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of the rows, each once. Raises InputError for one that is not in the table."""
        return tuple({gpu.name: gpu for gpu in map(gpu_of, self.kinds())}.values())

    def beside(self, option: Option) -> tuple[Part, ...]:
        """The overheads of an option that was found, as `beside_option` has them."""
        offer = next(one for one in self.offers.offers if one.name == option.line.instance_type)
        return beside_option(self.job, offer, option, self.offers.catalogue)


def beside_option(
    job: JobConfig, offer: Offer, option: Option, catalogue: Catalogue
) -> tuple[Part, ...]:
    """The overheads of an option, without bytes between zones, which its price already contains."""
    choice, kept = option.plan.choice, job.checkpoint
    extras = extras_of(
        instances=option.plan.nodes,
        step_s=option.plan.step_s,
        checkpoint_bytes=[
            offer.workload.state_bytes(range(first, stop)) for first, stop in pairwise(choice.cut)
        ],
        every_steps=option.plan.losses.checkpoint_every,
        keep=kept.keep,
        data_bytes=bytes_in_bucket(job),
    )
    parts = auxiliary_parts(catalogue.auxiliary, extras)
    return tuple(part for part in parts if part.name != TRANSFER)


def cost_of_job(path: Path, asked: CostAsked, *, overrides: Sequence[str], bar: Bar) -> JobCost:
    """Compare, simulate, choose. Raises InputError, also when no option fits into memory."""
    job = load_job(path, overrides)
    _check(asked)
    terms, rate = market_terms(asked.hazard, asked.trace)
    question = _question(job, asked, terms)
    offers = offers_of(
        job,
        path,
        asked.times,
        rate=rate,
        most_stages=question.nodes.stop - 1,
        progress=partial(bar, "measuring"),
    )
    job = replace(job, unit=offers.unit)
    if not offers.offers:
        raise InputError(f"no option fits: {next(iter(offers.too_large.values()))}")
    deadline_h = _limit(asked.deadline_h, job.budget.max_hours)
    budget_usd = _limit(asked.budget_usd, job.budget.max_usd)
    alone = one_card(offers.offers) if offers.modelled else None
    # A model that fits one GPU is compared with that GPU, in a note.
    best = None if alone else offers.best_known
    question = replace(question, least_value=best.least_value if best else 0.0)
    doubt = partial(
        doubt_of,
        best=best,
        catalogue=offers.catalogue,
        tokens_per_sample=job.tokens_per_sample,
    )
    advise = partial(advised, deadline_h=deadline_h, budget_usd=budget_usd)
    rounds = []
    for tighter in (1.0, TIGHTER, TIGHTER**2):
        inside = replace(question, most_hours=deadline_h * tighter)
        rounds.append(_round(job, offers, inside, terms, asked=asked, bar=bar))
        table, ours, rival = rounds[-1]
        chosen = advise(ours, table, doubt, hopeless=hopeless_of(job, table, best))
        hopeful = [one for one in ours if not doubt(one.option)]
        if chosen.outcome is not None or not _late(hopeful, deadline_h, budget_usd):
            break
    if chosen.outcome is None:
        # Among everything that was played, find what would be enough.
        every = [outcome for _, found, _ in rounds for outcome in found]
        table, ours, rival = rounds[0]
        chosen = advise(every, table, doubt, hopeless=hopeless_of(job, table, best))
    return JobCost(
        job=job,
        offers=offers,
        question=question,
        terms=terms,
        asked=asked,
        table=table,
        outcomes=ours,
        restarts=rival,
        chosen=chosen,
        break_even=break_even(table.found, question),
        cases=(*_as_simulated(ours), *_cases(table, offers.by_name, question)),
        seeds=asked.seeds,
        deadline_h=deadline_h,
        budget_usd=budget_usd,
        alone=alone,
    )


def _round(
    job: JobConfig,
    offers: Offers,
    question: Question,
    terms: MarketTerms,
    *,
    asked: CostAsked,
    bar: Bar,
) -> Round:
    """Compare all options and simulate the best."""
    by_name = offers.by_name
    with bar("comparing plans") as told:
        table = _searched(offers.offers, question, rows=asked.rows, told=told)
    played = _to_play(table)
    rows = [row_of(job, by_name[one.line.instance_type], one, terms) for one in played]
    rival = _rival(job, by_name, played, terms)
    several = f"simulating {len(rows) + len(rival)} rows, runs"
    with bar(several) as told:
        alone = outcomes([*rows, *rival], seeds=asked.seeds, told=told) if rows else []
    found = []
    for one in alone:
        offer = by_name[one.option.line.instance_type]
        parts = beside_option(job, offer, one.option, offers.catalogue)
        found.append(replace(one, beside_usd_per_hour=auxiliary_usd_per_hour(parts)))
    return table, tuple(found[: len(rows)]), found[-1] if rival else None


def _late(found: Sequence[Outcome], deadline_h: float, budget_usd: float) -> bool:
    """Whether plans that are faster on average might meet the deadline."""
    return not isinf(deadline_h) and any(
        one.hours_p90 > deadline_h and one.whole_usd_p90 <= budget_usd for one in found
    )


def _check(asked: CostAsked) -> None:
    """Raises InputError for an impossible limit, market or number of runs."""
    for name, limit in (("--deadline", asked.deadline_h), ("--budget", asked.budget_usd)):
        if limit is not None and not 0 < limit < inf:
            raise InputError(f"{name} {limit:g} is no limit; give one above 0, or leave it out")
    rate = asked.times.samples_per_s
    if rate != 0 and not LEAST_SAMPLES_PER_S <= rate <= MOST_SAMPLES_PER_S:
        raise InputError(
            f"--samples-per-s {rate:g} is no rate; give {LEAST_SAMPLES_PER_S:g} to "
            f"{MOST_SAMPLES_PER_S:g}, or leave it out"
        )
    if asked.max_nodes is not None and not 1 <= asked.max_nodes <= 1000:
        raise InputError(f"--max-nodes {asked.max_nodes} is no size; give 1 to 1000")
    if asked.hazard is not None and asked.trace is not None:
        raise InputError(
            f"--hazard {asked.hazard:g} and --trace {asked.trace} are two markets; give one of them"
        )
    if asked.hazard is not None and not 0 <= asked.hazard <= MOST_HAZARD:
        raise InputError(
            f"--hazard {asked.hazard:g} is no rate; give losses per node-hour, such as .1"
        )
    if not 1 <= asked.seeds <= 1000:
        raise InputError(f"--seeds {asked.seeds} is no number of runs; give 1 to 1000")
    if not 1 <= asked.rows <= 1000:
        raise InputError(f"--rows {asked.rows} is no number of options; give 1 to 1000")


def _limit(given: float | None, own: float) -> float:
    """The limit that was given, or else the job's; inf: none."""
    if given is not None:
        return given
    return own if own > 0 else inf


def _question(job: JobConfig, asked: CostAsked, terms: MarketTerms) -> Question:
    """What all options have in common."""
    most = nodes_of(job) if asked.max_nodes is None else asked.max_nodes
    # One node alone is an option where the job itself, or who asks, has so few in mind.
    fewest = 1 if job.cluster.stages == 1 or most == 1 else 2
    return Question(
        nodes=range(fewest, max(fewest, most - job.cluster.standbys) + 1),
        steps=job.train.steps,
        checkpoint_every=given_every(job),
        savings=savings_of(job.cluster.recompute, job.cluster.replica_moments),
        put_usd=put_usd(job, load_catalogue(job.cloud.region)),
        # The time that the played market takes; REPLACE_S where nothing says otherwise.
        replace_s=max(RESTART_S, terms.back_s + terms.boot_s),
        standbys=job.cluster.standbys,
    )


def _searched(offers: Sequence[Offer], question: Question, *, rows: int, told: Told) -> Options:
    """Search on both cores. Raises InputError when nothing fits into memory."""
    parts = shared_out(offers, PARTS)
    tables = []
    search = partial(_search, question, rows)
    for table in in_order(search, parts, processes=min(cores(), len(parts))):
        tables.append(table)
        told(len(tables), len(parts))
    whole = together(tables, most=rows)
    if whole.lines == whole.misfits.lines:
        raise InputError(f"no option fits: {whole.misfits.nearest}")
    return whole


def _search(question: Question, rows: int, offers: Sequence[Offer]) -> Options:
    return options(offers, question, most=rows)


def _to_play(table: Options) -> list[Option]:
    """The best options that a launch can rent, and the best of each kind to compare them with."""
    able = [one for one in table.found if one.launchable]
    first = able[:SIMULATED]
    for wanted in (
        [one for one in table.found if one.line.market == ON_DEMAND],
        on_spot(table.found, redundant=False),
        on_spot(table.found, redundant=True),
    ):
        first += [one for one in wanted[:1] if one not in first]
    return first


def _rival(
    job: JobConfig,
    offers: Mapping[str, Offer],
    played: Sequence[Option],
    terms: MarketTerms,
) -> list[Row]:
    """Checkpoint-restart on spot, with the best plan that has no redundancy."""
    bare = on_spot(played, redundant=False) or on_spot(played, redundant=True)
    return [
        row_of(job, offers[one.line.instance_type], one, terms, system=CHECKPOINT_RESTART)
        for one in bare[:1]
    ]


def _as_simulated(found: Sequence[Outcome]) -> Iterator[Case]:
    """The cases in which both were played."""
    best = {True: 0.0, False: 0.0}
    for one in found:
        if one.option.line.market == SPOT:
            redundant = one.option.line.redundant
            best[redundant] = max(best[redundant], one.value)
    if all(best.values()):
        yield Case(name="as asked, simulated", with_value=best[True], without_value=best[False])


def _cases(table: Options, offers: Mapping[str, Offer], question: Question) -> Iterator[Case]:
    """Where redundancy pays and where not: the plans of the table under other conditions."""
    both = [on_spot(table.found, redundant=redundant) for redundant in (True, False)]
    most_often = max((one.preemptions_per_node_hour for those in both for one in those), default=0)
    if not all(both) or not most_often:
        return

    def case(name: str, value: Callable[[Option], float]) -> Case:
        with_value, without_value = (max(map(value, those)) for those in both)
        return Case(name=name, with_value=with_value, without_value=without_value)

    def slower(option: Option) -> float:
        offer = offers[option.line.instance_type]
        work = offer.workload
        rates = (work.bytes_per_s / SLOWER, work.node_bytes_per_s / SLOWER)
        slow = replace(work, bytes_per_s=rates[0], node_bytes_per_s=rates[1])
        return again(option, replace(offer, workload=slow), question).value

    yield case("as asked, by the planner", lambda one: one.value)
    for hazard in LOW_HAZARDS:
        if hazard < most_often:
            yield case(
                f"{hazard:g} preemptions per node-hour",
                partial(value_at, per_node_hour=hazard, question=question),
            )
    yield case(f"a job of {SHORT_H:g} h", partial(value_in_short, hours=SHORT_H, question=question))
    both = [those[:1] for those in both]
    if any(offers[one.line.instance_type].workload.bytes_per_s for those in both for one in those):
        yield case(f"links of a {SLOWER:g}th", slower)
