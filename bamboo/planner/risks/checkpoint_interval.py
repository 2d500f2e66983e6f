"""How often to write a checkpoint: the one formula, for our default and for other systems.

Rule: pure. Losses are taken to be independent, with a known mean time between them, and each
counted loss costs the work since the newest checkpoint.
"""

from math import inf, sqrt

from bamboo.errors import CoreMisuse


def best_interval_s(*, cost_s: float, between_losses_s: float) -> float:
    """Seconds of work between two checkpoints that lose the least time in total.

    `cost_s`: time for which training stops for one checkpoint; `between_losses_s`: mean time
    between two losses that need one, inf if there are none. The result is 0 if a checkpoint costs
    nothing, inf if none is needed. Raises CoreMisuse for a negative cost, or for a mean time that
    is not above 0.

    Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart
    dumps, FGCS 22 (2006), equation 37; its first term is that of J. W. Young, CACM 17 (1974).
    """
    if cost_s < 0 or not between_losses_s > 0:
        raise CoreMisuse(
            f"a checkpoint of {cost_s:g} s against a loss every {between_losses_s:g} s has no best "
            "interval: the cost must be 0 or more, and the distance above 0"
        )
    if between_losses_s == inf:
        return inf
    if cost_s >= 2 * between_losses_s:
        return between_losses_s
    share = cost_s / (2 * between_losses_s)
    young_s = sqrt(2 * cost_s * between_losses_s)
    return young_s * (1 + sqrt(share) / 3 + share / 9) - cost_s


def best_interval_steps(*, cost_s: float, between_losses_s: float, step_s: float) -> int:
    """The same in whole steps, at least one; 0: none are needed."""
    interval_s = best_interval_s(cost_s=cost_s, between_losses_s=between_losses_s)
    return 0 if interval_s == inf else max(1, round(interval_s / step_s))
