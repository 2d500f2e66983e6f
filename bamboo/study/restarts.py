"""What rival ways to use a market are charged for a restart, as the command line gives it.

--restart-s checkpoint-restart=300 --restart-s rerouting=10
"""

import math
from collections.abc import Mapping, Sequence

from bamboo.errors import InputError
from bamboo.sim.ways import SHORT


def restarts_of(given: Sequence[str], *, rivals: bool) -> Mapping[str, float]:
    """Seconds by the name of the way. Raises InputError for a wrong value, or one that has no
    effect."""
    found: dict[str, float] = {}
    for one in given:
        kind, _, figure = one.partition("=")
        try:
            seconds = float(figure)
        except ValueError:
            seconds = math.nan
        if kind not in SHORT or not 0 <= seconds < math.inf:
            raise InputError(
                f"--restart-s {one} is no restart; give one of {', '.join(SHORT)} and seconds, "
                "such as checkpoint-restart=300"
            )
        if SHORT[kind] in found:
            raise InputError(f"--restart-s {one}: {kind} is given twice; give it once")
        found[SHORT[kind]] = seconds
    if found and not rivals:
        raise InputError(f"--restart-s {given[0]} is of another way; give --rivals too")
    return found
