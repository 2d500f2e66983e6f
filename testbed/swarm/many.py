"""Many seeds, on all cores, in order.

Rule: the findings do not depend on the number of processes.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from bamboo.sim.processes import cores, in_order
from testbed.swarm.run import Verdict, play_seed

PORTION = 50
"""Seeds that a process plays at a time."""


@dataclass(slots=True)
class Tally:
    """The results of a number of seeds, up to the first that is not green."""

    seeds: int = 0
    events: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    """Outcomes of the played runs."""
    red: Verdict | None = None

    def add(self, verdict: Verdict) -> None:
        """Add one verdict."""
        self.seeds += 1
        self.events += verdict.events
        if verdict.green:
            self.outcomes[verdict.outcome] += 1
        else:
            self.red = verdict


def play_portion(seeds: range) -> Tally:
    """Some seeds, up to the first that is not green."""
    tally = Tally()
    for seed in seeds:
        tally.add(play_seed(seed))
        if tally.red is not None:
            break
    return tally


def play_many(seeds: range, *, processes: int = 0) -> Iterator[Tally]:
    """Portions of `seeds`, in order, up to the first with a seed that is not green. On all cores,
    or on `processes` processes. Raises ProcessLost."""
    portions = (seeds[at : at + PORTION] for at in range(0, len(seeds), PORTION))
    workers = min(processes or cores(), -(-len(seeds) // PORTION))
    for tally in in_order(play_portion, portions, processes=workers):
        yield tally
        if tally.red is not None:
            return
