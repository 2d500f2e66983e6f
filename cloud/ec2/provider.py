"""The Provider over EC2, through boto3. The same code serves an account and the local mock.

The library repeats no call. It would treat lack of capacity as a transient error and ask five
times, and a silent cloud would block the caller for as many timeouts. The caller asks again in a
later turn. Every call has a deadline.
"""

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from bamboo.ids import InstanceId, RunId, ZoneId
from cloud.ec2 import requests
from cloud.ec2.calls import Unknown, code_and_message, status_of, translated
from cloud.ec2.clients import client_of, mock_session, session_of
from cloud.ec2.errors import Meaning, meaning, names_what_is_new, refusal_kind
from cloud.ec2.fleets import fleet_answer, names, with_fleet
from cloud.ec2.held import fleets_of, held, release
from cloud.ec2.pricing import Priced, on_demand_offers, spot_offers
from cloud.ec2.requests import EXPIRY_TAG, TOKEN_TAG, Ec2Settings
from cloud.provider import (
    CloudRefused,
    CloudThrottled,
    CloudUnavailable,
    Held,
    InstanceState,
    LaunchAnswer,
    Launched,
    LaunchSpec,
    Market,
    Observed,
    Offer,
    Pool,
    Refusal,
    RefusalKind,
    WishHeard,
    cheapest_first,
)

READ_TIMEOUT_S = 5
"""For a list, a price or an end: the longest time that the caller is blocked."""
KNOWN_WITHIN_S = 120.0
"""Profile and template may be new to EC2 for so long after a first refusal; then they are
absent."""
LAUNCH_TIMEOUT_S = 30
"""A launch whose answer is missed may have started something, so it gets more time."""
_INTERRUPTED_CODE = "Server.SpotInstanceTermination"
_TRANSITION = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


