"""The progress of training, as a function of time that is linear between two changes.

Rule: nothing happens per step. The rate changes when the membership does; in between, the step at a
time and the time of a step are computed.
"""

import math
from collections import deque
from collections.abc import Callable

from bamboo.errors import CoreMisuse
from bamboo.sim.kernel import Kernel

NEARLY = 1e-6
"""Part of a step: a step this close to its end is done, whatever the rounding."""
REMEMBERED = 64
"""Number of remembered changes; a query for an earlier time gets the oldest."""


class Progress:
    """Steps of one run. There is no progress until a rate is given."""

    def __init__(self, kernel: Kernel, *, last_step: float = math.inf) -> None:
        self._kernel = kernel
        self._last_step = last_step
        self._steps = 0.0
        self._since_s = 0.0
        self._step_s = math.inf
        self._stands_until_s = 0.0
        """The latest of all delays. Below: the delay of all pipelines, and of each one."""
        self._all_until_s = 0.0
        self._until_s: dict[int, float] = {}
        self._past: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)
        """(time, steps) of changes; the progress is linear between two of them."""
        self.lost_steps = 0.0
        """Steps that were taken and then undone by a restore."""
        self._trained_s = 0.0
        self.changed: Callable[[], None] = lambda: None

    @property
    def steps(self) -> float:
        """Present steps, including the part of the step in progress."""
        return self._at(self._kernel.now_s)

    @property
    def whole(self) -> int:
        """Finished steps."""
        return math.floor(self.steps + NEARLY)

    @property
    def step_s(self) -> float:
        """Present step time; infinite while training stands still."""
        return math.inf if self._kernel.now_s < self._stands_until_s else self._step_s

    @property
    def straight_since_s(self) -> float:
        """When the pace last changed."""
        return max(self._since_s, self._stands_until_s)

    @property
    def trained_s(self) -> float:
        """Seconds in which training did not stand still."""
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
        """Steps that were done at a past time, including those that were lost since."""
        after_s, after = self._kernel.now_s, self.steps
        for time_s, steps in (*self._corners(after_s), *reversed(self._past)):
            if time_s <= at_s:
                part = (at_s - time_s) / (after_s - time_s) if after_s > time_s else 1.0
                return steps + min(1.0, part) * (after - steps)
            after_s, after = time_s, steps
        return after

    def _corners(self, now_s: float) -> list[tuple[float, float]]:
        """The corners of the progress since the last change, the latest first."""
        begins = [(self._since_s, self._steps)]
        if self._since_s < self._stands_until_s < now_s:
            begins.insert(0, (self._stands_until_s, self._steps))
        return begins

    def run(self, step_s: float) -> None:
        """A step takes `step_s` from now on; the rest of the present one takes its proportion."""
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
        """A pipeline (None: all together) needs `seconds` more before it continues; a delay that it
        already has grows by that. Delays of different pipelines run in parallel. All pipelines wait
        for the last one, because they meet at the end of the step."""
        if of is None:
            until_s = max(self._kernel.now_s, self._stands_until_s) + seconds
            self._all_until_s = until_s
        else:
            own_s = max(self._all_until_s, self._until_s.get(of, 0.0))
            until_s = max(self._kernel.now_s, own_s) + seconds
            self._until_s[of] = until_s
        self._stand_until(until_s)

    def pause(self, seconds: float) -> None:
        """No work is done for at least `seconds` from now, in parallel to all delays."""
        self._stand_until(self._kernel.now_s + seconds)

    def _stand_until(self, at_s: float) -> None:
        self._settle()
        self._stands_until_s = max(self._stands_until_s, at_s)
        self.changed()

    def back_to(self, step: float) -> None:
        """A restore: training continues from `step`. Steps beyond it are lost; the part of the
        present step does not count."""
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
        # Through rounding, a step that is not quite done may end before now.
        return max(self._kernel.now_s, max(self._since_s, self._stands_until_s) + left_s)
