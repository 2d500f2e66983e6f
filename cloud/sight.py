"""What the fleet of a run sees of its cloud, corrected by what the cloud has answered.

Rule: a list may lag behind, so a new instance must not be started twice, nor an ended one counted.
A wish whose answer was not read stays open until its result is shown. An instance has ended only
when that is shown: a cloud that does not know it may not know it yet, and an accepted end may have
no effect.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from bamboo.ids import InstanceId, RunId
from cloud.intents import Earlier
from cloud.provider import Held, InstanceState, Launched, LaunchSpec, Observed, Provider

SHOWN_WITHIN_S = 30.0
"""A new instance may be missing from what the cloud shows for so long."""
OPEN_S = 2 * SHOWN_WITHIN_S
"""After so long the result of a wish is shown, even if the call itself took its whole time."""
END_AGAIN_S = 60.0
"""An instance that is still live so long after the cloud accepted its end is ended again."""
UNKNOWN_AGAIN_S = 2.0
"""An unknown instance is ended again after so long, while it may still show up."""


class Sight:
    """The instances of a run and the wishes under way; `now` is Unix time."""

    def __init__(
        self, provider: Provider, *, run: RunId, earlier: Earlier, now: Callable[[], float]
    ) -> None:
        self._provider = provider
        self._run = run
        self._now = now
        self.live = 0
        """How many of the wanted instances were live at the last look."""
        self.wanted: list[Observed] = []
        """These instances."""
        self.unwanted = set(earlier.ended)
        self._ended_s: dict[InstanceId, float] = {}
        """When the cloud accepted the end of an instance."""
        self._unknown_s: dict[InstanceId, float] = {}
        """When it did not know an instance that was to end."""
        self._shown: Counter[str] = Counter()
        self._heard: set[str] = set()
        self._there: set[InstanceId] = set()
        self._looked = False
        now_s = now()
        self.open = {
            spec.token: (spec, asked_s)
            for spec, asked_s in earlier.unanswered
            if now_s - asked_s < OPEN_S
        }
        """Token -> wish without a known result, and the Unix time of its last call."""
        self._seen = {
            one.instance: (one, one.launched_at_s)
            for one in earlier.launched
            if now_s - one.launched_at_s < SHOWN_WITHIN_S
        }
        """What was started or shown as live, with the time of its last sign of life."""

    def observe(self, leaving: Collection[InstanceId] = ()) -> tuple[list[Observed], int]:
        """What exists without those `leaving`; and how many are paid besides the wanted ones: those
        that leave, and those that are to end and cannot be ended yet."""
        known = [self._as_ended(o) for o in (*self._describe(), *self._missing())]
        apart = [o for o in known if o.instance in leaving and o.instance not in self.unwanted]
        observed = [o for o in known if o not in apart]
        self.wanted = [o for o in observed if o.state.live and o.instance not in self.unwanted]
        self.live = len(self.wanted)
        paid = [*apart, *(o for o in observed if o.instance in self._unknown_s)]
        return observed, sum(o.state.live for o in paid)

    def left(self) -> list[InstanceId]:
        """What the cloud shows as live, even if its end was accepted, and what it does not show."""
        shown = self._describe()
        missing = sorted(o.instance for o in self._missing())
        return [*(o.instance for o in shown if o.state.live), *missing]

    def names(self) -> str:
        """The instances that may live, as far as is known."""
        return ", ".join(sorted(self._seen))

    @property
    def knows_any(self) -> bool:
        """Whether the run's instances were listed, or some may exist although they were not."""
        return self._looked or bool(self._seen or self.open)

    def may_be_ended(self, instance: InstanceId) -> bool:
        """Whether to ask the cloud to end it: not again at once where it did not know it."""
        return self._now() - self._unknown_s.get(instance, -math.inf) >= UNKNOWN_AGAIN_S

    def asked_to_end(
        self, instances: Collection[InstanceId], *, unknown: Collection[InstanceId]
    ) -> None:
        """The cloud accepted the end of these, except the `unknown` ones."""
        for instance in instances:
            if instance in unknown:
                self._unknown_s[instance] = self._now()
            else:
                self._unknown_s.pop(instance, None)
                self._ended_s[instance] = self._now()

    def rest(self, *, to_the_last: bool) -> tuple[Held, ...]:
        """What else the run holds; `to_the_last`: including what is deleted with its instance."""
        held = self._provider.held(self._run)
        return tuple(one for one in held if to_the_last or not one.attached_to)

    def asked(self, spec: LaunchSpec) -> None:
        """A wish is being made, or its call has just ended without an answer."""
        self.open[spec.token] = (spec, self._now())

    def still_open(self) -> list[tuple[LaunchSpec, int]]:
        """The wishes to repeat, because their result is unknown, each with how many of its
        instances are not shown so far."""
        now_s = self._now()
        self.open = {t: (s, at_s) for t, (s, at_s) in self.open.items() if now_s - at_s < OPEN_S}
        return [
            (spec, spec.count - self._shown[token])
            for token, (spec, _) in self.open.items()
            if token not in self._heard
        ]

    def heard(self, spec: LaunchSpec) -> None:
        """A wish is known to have arrived; only the tags will show its result."""
        self._heard.add(spec.token)

    def answered(self, spec: LaunchSpec, launched: Sequence[Launched]) -> None:
        """The result of a wish is known."""
        del self.open[spec.token]
        now_s = self._now()
        for one in launched:
            fresh = Observed(
                instance=one.instance,
                pool=one.pool,
                state=InstanceState.PENDING,
                launched_at_s=now_s,
                token=one.token,
                interrupted=False,
            )
            self._seen[one.instance] = (fresh, now_s)

    def _describe(self) -> tuple[Observed, ...]:
        shown = self._provider.describe(self._run)
        now_s = self._now()
        self._shown = Counter(o.token for o in shown)
        for spec, _ in list(self.open.values()):
            if self._shown[spec.token] >= spec.count:
                del self.open[spec.token]  # it arrived: another wish needs another token
        self._there = {o.instance for o in shown}
        self._looked = True
        self._seen = {
            i: (o, at_s)
            for i, (o, at_s) in self._seen.items()
            if i not in self._there and now_s - at_s < SHOWN_WITHIN_S
        } | {o.instance: (o, now_s) for o in shown if o.state.live}
        return shown

    def _missing(self) -> list[Observed]:
        """What the last look did not show and may exist all the same."""
        return [o for i, (o, _) in self._seen.items() if i not in self._there]

    def _as_ended(self, one: Observed) -> Observed:
        """If it still shows an instance whose end was accepted a moment ago, the list is old."""
        took_s = self._ended_s.get(one.instance, -math.inf)
        if one.state.live and self._now() - took_s < END_AGAIN_S:
            return replace(one, state=InstanceState.SHUTTING_DOWN)
        return one
