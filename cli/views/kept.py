"""One line on the checkpoints of a plan: how often, why, and what they cost."""

from bamboo.core.phrases import size
from bamboo.planner.checkpoint_cost import AUTO_LEAST_S
from bamboo.quantities import count, duration, usd
from bamboo.study.intervals import Kept
from cli.views.columns import paragraph


def kept_lines(kept: Kept | None) -> list[str]:
    """As a paragraph; none where the time of a step is unknown."""
    return [] if kept is None else paragraph(kept_sentence(kept))


def kept_sentence(kept: Kept) -> str:
    """Interval, reason, and cost in time, bytes and dollars."""
    if not kept.every_steps and not kept.planned:
        return "no periodic checkpoint, as the job says"
    if not kept.every_steps:
        return (
            f"no periodic checkpoint: all steps take {duration(kept.run_s)}, and a run of "
            f"{duration(AUTO_LEAST_S)} or less has none unless its job says so"
        )
    why = "as the job says"
    if kept.planned:
        why = (
            "by the formula of Young and Daly over "
            f"{kept.fatal_per_hour:.2g} fatal losses an hour, modelled, and once an hour at least"
        )
    price = f" at {usd(kept.usd_per_hour)}/h with the requests" if kept.bucket else ""
    return (
        f"a checkpoint every {count(kept.every_steps, 'step')} ({duration(kept.every_s)}), {why}: "
        f"{100 * kept.share:.2g} % of the time, {size(round(kept.stored_bytes))} kept{price}"
    )
