"""How far training has come, as a function of time that is straight between two changes.

Rule: nothing happens per step. The rate changes when the membership does; in between, the step at
an instant and the instant of a step are computed.
"""

import math
from collections import deque
from collections.abc import Callable

from bamboo.errors import CoreMisuse
from bamboo.sim.kernel import Kernel

NEARLY = 1e-6
"""Of a step: so near to its end it is done, whatever the rounding."""
REMEMBERED = 64
"""So many of the last changes; who asks for an instant before them is told of the oldest."""


class Progress:
    """Steps of one run. It stands still until a rate is given."""

    def __init__(self, kernel: Kernel, *, last_step: float = math.inf) -> None:
        self._kernel = kernel
        self._last_step = last_step
        self._steps = 0.0
        self._since_s = 0.0
        self._step_s = math.inf
        self._stands_until_s = 0.0
        """The latest of all delays; of them, those of everybody and of each pipeline:"""
        self._all_until_s = 0.0
        self._until_s: dict[int, float] = {}
        self._past: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)
        """(time, steps), between which it was straight."""
        self.lost_steps = 0.0
        """Taken, and then taken back by a restore."""
        self._trained_s = 0.0
        self.changed: Callable[[], None] = lambda: None

    @property
    def steps(self) -> float:
        """Of now, the part of the step in hand included."""
        return self._at(self._kernel.now_s)

    @property
    def whole(self) -> int:
        """Steps that are done."""
        return math.floor(self.steps + NEARLY)

    @property
    def step_s(self) -> float:
        """Of now; infinite while it stands still."""
        return math.inf if self._kernel.now_s < self._stands_until_s else self._step_s

    @property
    def straight_since_s(self) -> float:
        """When its pace was last another one."""
        return max(self._since_s, self._stands_until_s)

    @property
    def trained_s(self) -> float:
        """In which it did not stand still."""
        self._settle()
        return self._trained_s

    def _at(self, now_s: float) -> float:
        ran_s = max(0.0, now_s - max(self._since_s, self._stands_until_s))
        return min(self._last_step, self._steps + ran_s / self._step_s)

    def _settle(self) -> None:
        now_s = self._kernel.now_s
        if not math.isinf(self._step_s):
            self._trained_s += max(0.0, now_s - max(self._since_s, self._stands_until_s))
        if now_s > self._since_s:
            self._past.extend(reversed(self._corners(now_s)))
        self._steps = self._at(now_s)
        self._since_s = now_s

    def was(self, at_s: float) -> float:
        """Steps that were done at an instant that has passed, also those that were lost since."""
        after_s, after = self._kernel.now_s, self.steps
        for time_s, steps in (*self._corners(after_s), *reversed(self._past)):
            if time_s <= at_s:
                part = (at_s - time_s) / (after_s - time_s) if after_s > time_s else 1.0
                return steps + min(1.0, part) * (after - steps)
            after_s, after = time_s, steps
        return after

    def _corners(self, now_s: float) -> list[tuple[float, float]]:
        """Of what has been so since the last change, the latest first."""
        begins = [(self._since_s, self._steps)]
        if self._since_s < self._stands_until_s < now_s:
            begins.insert(0, (self._stands_until_s, self._steps))
        return begins

    def run(self, step_s: float) -> None:
        """A step takes `step_s` from now on (what is left of this one in proportion)."""
        if not step_s > 0:
            raise CoreMisuse(f"a step cannot take {step_s} s")
        if step_s == self._step_s:
            return
        self._settle()
        self._step_s = step_s
        self.changed()

    def stand(self) -> None:
        """No step is taken until a rate is given again."""
        self.run(math.inf)

    def delay(self, seconds: float, *, of: int | None = None) -> None:
        """A pipeline (None: all together) needs so long before it goes on; what it still has before
        it is prolonged. Those of different pipelines pass beside one another, and all stand until
        the last one goes on, as they meet at the end of the step."""
        if of is None:
            until_s = max(self._kernel.now_s, self._stands_until_s) + seconds
            self._all_until_s = until_s
        else:
            own_s = max(self._all_until_s, self._until_s.get(of, 0.0))
            until_s = max(self._kernel.now_s, own_s) + seconds
            self._until_s[of] = until_s
        self._stand_until(until_s)

    def pause(self, seconds: float) -> None:
        """Nothing is done for so long from now at least: beside whatever delays there are."""
        self._stand_until(self._kernel.now_s + seconds)

    def _stand_until(self, at_s: float) -> None:
        self._settle()
        self._stands_until_s = max(self._stands_until_s, at_s)
        self.changed()

    def back_to(self, step: float) -> None:
        """A restore: training goes on from `step`. What was done beyond is lost, the part of a
        step in hand not counted."""
        self._settle()
        self.lost_steps += max(0, math.floor(self._steps + NEARLY) - math.floor(step + NEARLY))
        self._past.append((self._since_s, self._steps))
        self._steps = min(self._steps, step)
        self.changed()

    def reaches_at_s(self, step: float) -> float:
        """When `step` steps are done if nothing changes; infinite if never."""
        if self.steps >= step:
            return self._kernel.now_s
        if math.isinf(self._step_s) or step > self._last_step:
            return math.inf
        left_s = (step - self._steps) * self._step_s
        # By rounding a step that is not quite done may end before now.
        return max(self._kernel.now_s, max(self._since_s, self._stands_until_s) + left_s)
