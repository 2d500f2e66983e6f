"""Which runs of one market can be compared: those with the same work, or the same duration.

Rule: value is a rate, and rates over different hours of a market cannot be compared. A run that
ended early for another reason than finished work is compared with none.
"""

from collections.abc import Mapping, Sequence

from bamboo.sim.run import Figures

HOUR_S = 3600.0


def why_no_ratio(ours: Figures, other: Figures, *, last_step: float) -> str:
    """Why a run cannot be compared with another one of the same market; "" if it can."""
    for one, who in ((ours, "bamboo"), (other, "it")):
        if one.ended and one.steps < last_step:
            return f"{who} ended after {one.seconds / HOUR_S:.3g} h: {one.ended}"
    done = [one.steps >= last_step for one in (ours, other)]
    if all(done) or not any(done):
        return ""
    late, who = (other, "it") if done[0] else (ours, "bamboo")
    return (
        f"{who} did {late.steps:,} of the {last_step:,.0f} steps by the end; give more --hours, or "
        "--endless"
    )


def no_ratio(
    found: Sequence[Mapping[str, Figures]], name: str, *, ours: str, last_step: float
) -> str:
    """The same over many seeds: the first reason, and the number of runs that have one."""
    whys = [why_no_ratio(one[ours], one[name], last_step=last_step) for one in found]
    said = [why for why in whys if why]
    if not said or name == ours:
        return ""
    return said[0] if len(found) == 1 else f"in {len(said)} of {len(found)} runs: {said[0]}"
