"""Random fleets whose steps scale as real ones do, and an autoscaler let loose on them.

Convex here: the step time t(k) is convex in the number of nodes, and the throughput 1 / t(k) is
concave up to where it is largest, so that each further node brings less than the one before. Four
families: what cannot be shared plus what can (Amdahl), the same plus a cost of each node, shared
work that falls with a power of k, and a cost that grows with the logarithm of k.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from bamboo.planner.fleet.autoscale import Resize, Scaling, decide, with_times
from bamboo.planner.fleet.fleet_size import Rule, Situation, Utility, best_size

STEPS = 10_000
STILL = 6
"""So many decisions in a row that change nothing: it has come to rest."""
AT_ONCE = 12
"""Steps between two decisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What became of one fleet."""

    rule: Rule
    best: int
    """By the rule, on the true curve."""
    found: int
    resizes: tuple[Resize, ...]

    @property
    def off(self) -> int:
        """Sizes between the one found and the best."""
        return abs(self.rule.sizes.index(self.found) - self.rule.sizes.index(self.best))


def curve(chance: random.Random) -> Callable[[int], float]:
    """Step time in seconds by nodes."""
    fixed_s = 10 ** chance.uniform(-2.2, 0)
    match chance.choice(("each", "amdahl", "power", "logarithm")):
        case "amdahl":
            return lambda k: fixed_s + 1 / k
        case "each":
            each_s = 10 ** chance.uniform(-5, -1.7)
            return lambda k: fixed_s + 1 / k + each_s * k
        case "power":
            power = chance.uniform(0.6, 1)
            return lambda k: fixed_s + k**-power
        case _:
            grows_s = 10 ** chance.uniform(-4, -1.9)
            return lambda k: fixed_s + 1 / k + grows_s * math.log2(k)


def sizes(chance: random.Random) -> tuple[int, ...]:
    """1, 2, 3, ... nodes, or whole pipelines."""
    if chance.random() < 0.5:
        return tuple(range(1, chance.randint(4, 32) + 1))
    stages = chance.choice((2, 4, 8))
    return tuple(stages * d for d in range(1, chance.randint(2, 12) + 1))


def play(seed: int, *, noise: float, utility: str = "none") -> Played:
    """Let it come to rest; `noise` is the standard deviation of the logarithm of a step time."""
    chance = random.Random(seed)
    step_s, able = curve(chance), sizes(chance)
    worth = chance.uniform(1, 50)
    deadline_s = STEPS * step_s(chance.choice(able))
    rule = Rule(
        sizes=able,
        batch=32,
        utility=Utility(kind=utility, usd=worth, deadline_s=deadline_s),
    )
    situation = Situation(at_s=0.0, passed_s=0.0, steps_left=STEPS, node_usd_per_hour=0.3)
    scaling, still = Scaling(nodes=chance.choice(able)), 0
    resizes: list[Resize] = []
    while still < STILL and len(resizes) < 100:
        took_s = [step_s(scaling.nodes) * math.exp(chance.gauss(0, noise)) for _ in range(AT_ONCE)]
        scaling = with_times(scaling, scaling.nodes, took_s)
        scaling, resize = decide(scaling, rule, situation, step=0)
        if resize is not None:
            resizes.append(resize)
            still = 0
        elif scaling.centres()[scaling.nodes].enough:
            still += 1
    return Played(
        rule=rule,
        best=best_size(rule, {k: step_s(k) for k in able}, situation),
        found=scaling.nodes,
        resizes=tuple(resizes),
    )
