"""Warnings before a price is taken as advice: GPUs that are paid and idle, a single GPU that would
do, and arithmetic that others do not use.

Rule: sentences on figures that are known already, each with its source.
"""

from bamboo.planner.renting.option import Option
from bamboo.quantities import number, usd
from bamboo.study.costing import JobCost


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
    alone, context = found.alone, found.job.model.context
    best = _best(found)
    if best.plan.choice.grid.size == 1:
        return []
    return [
        f"The whole model fits one GPU: a single {alone.offer.name} on demand ({alone.offer.gpu}) "
        f"would come to {usd(1e6 / alone.samples_per_usd / context)} a million tokens, without a "
        f"pipeline: {number(best.value / alone.samples_per_usd)} times what {best.line.name} costs."
    ]


def _best_known(found: JobCost) -> list[str]:
    best = found.offers.best_known
    if best is None or not found.rows:
        return []
    context, option = found.job.model.context, _best(found)
    return [
        f"Best known: {usd(best.usd_per_million(context))} a million tokens, {best.source}, "
        f"as large runs are published to reach; {option.line.name} costs "
        f"{number(best.times(option))} times that."
    ]


def _best(found: JobCost) -> Option:
    """The option that is taken, or else the best value among all that a launch can rent."""
    if found.chosen.outcome is not None:
        return found.chosen.outcome.option
    return max((one for one in found.rows if one.launchable), key=lambda one: one.value)