class Ec2Provider:
    """Instances of one region. `launcher` must not retry; `reader` does all calls but the launches.
    `speeds` are those of a node by type, where the caller knows them; the others have 1.
    `ceilings`: by type, the spot price above which it is not bought. `note` is called once for each
    pool that is left out."""

    def __init__(
        self,
        *,
        launcher: Any,
        reader: Any,
        settings: Ec2Settings,
        instance_types: Sequence[str],
        zones: Sequence[str],
        markets: Collection[Market],
        on_demand_usd_per_hour: Mapping[str, float],
        speeds: Mapping[str, float] | None = None,
        ceilings: Mapping[str, float] | None = None,
        note: Callable[[str], None] = lambda text: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._launcher = launcher
        self._reader = reader
        self._settings = settings
        self._instance_types = tuple(instance_types)
        self._zones = tuple(zones)
        self._markets = frozenset(markets)
        self._on_demand = dict(on_demand_usd_per_hour)
        self._speeds = dict(speeds or {})
        self._ceilings = dict(ceilings or {})
        self._note = note
        self._noted = set[str]()
        self._now = now
        self._unknown_since_s: float | None = None

    @classmethod
    def connect(
        cls,
        *,
        settings: Ec2Settings,
        instance_types: Sequence[str],
        zones: Sequence[str],
        markets: Collection[Market],
        on_demand_usd_per_hour: Mapping[str, float],
        speeds: Mapping[str, float] | None = None,
        ceilings: Mapping[str, float] | None = None,
        note: Callable[[str], None] = lambda text: None,
        endpoint_url: str | None = None,
        token: str = "",
        launch_timeout_s: float = LAUNCH_TIMEOUT_S,
    ) -> "Ec2Provider":
        """A provider with clients of its own. `endpoint_url` is the local mock, which needs no
        account but its session `token`; without it the user's usual AWS settings are used. Makes no
        call yet."""
        session = (
            session_of(settings.region)
            if endpoint_url is None
            else mock_session(settings.region, token=token)
        )

        def client(read_timeout_s: float) -> Any:
            return client_of(
                session,
                "ec2",
                read_timeout_s=read_timeout_s,
                attempts=1,
                endpoint_url=endpoint_url,
            )

        return cls(
            launcher=client(launch_timeout_s),
            reader=client(READ_TIMEOUT_S),
            settings=settings,
            instance_types=instance_types,
            zones=zones,
            markets=markets,
            on_demand_usd_per_hour=on_demand_usd_per_hour,
            speeds=speeds,
            ceilings=ceilings,
            note=note,
        )

    @property
    def several_pools(self) -> bool:
        """By its settings: see `requests.asks_several`."""
        return requests.asks_several(self._settings)

    def launch(self, specs: Sequence[LaunchSpec]) -> LaunchAnswer:
        """One RunInstances for each wish, or CreateFleet for a wish with alternatives. Fewer
        instances than requested count as a refusal for lack of capacity. Raises when the first wish
        got no usable answer; see Provider."""
        launched: list[Launched] = []
        refusals: list[Refusal] = []
        for spec in specs:
            try:
                answer = self._later_where_new(self._ask(spec))
            except (CloudUnavailable, CloudRefused):
                if not launched and not refusals:
                    raise
                break
            launched += answer.launched
            refusals += answer.refusals
        return LaunchAnswer(launched=tuple(launched), refusals=tuple(refusals))

    def describe(self, run: RunId) -> tuple[Observed, ...]:
        """All instances with the tags of run and stack, by id. An instance that moved between two
        pages while they were read is listed once, as it was shown last."""
        found: dict[InstanceId, Observed] = {}
        with translated("DescribeInstances"):
            pages = self._reader.get_paginator("describe_instances")
            asked = requests.tagged(run, stack=self._settings.stack)
            for page in pages.paginate(**asked):
                for reservation in page["Reservations"]:
                    for one in map(observed, reservation["Instances"]):
                        found[one.instance] = one
        return tuple(found[instance] for instance in sorted(found))

    def terminate(self, instances: Sequence[InstanceId]) -> tuple[InstanceId, ...]:
        """End instances; if one of several is unknown, the others are ended one by one. EC2 may not
        know an instance for some seconds after it started it, and bills it all the same."""
        if not instances:
            return ()
        try:
            with translated("TerminateInstances"):
                self._reader.terminate_instances(InstanceIds=list(instances))
        except Unknown:
            # EC2 ends none of a list that contains an unknown one.
            if len(instances) == 1:
                return tuple(instances)
            return tuple(one for each in instances for one in self.terminate([each]))
        return ()

    def prolong(self, instances: Sequence[InstanceId], *, expires_at_s: int) -> None:
        """One CreateTags for all. EC2 tags none of a list that contains an unknown one, so the
        others wait for the next list."""
        if not instances:
            return
        with suppress(Unknown), translated("CreateTags"):
            self._reader.create_tags(**requests.prolong(instances, expires_at_s))

    def offers(self) -> tuple[Offer, ...]:
        """Present spot prices, the catalogue's on-demand prices, or both, in the configured zones;
        the cheapest per speed first. `note` is called for a pool with an invalid price."""
        now = datetime.fromtimestamp(self._now(), UTC)
        markets: list[Priced] = []
        if Market.ON_DEMAND in self._markets:
            markets.append(
                on_demand_offers(
                    self._on_demand,
                    instance_types=self._instance_types,
                    zones=self._zones,
                    speeds=self._speeds,
                )
            )
        if Market.SPOT in self._markets:
            markets.append(
                spot_offers(
                    self._spot_history(now.strftime("%Y-%m-%dT%H:%M:%SZ")),
                    zones=self._zones,
                    speeds=self._speeds,
                    ceilings=self._ceilings,
                    today=now.date(),
                )
            )
        for why in dict.fromkeys(why for market in markets for why in market.left_out):
            if why not in self._noted:
                self._noted.add(why)
                self._note(why)
        return cheapest_first([one for m in markets for one in m.offers], self._zones)

    def _spot_history(self, now_iso: str) -> list[Any]:
        history: list[Any] = []
        with translated("DescribeSpotPriceHistory"):
            pages = self._reader.get_paginator("describe_spot_price_history")
            asked = requests.spot_prices(instance_types=self._instance_types, now_iso=now_iso)
            for page in pages.paginate(**asked):
                history += page["SpotPriceHistory"]
        return history

    def held(self, run: RunId | None) -> tuple[Held, ...]:
        """By tag, without ended ones."""
        return held(self._reader, run, stack=self._settings.stack)

    def release(self, those: Sequence[Held]) -> None:
        """Fleets first, then requests, instances, volumes."""
        release(self._reader, those, terminate=self.terminate)

    def close(self) -> None:
        """Close the connections; the provider cannot be used afterwards."""
        self._launcher.close()
        self._reader.close()

    def _ask(self, spec: LaunchSpec) -> LaunchAnswer:
        call, arguments = requests.launch_call(spec, self._settings)
        method = {
            "RunInstances": self._launcher.run_instances,
            "CreateFleet": self._launcher.create_fleet,
        }[call]
        with translated(call):
            try:
                answer = method(**arguments)
            except ClientError as error:
                code, message = code_and_message(error)
                status = status_of(error)
                match meaning(code, status=status):
                    case Meaning.UNAVAILABLE | Meaning.CREDENTIALS:
                        raise
                    case Meaning.HEARD:
                        raise WishHeard(
                            f"{call}: {code}: {message}; waiting to see what it did"
                        ) from error
                    case Meaning.OVER:
                        return LaunchAnswer(launched=(), refusals=())
                return _refused(spec, refusal_kind(code, status=status), code, message)
        if call == "CreateFleet":
            return fleet_answer(_in_full(self._reader, answer, spec), spec, self._settings)
        return _answered(spec, answer)

    def _later_where_new(self, answer: LaunchAnswer) -> LaunchAnswer:
        """EC2 may not know yet what was made a moment ago: for a while, it means to ask later."""
        if not any(names_what_is_new(one.code, one.message) for one in answer.refusals):
            self._unknown_since_s = None
            return answer
        if self._unknown_since_s is None:
            self._unknown_since_s = self._now()
        if self._now() - self._unknown_since_s >= KNOWN_WITHIN_S:
            return answer
        refusals = tuple(
            replace(one, kind=RefusalKind.THROTTLED)
            if names_what_is_new(one.code, one.message)
            else one
            for one in answer.refusals
        )
        return replace(answer, refusals=refusals)


def _in_full(reader: Any, answer: Mapping[str, Any], spec: LaunchSpec) -> Mapping[str, Any]:
    """A fleet's answer that names fewer instances than requested, completed by what the fleet
    itself shows: see `cloud.ec2.fleets`. Raises CloudUnavailable where neither shows what the
    wish did."""
    fleet = answer.get("FleetId")
    if not fleet or len(names(answer)) >= spec.count:
        return answer
    try:
        shown = fleets_of(reader, [fleet])
    except (Unknown, CloudThrottled, CloudUnavailable) as error:
        if answer.get("Instances") or answer.get("Errors"):
            return answer
        raise CloudUnavailable(
            f"CreateFleet tells of no instance, and {fleet} cannot be seen yet: {error}"
        ) from error
    except CloudRefused:
        return answer
    return with_fleet(answer, shown[0]) if shown else answer


def _refused(spec: LaunchSpec, kind: RefusalKind, code: str, message: str) -> LaunchAnswer:
    """The whole call was refused, so no pool of it can start anything."""
    refusals = tuple(
        Refusal(
            spec=spec,
            pool=pool,
            kind=kind,
            code=code,
            message=message,
            missing=spec.count,
        )
        for pool in spec.pools
    )
    return LaunchAnswer(launched=(), refusals=refusals)


def _answered(spec: LaunchSpec, answer: Mapping[str, Any]) -> LaunchAnswer:
    launched = tuple(
        Launched(instance=InstanceId(raw["InstanceId"]), pool=observed(raw).pool, token=spec.token)
        for raw in answer["Instances"]
    )
    missing = spec.count - len(launched)
    if missing <= 0:
        return LaunchAnswer(launched=launched, refusals=())
    refusal = Refusal(
        spec=spec,
        pool=spec.pool,
        kind=RefusalKind.POOL_OUT,
        code="InsufficientInstanceCapacity",
        message=f"only {len(launched)} of {spec.count} were given",
        missing=missing,
    )
    return LaunchAnswer(launched=launched, refusals=(refusal,))


def observed(raw: Mapping[str, Any]) -> Observed:
    """An instance of a DescribeInstances or RunInstances answer."""
    tags = {tag["Key"]: tag["Value"] for tag in raw.get("Tags", ())}
    spot = raw.get("InstanceLifecycle") == "spot"
    state = raw["State"]["Name"]
    expires = tags.get(EXPIRY_TAG, "")
    # A stopped instance counts as ended; we never stop one.
    known = state if state in set(InstanceState) else InstanceState.SHUTTING_DOWN
    return Observed(
        instance=InstanceId(raw["InstanceId"]),
        pool=Pool(
            instance_type=raw["InstanceType"],
            zone=ZoneId(raw["Placement"]["AvailabilityZone"]),
            market=Market.SPOT if spot else Market.ON_DEMAND,
        ),
        state=InstanceState(known),
        launched_at_s=raw["LaunchTime"].timestamp(),
        token=tags.get(TOKEN_TAG, ""),
        interrupted=raw.get("StateReason", {}).get("Code") == _INTERRUPTED_CODE,
        expires_at_s=float(expires) if expires.isdecimal() else None,
        ended_at_s=_ended_at_s(str(raw.get("StateTransitionReason") or "")),
    )


def _ended_at_s(reason: str) -> float | None:
    """From `User initiated (2026-11-22 05:00:01 GMT)`; None where it has no time."""
    found = _TRANSITION.search(reason)
    try:
        return datetime.fromisoformat(f"{found[1]}+00:00").timestamp() if found else None
    except ValueError:
        return None
