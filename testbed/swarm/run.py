"""Plays one seed or one scenario: green, or the checker that failed, with its time and reason.

Rule: a failed assertion, a misuse or any other error of the core counts as a finding, because in
production it would end the process.
"""

import traceback
from dataclasses import dataclass

from bamboo.core.state import Phase
from bamboo.errors import CoreMisuse, InputError
from testbed.swarm.cluster import Cluster
from testbed.swarm.draw import draw
from testbed.swarm.faults import KINDS
from testbed.swarm.red import Red
from testbed.swarm.scenario import Scenario, from_text

AFTER_S = 120.0
"""Time of a world beyond what its steps need, after it has healed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a play."""

    seed: int
    checker: str = ""
    """The checker that failed; empty: green."""
    at_s: float = 0.0
    sentence: str = ""
    outcome: str = ""
    """The outcome of the run."""
    events: int = 0
    """Number of requested decisions."""
    where: str = ""
    """For an error: where it was raised."""

    @property
    def green(self) -> bool:
        return not self.checker


def play(scenario: Scenario) -> Verdict:
    """Play one scenario to its end, or to the first checker that fails."""
    world = Cluster(scenario)
    at_most_s = scenario.heal_s + AFTER_S + 6 * scenario.steps * scenario.step_s
    found: tuple[str, str, str] = ("", "", "")
    try:
        world.agenda.run(until_s=at_most_s, over=lambda: world.is_over)
        world.checkers.over(world.log.state)
    except Red as red:
        found = red.checker, red.sentence, ""
    except (
        CoreMisuse,
        AssertionError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
        found = type(error).__name__, str(error), where
    state = world.log.state
    return Verdict(
        seed=scenario.seed,
        checker=found[0],
        at_s=round(world.now_s, 3),
        sentence=found[1],
        outcome=str(state.outcome) if state.phase is Phase.FINISHED else "",
        events=world.log.asked,
        where=found[2],
    )


def play_seed(seed: int) -> Verdict:
    """Play the scenario of a seed."""
    return play(draw(seed))


def replay(text: str) -> Verdict:
    """Play the scenario of a text. Raises InputError for a line that cannot be parsed."""
    scenario = from_text(text)
    for fault in scenario.faults:
        if fault.kind not in KINDS:
            raise InputError(f"fault {fault.kind!r} is none of {', '.join(sorted(KINDS))}")
    return play(scenario)
