"""The strategies that a run may try: the best by the model, and those that would be better if some
node were slower than the model says.

Rule: pure. Features of nodes and links have their numbers in their names (`features`), so that a
search learns which of them is slow.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bamboo.errors import InputError
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.builders import BOUNDS, BUILDERS, Group, Pricing, build, sync_from
from bamboo.planner.sync.features import named_features
from bamboo.planner.sync.price import price
from bamboo.planner.sync.resolved import Resolved, fits, resolve
from bamboo.planner.sync.search import search, space_of
from bamboo.planner.sync.situation import Situation
from bamboo.quantities import size
from bamboo.topology.sync import FACTORS, OWNER, ROWS, TREE, Sync, SyncEntry, entry_of

EVALUATIONS = 300
"""Strategies that are priced to find the best one."""
MOST = 96
"""The most candidates with which a search begins."""
WORSE = 4.0
"""A candidate's price is at most so many times the best one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A strategy that could be tried."""

    hash: str
    words: str
    """What it is, for the sentence of a proposal."""
    price_s: float
    features: Mapping[str, float]
    sync: Sync
    resolved: Resolved | None = None
    """On the grid of its search; None: it can be priced in no other situation."""

    def fits(self, facts: Sequence[ParameterFacts]) -> bool:
        """Whether nodes have the memory for it, as far as it is known."""
        return self.resolved is None or fits(self.resolved, facts)


def proposed(
    sync: Sync, words: str, facts: Sequence[ParameterFacts], situation: Situation
) -> Candidate:
    """A strategy as a candidate. Raises ValueError as `resolve` does."""
    resolved = resolve(sync, facts, situation)
    return Candidate(
        hash=sync.hash(),
        words=words,
        price_s=max(price(resolved).step_s, 1e-9),
        features=named_features(resolved),
        sync=sync,
        resolved=resolved,
    )


def candidates(
    facts: Sequence[ParameterFacts], situation: Situation, *, now: Sync, now_words: str
) -> list[Candidate]:
    """The run's strategy, and the best others by price."""
    trained = [one for one in facts if one.trained]
    found: dict[str, Candidate] = {}
    for sync, words in _strategies(trained, situation, now, now_words):
        if sync.hash() in found:
            continue
        try:
            found[sync.hash()] = proposed(sync, words, trained, situation)
        except ValueError:  # a rule of the user's that matches nothing on this model
            continue
        if sync != now and not found[sync.hash()].fits(trained):
            del found[sync.hash()]
    best_s = min(one.price_s for one in found.values())
    kept = [x for x in found.values() if x.price_s <= WORSE * best_s or x.hash == now.hash()]
    kept.sort(key=lambda one: (one.hash != now.hash(), one.price_s))
    return kept[:MOST]


def neighbours(facts: Sequence[ParameterFacts], situation: Situation, of: Sync) -> list[Candidate]:
    """The strategies that differ from this one in one group of parameters."""
    trained = [one for one in facts if one.trained]
    entries = {one.name: entry_of(of, one.name) for one in trained}
    space = space_of(trained, situation, bounds=(None, 0))
    found: dict[str, Candidate] = {}
    for group, options in zip(space.groups, space.options, strict=True):
        for option in options:
            changed = {**entries, **{one.name: option for one in group}}
            sync = sync_from(changed, zones=situation.zones, bucket=of.bucket)
            words = f"the fastest so far with {_changed(group, option, situation)}"
            found[sync.hash()] = proposed(sync, words, trained, situation)
    return [one for one in found.values() if one.fits(trained)]


def _strategies(
    facts: Sequence[ParameterFacts], situation: Situation, now: Sync, now_words: str
) -> Iterable[tuple[Sync, str]]:
    """Strategies with a few words for each; some come twice."""
    yield now, now_words
    for name in BUILDERS:
        try:
            yield build(name, facts, situation), f"`{name}`"
        except InputError:
            continue
    pricing = Pricing(facts, situation)
    best = search(facts, situation, evaluations=EVALUATIONS).best.entries
    yield pricing.sync(pricing.priced(best)), "the best on paper"
    tree = SyncEntry()
    pipelines = range(situation.pipelines) if situation.pipelines > 1 else ()
    for without in pipelines:
        for kinds in ((), (FACTORS,), (ROWS,), (FACTORS, ROWS)):
            sync = _spared(facts, situation, without, best, kinds)
            words = f"what does not go by {' or '.join(kinds)}" if kinds else "each parameter"
            yield sync, f"{words} by an owner other than pipeline {without}"
    for owner in pipelines:
        summed = SyncEntry(exchange=OWNER, owner=owner)
        for base, words in ((best, "the best on paper"), ({}, "`tree`")):
            entries = {
                one.name: summed if base.get(one.name, tree).exchange == TREE else base[one.name]
                for one in pricing.facts
            }
            said = f"{words} with pipeline {owner} for what goes by `tree`"
            yield pricing.sync(pricing.priced(entries)), said
    for bound in BOUNDS if situation.pipelines > 1 else ():
        yield sync_from({}, bucket=bound), f"`tree` with {_buckets(bound)}"
    space = space_of(pricing.facts, situation, bounds=(None,))
    for group, options in zip(space.groups, space.options, strict=True):
        for option in options:
            entries = {**best, **{one.name: option for one in group}}
            words = f"the best on paper with {_changed(group, option, situation)}"
            yield pricing.sync(pricing.priced(entries)), words


def _changed(group: Group, option: SyncEntry, situation: Situation) -> str:
    """As "2.weight and 1 alike by `factors` and shipped by `dense`", without what is not sent."""
    more = f" and {len(group) - 1} alike" if len(group) > 1 else ""
    exchange = f"pipeline {option.owner}" if option.exchange == OWNER else f"`{option.exchange}`"
    ways = [f"by {exchange}"] if situation.pipelines > 1 else []
    ways += [f"shipped by `{option.ship}`"] if situation.replica else []
    bound = "" if option.bucket is None else f", with {_buckets(option.bucket)}"
    return f"{group[0].name}{more} {' and '.join(ways)}{bound}"


def _buckets(bound: int | None) -> str:
    if bound is None:
        return "one bucket"
    return f"buckets of {size(bound)}" if bound else "a bucket for each layer"


def _spared(
    facts: Sequence[ParameterFacts],
    situation: Situation,
    without: int,
    best: Mapping[str, SyncEntry],
    kept: Collection[str],
) -> Sync:
    """A strategy by which the pipeline `without` sums nothing. Each parameter goes by `owner`, the
    largest first, to the other pipeline that has the fewest bytes of its stage so far. Those that
    have an exchange in `kept` in `best` stay as they are there."""
    others = [pipeline for pipeline in range(situation.pipelines) if pipeline != without]
    loads = [dict.fromkeys(others, 0) for _ in range(situation.stages)]
    entries = {}
    for one in sorted(facts, key=lambda one: (-one.bytes, one.name)):
        if (entry := best.get(one.name, SyncEntry())).exchange in kept:
            entries[one.name] = entry
            continue
        own = loads[situation.stage_of(one.layer)]
        least = min(own, key=own.__getitem__)
        own[least] += one.bytes
        entries[one.name] = SyncEntry(exchange=OWNER, ship=entry.ship, owner=least)
    return sync_from(entries)
