"""A scripted Provider and PriceSource for tests."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bamboo.ids import InstanceId, RunId
from bamboo.ports import PricesSeen
from cloud.provider import (
    CloudRefused,
    CloudUnavailable,
    Held,
    HeldKind,
    InstanceState,
    LaunchAnswer,
    Launched,
    LaunchSpec,
    Observed,
    Offer,
    Pool,
    Refusal,
    RefusalKind,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedRefusal:
    """The next launch that matches gets this; an empty zone matches any."""

    kind: RefusalKind
    code: str
    zone: str = ""
    grant: int = 0
    """How many of the requested instances are started all the same."""


@dataclass(slots=True, kw_only=True)
class FakeProvider:
    """Instances are entries of a dictionary. `script` is used up from the front."""

    listed: tuple[Offer, ...]
    several_pools: bool = False
    leaves_volumes: bool = False
    """An instance that ends leaves its volume behind."""
    loses_answers: int = 0
    """The answers of so many launches are lost after they were carried out."""
    others: list[Held] = field(default_factory=list)
    """What is held besides the instances, until it is released."""
    script: list[ScriptedRefusal] = field(default_factory=list)
    calls: list[tuple[str, object]] = field(default_factory=list)
    now_s: float = 0.0
    _instances: dict[InstanceId, tuple[RunId, Observed]] = field(default_factory=dict)
    _answers: dict[str, LaunchAnswer] = field(default_factory=dict)

    def launch(self, specs: Sequence[LaunchSpec]) -> LaunchAnswer:
        """Start what the script does not refuse."""
        answers = [self._launch(spec) for spec in specs]
        if self.loses_answers:
            self.loses_answers -= 1
            raise CloudUnavailable("the answer was lost")
        return LaunchAnswer(
            launched=tuple(one for answer in answers for one in answer.launched),
            refusals=tuple(one for answer in answers for one in answer.refusals),
        )

    def describe(self, run: RunId) -> tuple[Observed, ...]:
        """All instances of the run, by id."""
        self.calls.append(("describe", run))
        return tuple(o for _, (owner, o) in sorted(self._instances.items()) if owner == run)

    def terminate(self, instances: Sequence[InstanceId]) -> tuple[InstanceId, ...]:
        """End the instances that live."""
        self.calls.append(("terminate", tuple(instances)))
        for instance in instances:
            self._end(instance, interrupted=False)
        return tuple(one for one in instances if one not in self._instances)

    def prolong(self, instances: Sequence[InstanceId], *, expires_at_s: int) -> None:
        """Move the tags of the instances that exist."""
        self.calls.append(("prolong", (tuple(instances), expires_at_s)))
        for instance in instances:
            if instance in self._instances:
                run, observed = self._instances[instance]
                prolonged = replace(observed, expires_at_s=float(expires_at_s))
                self._instances[instance] = (run, prolonged)

    def offers(self) -> tuple[Offer, ...]:
        """What the test listed."""
        return tuple(sorted(self.listed, key=lambda offer: (offer.usd_per_speed, offer.pool)))

    def held(self, run: RunId | None) -> tuple[Held, ...]:
        """The live instances, and the others."""
        self.calls.append(("held", run))
        live = [
            Held(
                kind=HeldKind.INSTANCE,
                id=one.instance,
                run=owner,
                state=one.state,
                since_s=one.launched_at_s,
                expires_at_s=one.expires_at_s,
                pool=one.pool,
            )
            for owner, one in self._instances.values()
            if one.state.live
        ]
        found = [one for one in (*self.others, *live) if run in (None, one.run)]
        order = list(HeldKind)
        return tuple(sorted(found, key=lambda one: (order.index(one.kind), one.id)))

    def release(self, held: Sequence[Held]) -> None:
        """End the instances; forget the others except attached volumes."""
        self.calls.append(("release", tuple(one.id for one in held)))
        for one in held:
            self._end(InstanceId(one.id), interrupted=False)
        gone = {one.id for one in held if not one.attached_to}
        self.others = [one for one in self.others if one.id not in gone]

    def interrupt(self, instance: InstanceId) -> None:
        """The cloud takes an instance."""
        self._end(instance, interrupted=True)

    def _launch(self, spec: LaunchSpec) -> LaunchAnswer:
        self.calls.append(("launch", spec))
        if spec.token in self._answers:
            return self._answers[spec.token]
        launched: list[Launched] = []
        refused: list[tuple[Pool, ScriptedRefusal]] = []
        for pool in spec.pools:
            missing = spec.count - len(launched)
            scripted = self._scripted(pool) if missing else None
            granted = missing if scripted is None else min(scripted.grant, missing)
            launched += [self._start(spec, pool) for _ in range(granted)]
            if scripted is not None and granted < missing:
                refused.append((pool, scripted))
        refusals = tuple(
            Refusal(
                spec=spec,
                pool=pool,
                kind=scripted.kind,
                code=scripted.code,
                message="scripted",
                missing=spec.count - len(launched),
            )
            for pool, scripted in refused
        )
        answer = LaunchAnswer(launched=tuple(launched), refusals=refusals)
        if launched:
            self._answers[spec.token] = answer
        return answer

    def _scripted(self, pool: Pool) -> ScriptedRefusal | None:
        for index, scripted in enumerate(self.script):
            if scripted.zone in ("", pool.zone):
                return self.script.pop(index)
        return None

    def _start(self, spec: LaunchSpec, pool: Pool) -> Launched:
        instance = InstanceId(f"i-{len(self._instances) + 1:04d}")
        observed = Observed(
            instance=instance,
            pool=pool,
            state=InstanceState.RUNNING,
            launched_at_s=self.now_s,
            token=spec.token,
            interrupted=False,
            expires_at_s=float(spec.expires_at_s),
        )
        self._instances[instance] = (spec.run, observed)
        return Launched(instance=instance, pool=pool, token=spec.token)

    def _end(self, instance: InstanceId, *, interrupted: bool) -> None:
        if instance in self._instances:
            run, observed = self._instances[instance]
            if observed.state.live:
                ended = replace(observed, state=InstanceState.TERMINATED, interrupted=interrupted)
                self._instances[instance] = (run, ended)
                if self.leaves_volumes:
                    self.others.append(
                        Held(
                            kind=HeldKind.VOLUME,
                            id=f"vol-{instance}",
                            run=run,
                            state="available",
                            since_s=observed.launched_at_s,
                            expires_at_s=observed.expires_at_s,
                            gib=100,
                        )
                    )


class FakePrices:
    """A `ports.PriceSource` with scripted answers; None: it refuses, as without credentials."""

    def __init__(self, seen: PricesSeen | None) -> None:
        self.seen = seen
        self.closed = False

    def read(self, types: Sequence[str], *, quotas: Sequence[str]) -> PricesSeen:
        if self.seen is None:
            raise CloudRefused("no AWS credentials were found; run `aws configure`")
        facts = {name: self.seen.facts[name] for name in types if name in self.seen.facts}
        return replace(
            self.seen,
            facts=facts,
            spot={name: zones for name, zones in self.seen.spot.items() if name in facts},
            quotas={code: self.seen.quotas[code] for code in quotas if code in self.seen.quotas},
        )

    def close(self) -> None:
        self.closed = True
