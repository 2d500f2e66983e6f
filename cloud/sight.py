"""What the fleet of a run sees of its cloud, corrected by what the cloud has answered.

Rule: a list may lag behind, so a fresh instance must not be started twice, nor an ended one
counted; a wish whose answer nobody read stays open until what came of it is shown.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from bamboo.ids import InstanceId, RunId
from cloud.intents import Earlier
from cloud.provider import Held, InstanceState, Launched, LaunchSpec, Observed, Provider

SHOWN_WITHIN_S = 30.0
"""So long may a fresh instance be missing from what the cloud shows."""
OPEN_S = 2 * SHOWN_WITHIN_S
"""After so long what came of a wish is shown, also where the call itself took its whole time."""


class Sight:
    """The instances of a run and the wishes under way; `now` is Unix time."""

    def __init__(
        self, provider: Provider, *, run: RunId, earlier: Earlier, now: Callable[[], float]
    ) -> None:
        self._provider = provider
        self._run = run
        self._now = now
        self.live = 0
        """Of the wanted instances, at the last look."""
        self.wanted: list[Observed] = []
        """Those themselves."""
        self.unwanted = set(earlier.ended)
        self.ended: set[InstanceId] = set()
        """Those that the cloud was asked to end, and took it."""
        self._shown: Counter[str] = Counter()
        now_s = now()
        self.open = {
            spec.token: (spec, asked_s)
            for spec, asked_s in earlier.unanswered
            if now_s - asked_s < OPEN_S
        }
        """Wishes by token, with the Unix time of the last call."""
        self._unseen = {
            one.instance: one
            for one in earlier.launched
            if now_s - one.launched_at_s < SHOWN_WITHIN_S
        }

    def observe(self, leaving: Collection[InstanceId] = ()) -> tuple[list[Observed], int]:
        """What is there but for those `leaving`; and how many of those are paid still."""
        now_s = self._now()
        shown = {o.instance: o for o in self._describe()}
        self._unseen = {
            i: o
            for i, o in self._unseen.items()
            if i not in shown and now_s - o.launched_at_s < SHOWN_WITHIN_S
        }
        known = [
            replace(o, state=InstanceState.SHUTTING_DOWN)
            if o.instance in self.ended and o.state.live
            else o
            for o in (*shown.values(), *self._unseen.values())
        ]
        apart = [o for o in known if o.instance in leaving and o.instance not in self.unwanted]
        observed = [o for o in known if o not in apart]
        self.wanted = [o for o in observed if o.state.live and o.instance not in self.unwanted]
        self.live = len(self.wanted)
        return observed, sum(o.state.live for o in apart)

    def left(self) -> list[InstanceId]:
        """What the cloud shows as live, believe it or not, and what it does not show yet."""
        shown = self._describe()
        unseen = self._unseen.keys() - self.ended - {o.instance for o in shown}
        return [*(o.instance for o in shown if o.state.live), *sorted(unseen)]

    def rest(self, *, to_the_last: bool) -> tuple[Held, ...]:
        """What else the run holds; `to_the_last`: also what goes with its instance."""
        held = self._provider.held(self._run)
        return tuple(one for one in held if to_the_last or not one.attached_to)

    def asked(self, spec: LaunchSpec) -> None:
        """A wish is made just now, or its call was over just now without an answer."""
        self.open[spec.token] = (spec, self._now())

    def still_open(self) -> list[tuple[LaunchSpec, int]]:
        """The wishes of which nobody knows what came of them, each with how many of its instances
        are not shown so far."""
        now_s = self._now()
        self.open = {t: (s, at_s) for t, (s, at_s) in self.open.items() if now_s - at_s < OPEN_S}
        return [(spec, spec.count - self._shown[spec.token]) for spec, _ in self.open.values()]

    def answered(self, spec: LaunchSpec, launched: Sequence[Launched]) -> None:
        """What came of a wish is known."""
        del self.open[spec.token]
        for one in launched:
            self._unseen[one.instance] = Observed(
                instance=one.instance,
                pool=one.pool,
                state=InstanceState.PENDING,
                launched_at_s=self._now(),
                token=one.token,
                interrupted=False,
            )

    def _describe(self) -> tuple[Observed, ...]:
        shown = self._provider.describe(self._run)
        self._shown = Counter(o.token for o in shown)
        for spec, _ in list(self.open.values()):
            if self._shown[spec.token] >= spec.count:
                del self.open[spec.token]  # it was heard: another wish needs another token
        return shown
