"""The fleet of one run: carries out what `reconcile.plan` says, and writes down its intent first.

Every intent stands in `intents.jsonl` before the call that it announces, so a launcher that dies in
between leaves a trace. What the cloud shows by tag is the truth; the file explains it.
"""

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bamboo.errors import BambooError, BooksUnwritable
from bamboo.ids import InstanceId, RunId, ZoneId
from bamboo.lines import LineWriter
from cloud.provider import (
    CloudRefused,
    CloudThrottled,
    CloudUnavailable,
    InstanceState,
    Launched,
    LaunchSpec,
    Market,
    Observed,
    Offer,
    Pool,
    Provider,
    Refusal,
    RefusalKind,
)
from cloud.reconcile import POOL_OUT_S, Desired, PoolMemory, Start, Terminate, Wait, plan

EXPIRY_S = 24 * 3600
"""An instance of a run is stale so long after its start."""
TERMINATE_DEADLINE_S = 60.0
SHOWN_WITHIN_S = 30.0
"""So long may a fresh instance be missing from what the cloud shows."""
OFFERS_S = 60.0
_THROTTLED_S = 5.0
_LOOK_S = 0.1


class StillLive(BambooError):
    """Instances that were to end may not have; `names` says which, as far as the cloud told."""

    def __init__(self, run: RunId, names: str) -> None:
        super().__init__(
            f"instances of run {run} may still be running and cost money ({names}); end them in "
            f"the cloud's console by the tag bamboo:run={run}"
        )
        self.names = names


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one `ensure` came to. `live` counts those running or starting after it."""

    live: int
    launched: tuple[Launched, ...]
    terminated: tuple[InstanceId, ...]
    refusals: tuple[Refusal, ...]
    reasons: tuple[str, ...]
    """One sentence per decision, in order, for a person."""


@dataclass(slots=True, kw_only=True)
class _Round:
    launched: list[Launched]
    terminated: list[InstanceId]
    refusals: list[Refusal]
    reasons: list[str]


class Fleet:
    """All instances of a run. Belongs to one thread; `now` is Unix time."""

    def __init__(
        self,
        provider: Provider,
        *,
        run: RunId,
        intents: Path,
        pool_out_s: float = POOL_OUT_S,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._provider = provider
        self._run = run
        self._now = now
        self._sleep = sleep
        self._intents = intents
        self._pool_out_s = pool_out_s
        self._memory = PoolMemory()
        self._not_before_s = 0.0
        self._unanswered: LaunchSpec | None = None
        self._unseen: dict[InstanceId, Observed] = {}
        self._ended: set[InstanceId] = set()
        self._offered: tuple[Offer, ...] = ()
        self._offered_at_s = -math.inf
        # A later launcher of the same run goes on where the earlier one stopped.
        drop_torn_line(intents)
        earlier = read_intents(intents)
        wishes = [i for i in earlier if i["intent"] == "launch"]
        self._launches = len(wishes)
        self._unwanted = {InstanceId(i["instance"]) for i in earlier if i["intent"] == "terminate"}
        # Its last wish may have been heard although nobody has read the answer.
        if wishes and now() - float(wishes[-1]["t"]) < SHOWN_WITHIN_S:
            self._unanswered = _wish(run, wishes[-1])

    def ensure(
        self,
        count: int,
        *,
        leaving: Collection[InstanceId] = (),
        zones: Mapping[ZoneId, int] | None = None,
    ) -> Report:
        """Bring the fleet to `count` wanted instances as far as the cloud gives them now, so many
        in each zone as `zones` says where it has them. Those `leaving` do not count and are left to
        the cloud, which may take them free of charge.

        Goes through the offers until satisfied or until none is left; it never waits for
        capacity: call it again. Raises CloudRefused when the cloud refuses the request itself,
        CloudUnavailable when it does not answer (the same token is then used again),
        BooksUnwritable when a launch cannot be announced, and then starts nothing.
        """
        done = _Round(launched=[], terminated=[], refusals=[], reasons=[])
        if self._now() < self._not_before_s:
            done.reasons.append("the cloud asked for fewer calls; waiting a little")
            return self._report(done, self._provider.describe(self._run))
        observed = self._observe(leaving)
        if self._is_as_desired(observed, count):
            return self._report(done, observed)
        offers = self._offers()
        desired = Desired(count=count, unwanted=frozenset(self._unwanted), zones=zones or {})
        # Each turn takes a pool out of the list, ends something, or is the last.
        for _ in range(len(offers) + 2):
            observed = self._observe(leaving)
            actions = plan(
                desired=desired,
                observed=observed,
                offers=offers,
                memory=self._memory,
                now_s=self._now(),
            )
            for action in actions:
                self._perform(action, done)
            if not any(isinstance(action, Start) for action in actions):
                break
            if self._now() < self._not_before_s:
                break
        report = self._report(done, self._observe(leaving))
        self._raise_if_hopeless(report)
        return report

    def terminate(self, instance: InstanceId, *, reason: str) -> None:
        """End one instance, now and for ever: it is not wanted any more."""
        if instance not in self._unwanted:
            self._unwanted.add(instance)
            self._write_end("terminate", instance=instance, reason=reason)
        self._provider.terminate([instance])
        self._ended.add(instance)

    def terminate_all(
        self,
        *,
        deadline_s: float = TERMINATE_DEADLINE_S,
        waiting: Callable[[str], None] = lambda text: None,
    ) -> None:
        """End all instances of the run and see by `describe` that none is left; `waiting` is told
        once when that takes more than a first answer. A call under way at the deadline is the last.
        Raises StillLive, which names those still live then; call it again, it does no harm."""
        start_s = self._now()
        self._write_end("terminate-all", reason="the run is over")
        names, error, told = "unknown", None, False
        look_for_s: float | None = None
        while True:
            try:
                left = self._left()
                names, error = ", ".join(left) or "none is shown", None
                if look_for_s is None:
                    # A launch that was not answered, and is not shown, may still show up: look
                    # for longer then.
                    look_for_s = SHOWN_WITHIN_S if self._unanswered is not None else 0.0
                passed_s = self._now() - start_s
                if left and passed_s < deadline_s:
                    self._provider.terminate(left)
                    self._ended.update(left)
                elif not left and passed_s >= look_for_s:
                    return
            except (CloudThrottled, CloudUnavailable) as trouble:
                error = trouble
            if self._now() - start_s >= deadline_s:
                break
            if error is not None and not told:
                told = True
                waiting(f"ending the instances, for up to {deadline_s:g} s: {error}")
            self._sleep(_LOOK_S)
        raise StillLive(self._run, names) from error

    def _observe(self, leaving: Collection[InstanceId] = ()) -> list[Observed]:
        """What the cloud shows but for those `leaving`, corrected by what it has answered: its list
        may lag behind, and a fresh instance must not be started twice, nor an ended one counted."""
        now_s = self._now()
        shown = {o.instance: o for o in self._describe()}
        self._unseen = {
            i: o
            for i, o in self._unseen.items()
            if i not in shown and now_s - o.launched_at_s < SHOWN_WITHIN_S
        }
        return [
            replace(o, state=InstanceState.SHUTTING_DOWN)
            if o.instance in self._ended and o.state.live
            else o
            for o in (*shown.values(), *self._unseen.values())
            if o.instance not in leaving or o.instance in self._unwanted
        ]

    def _left(self) -> list[InstanceId]:
        """What the cloud shows as live, believe it or not, and what it does not show yet."""
        shown = self._describe()
        unseen = self._unseen.keys() - self._ended - {o.instance for o in shown}
        return [*(o.instance for o in shown if o.state.live), *sorted(unseen)]

    def _describe(self) -> tuple[Observed, ...]:
        shown = self._provider.describe(self._run)
        wish = self._unanswered
        if wish is not None and sum(o.token == wish.token for o in shown) >= wish.count:
            self._unanswered = None  # it was heard: another wish needs another token
        return shown

    def _is_as_desired(self, observed: Sequence[Observed], count: int) -> bool:
        live = {o.instance for o in observed if o.state.live}
        return len(live) == count and not live & self._unwanted

    def _offers(self) -> tuple[Offer, ...]:
        """The provider's offers, asked for again after a minute: prices move slowly."""
        if self._now() - self._offered_at_s >= OFFERS_S:
            self._offered = self._provider.offers()
            self._offered_at_s = self._now()
        return self._offered

    def _perform(self, action: Start | Terminate | Wait, done: _Round) -> None:
        done.reasons.append(action.reason)
        match action:
            case Terminate():
                self._write_end("terminate", instance=action.instance, reason=action.reason)
                self._provider.terminate([action.instance])
                self._ended.add(action.instance)
                done.terminated.append(action.instance)
            case Start():
                self._launch(action, done)
            case Wait():
                pass

    def _launch(self, action: Start, done: _Round) -> None:
        spec = self._unanswered
        if spec is None or (spec.pool, spec.count) != (action.pool, action.count):
            self._launches += 1
            spec = LaunchSpec(
                run=self._run,
                pool=action.pool,
                count=action.count,
                token=self._token(),
                expires_at_s=int(self._now()) + EXPIRY_S,
            )
            self._write(
                "launch",
                token=spec.token,
                pool=str(spec.pool),
                instance_type=spec.pool.instance_type,
                zone=spec.pool.zone,
                market=spec.pool.market,
                expires_at_s=spec.expires_at_s,
                count=spec.count,
                reason=action.reason,
            )
        self._unanswered = spec
        answer = self._provider.launch([spec])
        self._unanswered = None
        done.launched.extend(answer.launched)
        for one in answer.launched:
            self._unseen[one.instance] = Observed(
                instance=one.instance,
                pool=one.pool,
                state=InstanceState.PENDING,
                launched_at_s=self._now(),
                token=one.token,
                interrupted=False,
            )
        for refusal in answer.refusals:
            done.refusals.append(refusal)
            done.reasons.append(f"{refusal.spec.pool}: {refusal.code}: {refusal.message}")
            if refusal.kind is RefusalKind.THROTTLED:
                self._not_before_s = self._now() + _THROTTLED_S
            else:
                # A pool that refuses for good (a type that does not exist there) is as useless
                # as an empty one; the next offer may do.
                self._memory = self._memory.with_out(
                    refusal.spec.pool, now_s=self._now(), for_s=self._pool_out_s
                )

    def _token(self) -> str:
        """A token that no other launch of any run has, within EC2's 64 characters."""
        text = f"{self._run}/{self._launches}/{self._now()}"
        return f"bamboo-{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def _report(self, done: _Round, observed: Sequence[Observed]) -> Report:
        wanted = [o for o in observed if o.state.live and o.instance not in self._unwanted]
        return Report(
            live=len(wanted),
            launched=tuple(done.launched),
            terminated=tuple(done.terminated),
            refusals=tuple(done.refusals),
            reasons=tuple(done.reasons),
        )

    def _raise_if_hopeless(self, report: Report) -> None:
        """A request that every pool refuses for good never succeeds: say so at once."""
        for_good = [r for r in report.refusals if r.kind is RefusalKind.REFUSED]
        if report.live == 0 and for_good and len(for_good) == len(report.refusals):
            first = for_good[0]
            raise CloudRefused(
                f"no pool takes the launch, the first being {first.spec.pool}: "
                f"{first.code}: {first.message}; correct the [cloud] keys of the job"
            )

    def _write(self, intent: str, **fields: object) -> None:
        record = {"t": self._now(), "run": self._run, "intent": intent, **fields}
        with LineWriter(self._intents) as file:
            file.write(json.dumps(record))

    def _write_end(self, intent: str, **fields: object) -> None:
        """What ends something is done even where it cannot be announced."""
        with contextlib.suppress(BooksUnwritable):
            self._write(intent, **fields)


def _wish(run: RunId, intent: Mapping[str, Any]) -> LaunchSpec:
    """The launch that an intent announced, with its token."""
    pool = Pool(
        instance_type=str(intent["instance_type"]),
        zone=ZoneId(str(intent["zone"])),
        market=Market(str(intent["market"])),
    )
    return LaunchSpec(
        run=run,
        pool=pool,
        count=int(intent["count"]),
        token=str(intent["token"]),
        expires_at_s=int(intent["expires_at_s"]),
    )


def drop_torn_line(path: Path) -> None:
    """Cut off what the writer of this file, who is dead, did not finish: it announced nothing that
    was then done."""
    if path.exists():
        text = path.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            os.truncate(path, whole)


def read_intents(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The records of an intents file, in order; none when there is no file. A last line that was
    cut short by a crash is left out."""
    if not path.exists():
        return ()
    return tuple(
        json.loads(line) for line in path.read_text().splitlines(keepends=True) if line[-1] == "\n"
    )
