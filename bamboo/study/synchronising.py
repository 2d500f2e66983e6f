"""How the gradients of a planned job are synchronised: rules from a builder, or from a file.

Rule: THE place where `[cluster] sync` becomes the rules of a placement. They are checked here, so
what a run would refuse is refused before anything is started. What counts with arrays is imported
where it is used: a plan without rules, as most are, does not wait for numpy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bamboo import wiring
from bamboo.config.tree import JobConfig
from bamboo.errors import BambooError, InputError
from bamboo.named_files import LONGEST
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.plans.nodes import zone_of as zone_of_node
from bamboo.planner.plans.plan import Plan
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.risks.zones import USD_PER_GB
from bamboo.planner.step.step_time import StepTimes
from bamboo.planner.step.synced import in_zones, zones_of
from bamboo.planner.sync.situation import Situation
from bamboo.planner.sync.worth import may_win
from bamboo.planner.sync.written import facts_body, situation_body
from bamboo.quantities import size
from bamboo.study.strategies import Given
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.strategy import AUTO, canonical_json
from bamboo.topology.sync import FACTORS, ROWS, TREE, ZONED, Sync, entries, sync_of, unmatched

OWN_REMEDY = (
    'return a list of rules such as SyncRule(match="*", exchange="tree"), of bamboo.topology.sync'
)


UNKNOWN = "nothing is known of the parameters of this model, because its layers were not looked at"
MOST_NAMED = 3
MOST_CHARACTERS = LONGEST // 2
"""Of rules: a strategy with more could not be read back from a file."""
MANY = 10**7
"""More strategies are counted by the power of ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Bytes of a step of all nodes, as the strategy has them and as `tree` would."""

    exchange_bytes: float
    ship_bytes: float
    tree_exchange_bytes: float
    tree_ship_bytes: float
    kinds: Mapping[str, int]
    """Exchange and ship kind, as `rows, dense` -> how many parameters."""

    @property
    def bytes(self) -> float:
        return self.exchange_bytes + self.ship_bytes

    @property
    def tree_bytes(self) -> float:
        return self.tree_exchange_bytes + self.tree_ship_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronised:
    """The rules of a job, and what they were made from."""

    sync: Sync
    builder: str
    """What made them: the value of `cluster.sync`, or the file that they come from."""
    facts: tuple[ParameterFacts, ...]
    """Empty: nothing is known of the parameters, and all go whole."""
    situation: Situation
    note: str = ""
    """How it was found, as the end of a sentence."""

    def totals(self) -> Totals | None:
        """None where nothing is known of the parameters."""
        if not self.facts:
            return None
        from bamboo.planner.sync.resolved import resolve

        ours = resolve(self.sync, self.facts, self.situation)
        whole = resolve(Sync(), self.facts, self.situation)
        kinds: dict[str, int] = {}
        for entry in ours.entries.values():
            words = f"{entry.exchange}, {entry.ship}"
            kinds[words] = kinds.get(words, 0) + 1
        return Totals(
            exchange_bytes=ours.exchanged_bytes,
            ship_bytes=ours.shipped_bytes,
            tree_exchange_bytes=whole.exchanged_bytes,
            tree_ship_bytes=whole.shipped_bytes,
            kinds=kinds,
        )

    def body(self) -> dict[str, Any]:
        """What is kept of it beside a strategy, so that it can be explained and compared."""
        return {
            "builder": self.builder,
            "parameters": [facts_body(one) for one in self.facts],
            "situation": situation_body(self.situation),
        }


def situated(plan: Plan, workload: WorkloadFigures) -> Situation:
    """Where the first grid of a plan synchronises, with the zones of its spread, and with what a
    byte between them costs."""
    zone_of = {node: zone_of_node(node) for node in plan.assignment.owners}
    work = in_zones(workload, zones_of(plan.assignment, zone_of))
    work = replace(work, cuts={**work.cuts, plan.grid.stages: plan.cut})
    shares = equal_shares(workload.shape.virtual_nodes, plan.grid.pipelines)
    found = StepTimes(work, plan.mode).situation(plan.grid, shares)
    spare = [plan.instance_type.gpu_memory_bytes - x.total + x.factors for x in plan.memory]
    return replace(
        found,
        spare_bytes=tuple(max(0, left) for left in spare),
        billed_s_per_byte=_billed_s_per_byte(plan),
    )


def with_bill(workload: WorkloadFigures, plan: Plan) -> WorkloadFigures:
    """The workload with what a byte between zones costs, where `auto` may then send fewer, and
    another spread of the nodes over zones be the cheapest."""
    if len(plan.spreads) < 2 or plan.grid.pipelines == 1 or workload.syncing.sync != AUTO:
        return workload
    syncing = replace(workload.syncing, billed_s_per_byte=_billed_s_per_byte(plan))
    return replace(workload, syncing=syncing)


def _billed_s_per_byte(plan: Plan) -> float:
    """Seconds for which the price of a byte between zones would rent all nodes of a plan."""
    usd_per_hour = 0.0 if plan.chosen is None else plan.chosen.instances_usd_per_hour
    return USD_PER_GB / 1e9 / (usd_per_hour / 3600) if usd_per_hour else 0.0


def with_rules(workload: WorkloadFigures, found: Synchronised) -> WorkloadFigures:
    """The workload as these rules synchronise it."""
    syncing = replace(workload.syncing, sync=found.sync, zones=found.situation.zones)
    return replace(workload, syncing=syncing)


def refuse_beyond_memory(job: JobConfig, plan: Plan, found: Synchronised) -> None:
    """Raises InputError, with the bytes, where the factors that a node holds do not fit."""
    kind = plan.instance_type
    for stage in plan.memory:
        if stage.factors and stage.total > kind.gpu_memory_bytes:
            where = f"{job.file}: cluster.sync" if found.builder == job.cluster.sync else "sync"
            raise InputError(
                f"{where} = {found.builder!r}: does not fit: a node of stage {stage.stage} would "
                f"hold {size(stage.total, digits=2)}, {size(stage.factors, digits=2)} of it "
                f"factors, and one {kind.gpu} has {kind.gpu_memory_text}; take tree for its widest "
                "weights, more stages, or smaller batches"
            )


def synchronised(
    job: JobConfig,
    facts: Sequence[ParameterFacts],
    situation: Situation,
    given: Given | None,
    *,
    search: int = 0,
) -> Synchronised:
    """The rules of a job on the first grid of its plan: those of the strategy that places it, or
    those that its builder makes, or the best of `search` that are priced on paper. Raises
    InputError for rules that make no sense, and for a builder of the user's that raises or returns
    none."""
    if search:
        return _searched(facts, situation, search)
    if given is not None and given.has_rules:
        sync, whole = given.placement.sync, False
        at = f"{given.path}: placement.sync"
        builder = str(given.path)
    else:
        at = f"{job.file}: cluster.sync = {job.cluster.sync!r}"
        builder = job.cluster.sync
        sync, whole = _made(job, facts, situation, at), job.cluster.own_builder is not None
    try:
        _check(sync, facts, situation, most_pipelines=job.cluster.max_pipelines)
        if whole:
            _check_whole(sync, facts)
    except (ValueError, InputError) as error:
        raise InputError(f"{at}: {error}") from error
    return Synchronised(sync=sync, builder=builder, facts=tuple(facts), situation=situation)


def _searched(
    facts: Sequence[ParameterFacts], situation: Situation, evaluations: int
) -> Synchronised:
    """The best of so many strategies by the model, or what `auto` makes where that is better."""
    if not facts:
        raise InputError(f"--search {evaluations}: {UNKNOWN}; leave --gpu or --search out")
    from bamboo.planner.sync.builders import build
    from bamboo.planner.sync.price import price
    from bamboo.planner.sync.resolved import resolve
    from bamboo.planner.sync.search import search as search_on_paper

    found = search_on_paper(facts, situation, evaluations=evaluations)
    sync, auto = found.sync, build("auto", facts, situation)
    rest = "no other can be more than 0.2 % faster" if found.proven else "others may be faster"
    if price(resolve(auto, facts, situation)).cost_s < found.best.price.cost_s:
        sync, rest = auto, f"none of them is as fast as that of auto, which is taken, and {rest}"
    size_words = f"{found.size:,}" if found.size < MANY else f"10^{len(str(found.size)) - 1}"
    return Synchronised(
        sync=sync,
        builder=f"search {evaluations}",
        facts=tuple(facts),
        situation=situation,
        note=f"the search priced {found.evaluations:,} of {size_words} strategies: {rest} by the "
        "model",
    )


def _made(job: JobConfig, facts: Sequence[ParameterFacts], situation: Situation, at: str) -> Sync:
    """What the job's builder makes; one of the user's is asked in a process of its own."""
    own = job.cluster.own_builder
    if job.cluster.sync == TREE or (job.cluster.sync == AUTO and not may_win(facts, situation)):
        return Sync()
    from bamboo.planner.sync.builders import build

    try:
        if own is None:
            return build(job.cluster.sync, facts, situation)
        file, function = job.named(own[0]), own[1]
        written = [facts_body(one) for one in facts]
        return sync_of(wiring.run_builder(file, function, written, situation_body(situation)))
    except (BambooError, ValueError) as error:
        # One whose process broke or never answered is the user's to mend, as one that raises.
        returned = own is not None and isinstance(error, InputError | ValueError)
        remedy = f"; {OWN_REMEDY}" if returned else ""
        raise InputError(f"{at}: {' '.join(str(error).split())}{remedy}") from error


def _check(
    sync: Sync, facts: Sequence[ParameterFacts], situation: Situation, *, most_pipelines: int
) -> None:
    """`situation` is of the first grid, `most_pipelines` of any that the run may have. Raises
    ValueError or InputError for rules that match nothing or the same, a kind that a parameter
    cannot have, an owner outside the grid, and zones whose pipelines have nothing to add."""
    if sync.rules and not facts:
        raise ValueError(f"{UNKNOWN}; leave --gpu out, or take tree")
    if not sync.rules:
        return
    if (length := len(canonical_json(sync.body()))) > MOST_CHARACTERS:
        raise ValueError(
            f"its rules come to {length:,} characters, and a run keeps {MOST_CHARACTERS:,} at "
            "most; name many parameters with one pattern, and no owner twice"
        )
    from bamboo.planner.sync.builders import check_zones
    from bamboo.planner.sync.costs import check_plain, check_rows

    trained = [one for one in facts if one.trained]
    found = entries(sync, [one.name for one in trained]) if facts else {}
    for one in trained:
        entry = found[one.name]
        if FACTORS in (entry.exchange, entry.ship):
            check_plain(one)
        if ROWS in (entry.exchange, entry.ship):
            check_rows(one)
    for rule in sync.rules:
        beyond = [owner for owner in rule.owners if owner >= most_pipelines]
        if beyond:
            raise ValueError(
                f"the rule for {rule.match!r} has the owner {beyond[0]}, and the grid has "
                f"pipelines 0 to {most_pipelines - 1} at most"
            )
    if situation.pipelines > 1 and any(one.exchange == ZONED for one in found.values()):
        check_zones(replace(situation, zones=sync.zones))


def _check_whole(sync: Sync, facts: Sequence[ParameterFacts]) -> None:
    """Raises ValueError where rules leave trained parameters out, as those of a user's builder must
    not: it gets the facts of all."""
    left = unmatched(sync, [one.name for one in facts if one.trained])
    if left:
        more = ", ..." if len(left) > MOST_NAMED else ""
        raise ValueError(
            f"no rule of it matches {', '.join(left[:MOST_NAMED])}{more}; return a rule for each "
            "parameter that is trained"
        )
