"""Which option of a job is advised, or why none is.

Rule: pure; `bamboo.planner.renting.credible` says what speaks against an option.
"""

from collections.abc import Callable, Sequence

from bamboo.config.tree import JobConfig
from bamboo.planner.renting.chosen import Chosen, Outcome, choose
from bamboo.planner.renting.credible import BestKnown
from bamboo.planner.renting.option import Option, Options


def advised(
    found: Sequence[Outcome],
    table: Options,
    doubt: Callable[[Option], str],
    *,
    hopeless: str,
    deadline_h: float,
    budget_usd: float,
) -> Chosen:
    """Choose among the options that were played. `doubt` gives what speaks against an option.
    `hopeless` says what speaks against all of them, where none was looked at closely."""
    able = [one for one in found if one.option.launchable]
    hopeful = [one for one in able if not doubt(one.option)]
    if able and not hopeful:
        best = max((one.option for one in able), key=lambda option: option.value)
        return Chosen(outcome=None, why=f"No sensible way found, because {doubt(best)}.")
    if found:
        return choose(hopeful, deadline_h=deadline_h, budget_usd=budget_usd)
    if hopeless:
        return Chosen(outcome=None, why=f"No sensible way found, because {hopeless}.")
    return Chosen(
        outcome=None,
        why=f"Not enough: no plan that fits is done within {deadline_h:g} h; none takes less than "
        f"{table.least_hours:.3g} h, whatever it costs, so allow for more hours or --max-nodes.",
    )


def hopeless_of(job: JobConfig, table: Options, best: BestKnown | None) -> str:
    """Why no option was looked at closely, though plans fit; "" where one was."""
    if best is None or table.found or not table.behind:
        return ""
    line, value = max(table.behind, key=lambda one: one[1])
    return best.doubt_at_most(line.name, value, tokens_per_sample=job.tokens_per_sample)
