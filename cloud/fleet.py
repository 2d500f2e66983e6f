"""The fleet of one run: carries out what `reconcile` says, and writes down its intent first.

Every intent is in `intents.jsonl` before the call that it announces, so a launcher that dies in
between leaves a trace. A wish whose answer was not read is repeated before any other, unchanged and
with the same token. The cloud then shows what it did. What the cloud shows by tag is the truth,
and the file explains it.
"""

import hashlib
import math
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bamboo.ids import InstanceId, RunId, ZoneId
from cloud.backoff import Backoff
from cloud.ending import TERMINATE_DEADLINE_S, end_all
from cloud.expiry import Expiry
from cloud.intents import Intents
from cloud.provider import (
    CloudRefused,
    CloudThrottled,
    CloudUnavailable,
    Launched,
    LaunchSpec,
    Market,
    Observed,
    Offer,
    Pool,
    Provider,
    Refusal,
    RefusalKind,
    WishHeard,
)
from cloud.reconcile import (
    POOL_OUT_S,
    Action,
    Budget,
    Desired,
    Gang,
    LeaveAlone,
    PoolMemory,
    Start,
    Terminate,
    Wait,
    reconcile,
)
from cloud.sight import Sight

OFFERS_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one `ensure`. `live` counts instances running or starting after it."""

    live: int
    launched: tuple[Launched, ...]
    terminated: tuple[InstanceId, ...]
    refusals: tuple[Refusal, ...]
    reasons: tuple[str, ...]
    """A sentence for each decision, in order, for a person."""


@dataclass(slots=True, kw_only=True)
class _Round:
    launched: list[Launched]
    terminated: list[InstanceId]
    refusals: list[Refusal]
    reasons: list[str]
    throttled: bool = False


class Wishes:
    """What is asked of the cloud for a run, each written down first, and what it did."""

    def __init__(
        self,
        provider: Provider,
        *,
        run: RunId,
        intents: Intents,
        pool_out_s: float,
        until_s: float,
        now: Callable[[], float],
        chance: random.Random,
    ) -> None:
        self._provider = provider
        self._run = run
        self._now = now
        self._pool_out_s = pool_out_s
        self._memory = PoolMemory()
        self._backoff = Backoff(chance=chance)
        self._expiry = Expiry(provider, until_s=until_s)
        # A later launcher of the same run continues where the earlier one stopped.
        self._intents = intents
        earlier = intents.earlier()
        self._launches = earlier.launches
        self._sight = Sight(provider, run=run, earlier=earlier, now=now)

    def _wish(self, action: Start) -> LaunchSpec:
        """Write the wish that is about to be made."""
        self._launches += 1
        spec = LaunchSpec(
            run=self._run,
            pool=action.pool,
            alternatives=action.alternatives,
            count=action.count,
            token=self._token(),
            expires_at_s=self._expiry.at_s(self._now()),
        )
        self._intents.wish(spec, reason=action.reason)
        return spec

    def _call(self, spec: LaunchSpec, done: _Round) -> None:
        """Send the wish that was written. It stays open where no answer comes. A wish that may have
        been heard before also stays open when the cloud throttles."""
        again = spec.token in self._sight.open
        if again:
            self._intents.again(spec)
        else:
            self._sight.asked(spec)
        try:
            answer = self._provider.launch([spec])
        except WishHeard as heard:
            self._sight.heard(spec)
            done.reasons.append(str(heard))
            return
        except CloudUnavailable:
            self._sight.asked(spec)
            raise
        except (CloudThrottled, CloudRefused):
            if not again:
                self._answered(spec, ())
            raise
        throttled = any(r.kind is RefusalKind.THROTTLED for r in answer.refusals)
        if not (throttled and again):
            self._answered(spec, answer.launched)
        done.launched.extend(answer.launched)
        for refusal in answer.refusals:
            done.refusals.append(refusal)
            done.reasons.append(f"{refusal.pool}: {refusal.code}: {refusal.message}")
            if refusal.kind is not RefusalKind.THROTTLED:
                # A pool that refuses for good (a type that does not exist there) is as useless as
                # an empty one, but the next offer may work.
                self._leave_alone(refusal.pool)
        if throttled:
            done.throttled = True
            self._backoff.refused(now_s=self._now())

    def _answered(self, spec: LaunchSpec, launched: Sequence[Launched]) -> None:
        self._intents.answered(spec, launched)
        self._sight.answered(spec, launched)

    def _leave_alone(self, *pools: Pool) -> None:
        for pool in pools:
            self._memory = self._memory.with_out(pool, now_s=self._now(), for_s=self._pool_out_s)

    def _token(self) -> str:
        """A token that no other launch of any run has, within EC2's 64 characters."""
        text = f"{self._run}/{self._launches}/{self._now()}"
        return f"bamboo-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


