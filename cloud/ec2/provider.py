"""The Provider over EC2, through boto3. The same code serves an account and the local mock.

No call is repeated by the library: it would take lack of capacity for a hiccup and ask five times,
and a cloud that is silent would hold its caller for as many timeouts. Who calls asks again in a
later turn. Every call has a deadline.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from bamboo.ids import InstanceId, RunId, ZoneId
from cloud.ec2 import requests
from cloud.ec2.calls import InstanceUnknown, code_and_message, translated
from cloud.ec2.errors import CREDENTIAL_CODES, UNAVAILABLE_CODES, refusal_kind
from cloud.ec2.pricing import on_demand_offers, spot_offers
from cloud.ec2.requests import TOKEN_TAG, Ec2Settings
from cloud.provider import (
    CloudRefused,
    CloudUnavailable,
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
)

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 5
"""A list, a price, an end: so long at most is whoever asks held up, whatever else it has to do."""
LAUNCH_TIMEOUT_S = 30
"""A launch whose answer is missed may have started something; it gets more time."""
_INTERRUPTED_CODE = "Server.SpotInstanceTermination"


class Ec2Provider:
    """Instances of one region. `launcher` must not retry; `reader` does all but the launches."""

    def __init__(
        self,
        *,
        launcher: Any,
        reader: Any,
        settings: Ec2Settings,
        instance_types: Sequence[str],
        zones: Sequence[str],
        market: Market,
        on_demand_usd_per_hour: Mapping[str, float],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._launcher = launcher
        self._reader = reader
        self._settings = settings
        self._instance_types = tuple(instance_types)
        self._zones = tuple(zones)
        self._market = market
        self._on_demand = dict(on_demand_usd_per_hour)
        self._now = now

    @classmethod
    def connect(
        cls,
        *,
        settings: Ec2Settings,
        instance_types: Sequence[str],
        zones: Sequence[str],
        market: Market,
        on_demand_usd_per_hour: Mapping[str, float],
        endpoint_url: str | None = None,
    ) -> "Ec2Provider":
        """A provider with clients of its own. `endpoint_url`: the local mock, which needs no
        account; without it the user's usual AWS credentials are used. Makes no call yet."""
        mock_key = None if endpoint_url is None else "local"
        session = boto3.session.Session(
            region_name=settings.region,
            aws_access_key_id=mock_key,
            aws_secret_access_key=mock_key,
        )

        def client(read_timeout_s: int) -> Any:
            config = Config(
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=read_timeout_s,
                retries={"total_max_attempts": 1, "mode": "standard"},
            )
            return session.client("ec2", endpoint_url=endpoint_url, config=config)

        return cls(
            launcher=client(LAUNCH_TIMEOUT_S),
            reader=client(READ_TIMEOUT_S),
            settings=settings,
            instance_types=instance_types,
            zones=zones,
            market=market,
            on_demand_usd_per_hour=on_demand_usd_per_hour,
        )

    def launch(self, specs: Sequence[LaunchSpec]) -> LaunchAnswer:
        """One RunInstances per wish. Fewer instances than wished count as a refusal for lack of
        capacity. Raises when the first wish got no usable answer; see Provider."""
        launched: list[Launched] = []
        refusals: list[Refusal] = []
        for spec in specs:
            try:
                with translated("RunInstances"):
                    answer = self._run_instances(spec)
            except (CloudUnavailable, CloudRefused):
                if not launched and not refusals:
                    raise
                break
            launched += answer.launched
            refusals += answer.refusals
        return LaunchAnswer(launched=tuple(launched), refusals=tuple(refusals))

    def describe(self, run: RunId) -> tuple[Observed, ...]:
        """All instances with the run's tag, by id."""
        found = []
        with translated("DescribeInstances"):
            pages = self._reader.get_paginator("describe_instances")
            for page in pages.paginate(**requests.describe_instances(run)):
                for reservation in page["Reservations"]:
                    found += [observed(raw) for raw in reservation["Instances"]]
        return tuple(sorted(found, key=lambda o: o.instance))

    def terminate(self, instances: Sequence[InstanceId]) -> None:
        """End instances; if one of several is unknown, the others are ended one by one."""
        if not instances:
            return
        try:
            with translated("TerminateInstances"):
                self._reader.terminate_instances(InstanceIds=list(instances))
        except InstanceUnknown:
            # EC2 ends none of a list that holds an unknown one.
            if len(instances) > 1:
                for instance in instances:
                    self.terminate([instance])

    def offers(self) -> tuple[Offer, ...]:
        """Present spot prices, or the catalogue's on-demand prices, in the configured zones."""
        if self._market is Market.ON_DEMAND:
            return on_demand_offers(
                self._on_demand, instance_types=self._instance_types, zones=self._zones
            )
        now_iso = datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        history: list[Any] = []
        with translated("DescribeSpotPriceHistory"):
            pages = self._reader.get_paginator("describe_spot_price_history")
            asked = requests.spot_prices(instance_types=self._instance_types, now_iso=now_iso)
            for page in pages.paginate(**asked):
                history += page["SpotPriceHistory"]
        return spot_offers(history, zones=self._zones)

    def close(self) -> None:
        """Close the connections; the provider is of no use afterwards."""
        self._launcher.close()
        self._reader.close()

    def _run_instances(self, spec: LaunchSpec) -> LaunchAnswer:
        try:
            answer = self._launcher.run_instances(**requests.run_instances(spec, self._settings))
        except ClientError as error:
            code, message = code_and_message(error)
            kind = refusal_kind(code)
            if code in UNAVAILABLE_CODES or code in CREDENTIAL_CODES:
                raise
            refusal = Refusal(spec=spec, kind=kind, code=code, message=message, missing=spec.count)
            return LaunchAnswer(launched=(), refusals=(refusal,))
        launched = tuple(
            Launched(
                instance=InstanceId(raw["InstanceId"]), pool=observed(raw).pool, token=spec.token
            )
            for raw in answer["Instances"]
        )
        missing = spec.count - len(launched)
        refusals: tuple[Refusal, ...] = ()
        if missing > 0:
            refusal = Refusal(
                spec=spec,
                kind=RefusalKind.POOL_OUT,
                code="InsufficientInstanceCapacity",
                message=f"only {len(launched)} of {spec.count} were given",
                missing=missing,
            )
            refusals = (refusal,)
        return LaunchAnswer(launched=launched, refusals=refusals)


def observed(raw: Mapping[str, Any]) -> Observed:
    """An instance of a DescribeInstances or RunInstances answer."""
    tags = {tag["Key"]: tag["Value"] for tag in raw.get("Tags", ())}
    spot = raw.get("InstanceLifecycle") == "spot"
    state = raw["State"]["Name"]
    # A stopped instance is as good as ended for us; we never stop one.
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
    )
