"""Which fleet size is best where the step time at each size is known.

The rule is that of Or, Zhang and Freedman, "Resource Elasticity in Distributed Deep Learning",
MLSys 2020. With R(k) samples per second at k nodes, the next nodes are worth it while their
marginal value (dR/dk) / (R(k) / k) exceeds a threshold, or while finishing sooner is worth more
dollars to the user than the larger fleet adds. The best size is the smallest at which no next nodes
are worth it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bamboo.errors import CoreMisuse
from bamboo.value import samples_per_s, usd_per_hour

UTILITIES = ("none", "linear", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Utility:
    """What finishing is worth, in US dollars. `step`: `usd` until the deadline and nothing after
    it; `linear`: `usd` at once, falling to nothing at the deadline; `none`: nothing."""

    kind: str = "none"
    usd: float = 0.0
    deadline_s: float = 0.0
    """Seconds after the start of the run; time between its parts does not count."""

    def at(self, finish_s: float) -> float:
        """The worth of finishing `finish_s` after the start."""
        if self.kind == "none" or finish_s > self.deadline_s:
            return 0.0
        return self.usd if self.kind == "step" else self.usd * (1 - finish_s / self.deadline_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What does not change during a run. Raises CoreMisuse for impossible sizes."""

    sizes: tuple[int, ...]
    """Nodes that the run may have and pays for, ascending, standbys included."""
    batch: int
    """Samples in a step."""
    marginal: float = 0.1
    utility: Utility = field(default_factory=Utility)

    def __post_init__(self) -> None:
        ascending = all(0 < a < b for a, b in zip((0.5, *self.sizes), self.sizes, strict=False))
        if not self.sizes or not ascending:
            raise CoreMisuse(f"fleet sizes {self.sizes} are not ascending numbers of nodes")

    def samples_per_s(self, step_s: float) -> float:
        return samples_per_s(self.batch, step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The present state of a run."""

    at_s: float
    """Unix time."""
    passed_s: float
    """Seconds since the start of the run, as its deadline counts: the sum over all its parts."""
    steps_left: int
    node_usd_per_hour: float
    spent_usd: float = 0.0
    max_usd: float = 0.0
    """The limit of [budget]; 0: no limit."""


def best_size(rule: Rule, step_s: Mapping[int, float], situation: Situation) -> int:
    """The smallest size at which no next nodes are worth it, of those with a known step time."""
    sizes = [size for size in rule.sizes if size in step_s]
    net = [net_usd(rule, situation, size, step_s[size]) for size in sizes]
    for at, size in enumerate(sizes[:-1]):
        worth = marginal_value(rule, step_s, size, sizes[at + 1]) > rule.marginal
        if not worth and not max(net[at + 1 :]) > net[at]:
            return size
    return sizes[-1]


def marginal_value(rule: Rule, step_s: Mapping[int, float], size: int, after: int) -> float:
    """(dR/dk) / (R(k) / k) from one size to the next."""
    rate, rate_after = rule.samples_per_s(step_s[size]), rule.samples_per_s(step_s[after])
    return (rate_after - rate) / (after - size) / (rate / size)


def net_usd(rule: Rule, situation: Situation, nodes: int, step_s: float) -> float:
    """What finishing at this size is worth beyond the dollars until then. Without a utility only
    the marginal value counts, and this is the same for all sizes."""
    if rule.utility.kind == "none":
        return 0.0
    left_s = situation.steps_left * step_s
    return rule.utility.at(situation.passed_s + left_s) - usd_of(situation, nodes, left_s)


def usd_of(situation: Situation, nodes: int, seconds: float) -> float:
    """The cost of `nodes` nodes for `seconds`."""
    return usd_per_hour([situation.node_usd_per_hour] * nodes) * seconds / 3600
