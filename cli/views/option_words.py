"""What options of `cost JOB` say besides their figures, as text and in JSON: how often nodes are
taken and how that is known, what is left out, overheads, and warnings before a price is taken as
advice.

Rule: every rate that a figure was made with is named with its source; types with the same source
are grouped. All figures are known already.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from bamboo.planner.prices.auxiliary import Part, auxiliary_usd_per_hour
from bamboo.planner.prices.catalogue import Catalogue
from bamboo.planner.renting.credible import a_million
from bamboo.planner.renting.option import Option
from bamboo.planner.risks.hazards import LossRate
from bamboo.quantities import number, usd
from bamboo.study.costing import JobCost
from cli.echo import columns

NEWER = ("p5e", "p6", "g7e", "gr6")
"""Newer families of GPU instances that EC2 has."""


def rates(found: JobCost) -> dict[str, LossRate]:
    """Instance type -> its rate on spot, for the options that are shown."""
    shown = {row.line.instance_type for row in found.rows}
    offers = (one for one in found.offers.offers if one.name in shown)
    return {one.name: one.rate for one in offers if one.spot_usd_per_hour}


def market_words(found: JobCost) -> str:
    """`0.611 preemptions per node-hour, ...`."""
    asked = found.asked
    if asked.trace is not None:
        often = next(one.rate.per_node_hour for one in found.offers.offers)
        return (
            f"made up like {asked.trace.name}: {often:.3g} preemptions per node-hour, a lost node "
            f"back after {found.terms.back_s / 60:.3g} min"
        )
    at_once = "as many at once as in the published p3 trace"
    by_type = rates(found)
    if asked.hazard is not None:
        return f"{asked.hazard:.3g} preemptions per node-hour, {at_once}"
    by_source: dict[str, dict[str, LossRate]] = {}
    for name, rate in by_type.items():
        by_source.setdefault(rate.against or rate.source, {})[name] = rate
    parts = [f"{_by_rate(some)}, {source}" for source, some in by_source.items()]
    return f"preemptions per node-hour, {at_once}: " + ("; ".join(parts) or "on demand none")


def _by_rate(by_type: dict[str, LossRate]) -> str:
    """`0.461 on g4dn.xlarge, g5.2xlarge; 0.611 on g5.xlarge`."""
    names: dict[str, list[str]] = {}
    for name, rate in by_type.items():
        names.setdefault(f"{rate.per_node_hour:.3g}", []).append(name)
    return "; ".join(f"{rate} on {', '.join(some)}" for rate, some in names.items())


def not_considered(found: JobCost) -> str:
    """Which instances could not be compared, as a sentence; "" where none is known."""
    offers, catalogue = found.offers, found.offers.catalogue
    lacking = [one.name for one in offers.offers if not one.spot_usd_per_hour]
    parts = []
    if lacking:
        parts.append(f"on spot, without a price in the data: {_short(lacking)}")
    if offers.modelled and not found.asked.times.types and (newer := _newer(catalogue)):
        parts.append(f"at all, as the data lack them: {', '.join(newer)}")
    return f"Not considered {'; '.join(parts)}." if parts else ""


def _newer(catalogue: Catalogue) -> list[str]:
    """The families without a type in the catalogue."""
    there = {name.partition(".")[0] for name in catalogue.types}
    return [
        family
        for family in NEWER
        if family not in there and not any(one.startswith(f"{family}-") for one in there)
    ]


def _short(names: Iterable[str]) -> str:
    """`g5.16xlarge, .24xlarge and .48xlarge`: the family once."""
    sizes: dict[str, list[str]] = {}
    for name in names:
        family, _, size = name.partition(".")
        sizes.setdefault(family, []).append(size)
    return ", ".join(f"{family}.{'/'.join(some)}" for family, some in sizes.items())


def auxiliary_lines(parts: Sequence[Part]) -> list[str]:
    """A line for each part that costs anything, and their sum."""
    rows = [(part.name, usd(part.usd_per_hour), part.why) for part in parts if part.usd_per_hour]
    return [
        f"  besides the instances, modelled: {usd(auxiliary_usd_per_hour(parts))}/h",
        *columns(rows, indent=4, right=frozenset({1})),
    ]


def auxiliary_body(parts: Sequence[Part]) -> dict[str, Any]:
    """The same as JSON, with the parts that cost nothing."""
    return {
        "modelled": True,
        "usd_per_hour": auxiliary_usd_per_hour(parts),
        "parts": [
            {"name": part.name, "usd_per_hour": part.usd_per_hour, "why": part.why}
            for part in parts
        ],
    }


def advice(found: JobCost) -> list[str]:
    """Warnings about the options that are shown, as sentences."""
    notes = [kind.idle_gpus for kind in found.kinds() if kind.idle_gpus]
    notes += _alone(found)
    if found.offers.modelled:
        precision = found.job.train.precision
        notes += [gpu.times(precision) for gpu in found.gpus()]
        notes += _best_known(found)
    return notes


def _alone(found: JobCost) -> list[str]:
    if found.alone is None or not found.rows:
        return []
    alone, tokens = found.alone, found.job.tokens_per_sample
    best = _best(found)
    if best.plan.choice.grid.size == 1:
        return []
    return [
        f"The whole model fits one GPU: a single {alone.offer.name} on demand ({alone.offer.gpu}) "
        f"would come to {usd(1e6 / alone.samples_per_usd / (tokens or 1))} {a_million(tokens)}, "
        f"without a pipeline: {number(best.value / alone.samples_per_usd)} times what "
        f"{best.line.name} costs."
    ]


def _best_known(found: JobCost) -> list[str]:
    best = found.offers.best_known
    if best is None or not found.rows:
        return []
    tokens, option = found.job.tokens_per_sample, _best(found)
    return [
        f"Best known: {usd(best.usd_per_million(tokens))} {a_million(tokens)}, {best.source}, "
        f"as large runs are published to reach; {option.line.name} costs "
        f"{number(best.times(option))} times that."
    ]


def _best(found: JobCost) -> Option:
    """The option that is taken, or else the best value among all that a launch can rent."""
    if found.chosen.outcome is not None:
        return found.chosen.outcome.option
    return max((one for one in found.rows if one.launchable), key=lambda one: one.value)
