"""Prices, types, zones and quotas of a region, read from AWS through boto3: `ports.PriceSource`.

Rule: it reads and changes nothing. A call is tried three times at most (the library waits longer
after each throttled try), and all calls together have one deadline. Quotas belong to another
service with another permission. Without them the rest is still an answer, with a note.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bamboo.ports import PricesSeen, TypeFacts
from cloud.ec2 import requests
from cloud.ec2.calls import translated
from cloud.ec2.clients import clients_of
from cloud.ec2.pricing import Priced, spot_offers
from cloud.provider import CloudRefused, CloudThrottled, CloudUnavailable

READ_TIMEOUT_S = 20
ATTEMPTS = 3
DEADLINE_S = 90.0
"""For all pages of all calls; no call begins after it."""
PAGE = {"describe_instance_types": 100, "describe_spot_price_history": 1000}
"""The largest page of each call."""
WITHOUT_ACCOUNT = "go on with the prices there are"


class Ec2Prices:
    """What one region charges for its instances, and how many of them this account may have."""

    def __init__(
        self,
        *,
        ec2: Any,
        quotas: Any,
        region: str,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._ec2 = ec2
        self._quotas = quotas
        self._region = region
        self._now = now
        self._clock = clock
        self._deadline_s = deadline_s
        self._until_s = 0.0

    @classmethod
    def connect(cls, *, region: str, endpoint_url: str | None = None) -> "Ec2Prices":
        """With clients of its own and the user's usual credentials. Makes no call yet. Raises
        CloudUnavailable where the user's AWS settings cannot be read."""
        ec2, quotas = clients_of(
            ("ec2", "service-quotas"),
            region=region,
            read_timeout_s=READ_TIMEOUT_S,
            attempts=ATTEMPTS,
            endpoint_url=endpoint_url,
        )
        return cls(ec2=ec2, quotas=quotas, region=region)

    def read(self, types: Sequence[str], *, quotas: Sequence[str]) -> PricesSeen:
        """See `ports.PriceSource`. Types that the region does not have are left out."""
        self._until_s = self._clock() + self._deadline_s
        zone_ids = self._zone_ids()
        facts = self._facts(types)
        priced = self._spot(sorted(facts), sorted(zone_ids))
        spot: dict[str, dict[str, float]] = {}
        for offer in priced.offers:
            spot.setdefault(offer.pool.instance_type, {})[offer.pool.zone] = offer.usd_per_hour
        known, notes = self._quotas_of(quotas)
        return PricesSeen(
            region=self._region,
            zone_ids=zone_ids,
            facts=facts,
            spot=spot,
            quotas=known,
            notes=notes,
            left_out=priced.left_out,
        )

    def close(self) -> None:
        """Close the connections."""
        self._ec2.close()
        self._quotas.close()

    def _zone_ids(self) -> dict[str, str]:
        with translated("DescribeAvailabilityZones", without_account=WITHOUT_ACCOUNT):
            answer = self._ec2.describe_availability_zones(**requests.zones(self._region))
            self._check_time("DescribeAvailabilityZones")
        return {zone["ZoneName"]: zone["ZoneId"] for zone in answer["AvailabilityZones"]}

    def _facts(self, types: Sequence[str]) -> dict[str, TypeFacts]:
        asked = requests.instance_types(types)
        found = (
            (raw["InstanceType"], type_facts(raw))
            for page in self._pages("describe_instance_types", "DescribeInstanceTypes", asked)
            for raw in page["InstanceTypes"]
        )
        return {name: facts for name, facts in found if facts is not None}

    def _spot(self, types: Sequence[str], zones: Sequence[str]) -> Priced:
        if not types:
            return Priced(offers=(), left_out=())
        now = datetime.fromtimestamp(self._now(), UTC)
        now_iso = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        asked = requests.spot_prices(instance_types=tuple(types), now_iso=now_iso)
        name = "DescribeSpotPriceHistory"
        history = [
            record
            for page in self._pages("describe_spot_price_history", name, asked)
            for record in page["SpotPriceHistory"]
        ]
        return spot_offers(history, zones=zones, today=now.date())

    def _pages(self, method: str, action: str, asked: Mapping[str, Any]) -> Iterator[Any]:
        with translated(action, without_account=WITHOUT_ACCOUNT):
            pages = self._ec2.get_paginator(method)
            for page in pages.paginate(**asked, PaginationConfig={"PageSize": PAGE[method]}):
                yield page
                self._check_time(action)

    def _quotas_of(self, codes: Sequence[str]) -> tuple[dict[str, float], tuple[str, ...]]:
        """Quotas of the account. One that it may not read, and all after that, are left out with a
        note. A quota that was never raised has the default of every account."""
        known: dict[str, float] = {}
        for code in codes:
            try:
                self._check_time("GetServiceQuota")
                with translated("GetServiceQuota", without_account=WITHOUT_ACCOUNT):
                    known[code] = self._quota(ServiceCode="ec2", QuotaCode=code)
            except (CloudRefused, CloudThrottled, CloudUnavailable) as error:
                return known, (f"quotas from {code} on were not read: {error}",)
        return known, ()

    def _quota(self, **asked: str) -> float:
        try:
            answer = self._quotas.get_service_quota(**asked)
        except self._quotas.exceptions.NoSuchResourceException:
            answer = self._quotas.get_aws_default_service_quota(**asked)
        return float(answer["Quota"]["Value"])

    def _check_time(self, action: str) -> None:
        if self._clock() > self._until_s:
            raise CloudUnavailable(
                f"{action} was not over after {self._deadline_s:g} s; ask again later"
            )


def type_facts(raw: Mapping[str, Any]) -> TypeFacts | None:
    """The facts in a record of DescribeInstanceTypes; None for a type without a whole GPU."""
    gpus = raw.get("GpuInfo", {}).get("Gpus", ())
    if not gpus or not gpus[0].get("Count"):
        return None
    cards = [
        card.get("BaselineBandwidthInGbps") for card in raw["NetworkInfo"].get("NetworkCards", ())
    ]
    return TypeFacts(
        gpu=str(gpus[0]["Name"]),
        gpus=sum(int(gpu["Count"]) for gpu in gpus),
        gpu_memory_mib=int(gpus[0]["MemoryInfo"]["SizeInMiB"]),
        vcpus=int(raw["VCpuInfo"]["DefaultVCpus"]),
        network_gbps=float(sum(cards)) if cards and None not in cards else None,
    )
