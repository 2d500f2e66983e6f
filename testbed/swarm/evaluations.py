"""Evaluations of a world: what each of them gives, and how the nodes do them.

Rule: a value follows from seed and step alone, as that of a real evaluation follows from the state
there. So it is known beforehand after which step evaluations end a run, whatever is lost.
"""

import random
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from bamboo.core.events import EvaluationDone
from testbed.swarm.copies import Copy
from testbed.swarm.scenario import Scenario

if TYPE_CHECKING:
    from testbed.swarm.member import Member
    from testbed.swarm.plane import Row

NOT_FINITE = 0.1
"""Share of the evaluations whose value is no number."""


def is_before(scenario: Scenario, step: int) -> bool:
    """Whether there is an evaluation before this step."""
    return scenario.eval_every > 0 and step > 0 and step % scenario.eval_every == 0


def value(scenario: Scenario, step: int) -> float | None:
    """What the evaluation before `step` gives."""
    rng = random.Random(f"{scenario.seed} evaluation {step}")
    return None if rng.random() < NOT_FINITE else round(rng.random(), 3)


@lru_cache(maxsize=1024)
def last_step(seed: int, steps: int, every: int, patience: int) -> int:
    """The last step that a calm run trains."""
    scenario = Scenario(seed=seed, eval_every=every)
    best, worse = None, 0
    for step in range(every, steps, every) if every and patience else ():
        found = value(scenario, step)
        if found is not None and (best is None or found < best):
            best, worse = found, 0
            continue
        worse += 1
        if worse == patience:
            return step - 1
    return steps - 1


def last_step_of(scenario: Scenario) -> int:
    """The last step that a calm run of this world trains."""
    return last_step(scenario.seed, scenario.steps, scenario.eval_every, scenario.eval_patience)


def done_before(scenario: Scenario) -> list[tuple[int, float]]:
    """The evaluations of the parts of a run before the one that is played."""
    steps = range(1, scenario.resume_step + 1)
    found = [(s, value(scenario, s)) for s in steps if is_before(scenario, s)]
    return [(step, float("nan") if one is None else one) for step, one in found]


def evaluates(member: "Member", copy: Copy) -> bool:
    """Whether a slot's step begins only after an evaluation that its owner has not read of."""
    scenario, evaluated = member.world.scenario, member.view.evaluated
    left = copy.step <= member.last_step or member.last_step == scenario.steps - 1
    unread = evaluated is None or evaluated.step < copy.step
    return left and unread and is_before(scenario, copy.step)


def evaluate(rows: "Iterable[Row]") -> None:
    """All slots stand before one step: some go on with its evaluation. When all are through, the
    owner of the last stage of pipeline 0 reports it."""
    rows = list(rows)
    for row in rows:
        member, copy = row.owner, row.copy
        if evaluates(member, copy) and member.may_evaluate(copy) and member.world.chance(0.6):
            copy.evaluated = copy.step
    if any(row.copy.evaluated != row.copy.step for row in rows):
        return
    last = max((row for row in rows if not row.slot.pipeline), key=lambda row: row.slot.stage)
    member, copy = last.owner, last.copy
    if copy.told != copy.step and evaluates(member, copy) and member.may_evaluate(copy):
        copy.told = copy.step
        found = value(member.world.scenario, copy.step)
        event = EvaluationDone(node=member.node, step=copy.step, value=found, seconds=0.5)
        member.say(event)