class Fleet(Wishes):
    """All instances of a run. Belongs to one thread; `now` is Unix time. By their tags no instance
    exists after `until_s`, whatever process leads the run then."""

    def __init__(
        self,
        provider: Provider,
        *,
        run: RunId,
        intents: Path,
        pool_out_s: float = POOL_OUT_S,
        until_s: float = math.inf,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(
            provider,
            run=run,
            intents=Intents(intents, run=run, now=now),
            pool_out_s=pool_out_s,
            until_s=until_s,
            now=now,
            chance=chance or random.Random(),
        )
        self._sleep = sleep
        self._short_since_s: float | None = None
        self._offered: tuple[Offer, ...] = ()
        self._offered_at_s = -math.inf

    def ensure(
        self,
        count: int,
        *,
        leaving: Collection[InstanceId] = (),
        zones: Mapping[ZoneId, int] | None = None,
        anchors: int = 0,
        gang: Gang | None = None,
        most: int = 0,
        new: int | None = None,
        lasts_until_s: float = math.inf,
    ) -> Report:
        """Bring the fleet to `count` wanted instances as far as the cloud gives them now, with
        `anchors` of them on demand, and in each zone the number in `zones` where the zone has them.
        Those `leaving` do not count and are left to the cloud, which may take them free of charge.
        Including them there are never more than `most` at once (0: no limit), and at most `new` are
        started now (None: as many as are missing at the begin). A `gang` that does not come
        together is given up.
        `lasts_until_s` (Unix) is how long the money lasts: without a launcher no instance goes on
        much longer.

        It goes through the offers until it has enough or none is left. It never waits, neither for
        capacity nor when the cloud throttles; call it again. Raises CloudRefused when the cloud
        refuses the request itself, CloudThrottled, CloudUnavailable when it does not answer (the
        same token is then used again), BooksUnwritable when a launch cannot be announced, and then
        starts nothing.
        """
        done = _Round(launched=[], terminated=[], refusals=[], reasons=[])
        self._expiry.lasts_until_s = lasts_until_s
        if self._now() < self._backoff.until_s:
            done.reasons.append("the cloud asked for fewer calls; waiting a little")
            return self._report(done)
        desired = Desired(
            count=count,
            unwanted=frozenset(self._sight.unwanted),
            zones=zones or {},
            anchors=anchors,
            gang=gang,
        )
        try:
            self._bring(desired, done, leaving=leaving, budget=Budget(instances=most, new=new))
            done.reasons += self._expiry.move(self._sight.wanted, now_s=self._now())
        except CloudThrottled:
            self._backoff.refused(now_s=self._now())
            raise
        if not done.throttled:
            self._backoff.answered()
        report = self._report(done)
        self._raise_if_hopeless(report)
        return report

    def end_by(self, until_s: float) -> None:
        """Set until when instances may exist, by the tags that are written from now on."""
        self._expiry.until_s = until_s

    @property
    def unwanted(self) -> Collection[InstanceId]:
        """The instances that were ended for good, by this launcher or an earlier one."""
        return self._sight.unwanted

    def terminate(self, instance: InstanceId, *, reason: str) -> None:
        """End one instance for good: it is no longer wanted. If the cloud does not know it yet, the
        next `ensure` that sees it ends it."""
        if instance not in self._sight.unwanted:
            self._sight.unwanted.add(instance)
            self._intents.end("terminate", instance=instance, reason=reason)
        if self._sight.may_be_ended(instance):
            unknown = self._provider.terminate([instance])
            self._sight.asked_to_end([instance], unknown=unknown)

    def terminate_all(
        self,
        *,
        deadline_s: float = TERMINATE_DEADLINE_S,
        waiting: Callable[[str], None] = lambda text: None,
        to_the_last: bool = False,
    ) -> None:
        """End all instances of the run, its requests and the volumes that it leaves behind, and see
        that none is left. `cloud.ending.end_all` says what it raises."""
        self._intents.end("terminate-all", reason="the run is over")
        end_all(
            self._provider,
            self._sight,
            self._backoff,
            run=self._run,
            deadline_s=deadline_s,
            waiting=waiting,
            to_the_last=to_the_last,
            now=self._now,
            sleep=self._sleep,
        )
        if not self._sight.open:  # open wishes are left to a later launcher
            self._intents.all_gone("seen to have ended")

    def _bring(
        self, desired: Desired, done: _Round, *, leaving: Collection[InstanceId], budget: Budget
    ) -> None:
        observed, paid = self._sight.observe(leaving)
        budget = replace(budget, leaving=paid)
        if self._is_as_desired(observed, desired, budget):
            self._short_since_s = None
            return
        if self._sight.open:
            self._ask_again(budget.allows(desired.count), done, leaving)
            observed, paid = self._sight.observe(leaving)
        offers = self._offers()
        # Each turn removes a pool from the list, ends something, or is the last.
        for turn in range(len(offers) + 2):
            if done.throttled:
                break
            actions = reconcile(
                desired=replace(desired, gang=self._timed(desired.gang)),
                observed=observed,
                offers=offers,
                budget=replace(budget, leaving=paid, new=_still(budget.new, done)),
                memory=self._memory,
                now_s=self._now(),
                several=self._provider.several_pools,
            )
            if not turn:  # who ends as soon as it was started is not started again by this call
                missing = sum(one.count for one in actions if isinstance(one, Start))
                budget = replace(budget, new=len(done.launched) + missing)
            for action in actions:
                self._perform(action, done)
            observed, paid = self._sight.observe(leaving)
            if not any(isinstance(action, Start) for action in actions):
                break
        self._timed(desired.gang)

    def _ask_again(self, count: int, done: _Round, leaving: Collection[InstanceId]) -> None:
        """Repeat the wishes that may have been heard, unless that might be too many by now. The
        limit of new instances does not apply: they were counted when they were first made."""
        for spec, unshown in self._sight.still_open():
            if self._sight.live + unshown <= count and not done.throttled:
                self._call(spec, done)
                self._sight.observe(leaving)

    def _timed(self, gang: Gang | None) -> Gang | None:
        """The gang, with how long it has been short, counted from its first instance on."""
        if gang is None or not 0 < self._sight.live < gang.nodes:
            self._short_since_s = None
            return gang
        if self._short_since_s is None:
            self._short_since_s = self._now()
        return replace(gang, short_s=self._now() - self._short_since_s)

    def _is_as_desired(
        self, observed: Sequence[Observed], desired: Desired, budget: Budget
    ) -> bool:
        count = budget.allows(desired.count)
        live = [o for o in observed if o.state.live]
        fixed = sum(o.pool.market is Market.ON_DEMAND for o in live)
        return (
            len(live) == count
            and not self._sight.unwanted.intersection(o.instance for o in live)
            and (not desired.anchors or fixed == min(desired.anchors, count))
        )

    def _offers(self) -> tuple[Offer, ...]:
        """The provider's offers, read again after a minute: prices move slowly."""
        if self._now() - self._offered_at_s >= OFFERS_S:
            self._offered = self._provider.offers()
            self._offered_at_s = self._now()
        return self._offered

    def _perform(self, action: Action, done: _Round) -> None:
        match action:
            case Start() if done.throttled:
                return
            case Start() if self._sight.open:
                done.reasons.append("waiting to see what a launch did that was not answered")
                return
            case Terminate():
                self.terminate(action.instance, reason=action.reason)
                done.terminated.append(action.instance)
            case Start():
                done.reasons.append(action.reason)
                self._call(self._wish(action), done)
                return
            case LeaveAlone():
                self._leave_alone(*action.pools)
            case Wait():
                pass
        done.reasons.append(action.reason)

    def _report(self, done: _Round) -> Report:
        return Report(
            live=self._sight.live,
            launched=tuple(done.launched),
            terminated=tuple(done.terminated),
            refusals=tuple(done.refusals),
            reasons=tuple(done.reasons),
        )

    def _raise_if_hopeless(self, report: Report) -> None:
        """A request that every pool refuses for good never succeeds, so it is an error at once."""
        for_good = [r for r in report.refusals if r.kind is RefusalKind.REFUSED]
        if report.live == 0 and for_good and len(for_good) == len(report.refusals):
            first = for_good[0]
            raise CloudRefused(
                f"no pool takes the launch, the first being {first.pool}: "
                f"{first.code}: {first.message}; correct the [cloud] keys of the job"
            )


def _still(new: int | None, done: _Round) -> int | None:
    """How many of `new` may still be started."""
    return None if new is None else max(0, new - len(done.launched))
