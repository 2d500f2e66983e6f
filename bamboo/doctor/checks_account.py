"""What `bamboo doctor` looks at in an account: credentials, clock, region, quotas, the role of spot
requests, image, network, bucket and the rights to launch.

Rule: every check asks what a launch would ask, with the same keys of `[cloud]`. A check that needs
the answer of another one asks again, so that each check stands alone.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from bamboo import wiring
from bamboo.config.catalogue import load_catalogue
from bamboo.config.tree import JobConfig
from bamboo.doctor.checks import Check, Finding, Result
from bamboo.doctor.checks_here import MOST_SKEW_S
from bamboo.errors import InputError
from bamboo.ids import RunId, ZoneId
from bamboo.planner.prices.quota import CODES, FAMILIES, quota_needed, quota_sentence
from bamboo.planner.prices.refreshed import refreshed
from bamboo.ports import PriceSource
from bamboo.sites.account.account_ready import check_bucket_for_account
from bamboo.sites.account.instances import LAUNCH_TEMPLATE, ec2_settings
from bamboo.sites.bought import markets_of
from cloud.provider import LaunchSpec, Pool

INIT = "`bamboo init --apply` makes the stack in terraform/ and names what is there"

MOST_SAID = 300
"""Characters of a refusal that are shown: EC2 appends a long encoded message."""


class Caller(Protocol):
    """The owner of the credentials, and the service's time (Unix; None: it sent none)."""

    @property
    def arn(self) -> str: ...

    @property
    def now_s(self) -> float | None: ...


class Account(Protocol):
    """What an account says of itself in a region. Any method may raise BambooError."""

    @property
    def spot_role(self) -> str:
        """The name of the role in whose name the cloud starts and ends spot instances."""

    def caller(self) -> Caller:
        """The owner of the credentials."""

    def zones(self, region: str) -> tuple[str, ...]:
        """The zones of a region; none where it is not a region of this account."""

    def has_spot_role(self) -> bool:
        """Whether `spot_role` exists."""

    def template_image(self, template: str) -> str | None:
        """The image of a launch template, "" where it names none; None: there is no template."""

    def image_state(self, image: str) -> str | None:
        """The state of an image; None: there is none."""

    def subnet_zones(self, subnets: Sequence[str]) -> Mapping[str, str]:
        """Subnet -> zone, for the subnets that exist."""

    def default_subnet_zones(self) -> tuple[str, ...]:
        """The zones that have a default subnet."""

    def refusal_of(self, spec: LaunchSpec, settings: Any) -> str:
        """Why the cloud would refuse this launch, or ""; `settings` are those of `ec2_settings`."""

    def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountChecks:
    """The checks of one region. `job` gives the keys that are checked. `needed` says that this job
    is to be launched; otherwise only the keys of the account file are checked."""

    job: JobConfig
    needed: bool
    account: Callable[..., Account] = wiring.account_facts
    prices: Callable[[str], PriceSource] = wiring.price_source
    now: Callable[[], float] = time.time

    @property
    def region(self) -> str:
        """The region that is checked."""
        return self.job.cloud.region

    def checks(self) -> list[Check]:
        """The checks, in the order in which a launch would fail."""
        asks = {
            "credentials": self._credentials,
            "clock": self._clock,
            "region": self._region,
            "quotas": self._quotas,
            "spot role": self._spot_role,
            "image": self._image,
            "network": self._network,
            "bucket": self._bucket,
        }
        if self.needed:
            asks["rights"] = self._rights
        return [
            Check(
                name=name,
                ask=self._asked(ask),
                after="" if name == "credentials" else "credentials",
            )
            for name, ask in asks.items()
        ]

    def _asked(self, ask: Callable[[Account], Finding]) -> Callable[[], Finding]:
        def asked() -> Finding:
            account = self.account(region=self.region)
            try:
                return ask(account)
            finally:
                account.close()

        return asked

    def _credentials(self, account: Account) -> Finding:
        return Finding(result=Result.GOOD, sentence=f"these are those of {account.caller().arn}")

    def _clock(self, account: Account) -> Finding:
        there_s = account.caller().now_s
        if there_s is None:
            return Finding(result=Result.UNKNOWN, sentence="AWS did not say what time it is")
        off_s = there_s - self.now()
        sentence = f"AWS is {off_s:+.0f} s from this machine"
        if abs(off_s) <= MOST_SKEW_S:
            return Finding(result=Result.GOOD, sentence=sentence)
        return Finding(
            result=Result.FAULT,
            sentence=sentence,
            remedy="set the clock by NTP: AWS refuses what is signed 5 minutes off",
        )

    def _region(self, account: Account) -> Finding:
        there, wanted = account.zones(self.region), self.job.cloud.zones
        absent = [zone for zone in wanted if zone not in there]
        if there and not absent:
            sentence = f"{self.region} has {', '.join(wanted)}"
            return Finding(result=Result.GOOD, sentence=sentence)
        return Finding(
            result=Result.FAULT,
            sentence=f"{self.region} has no {', '.join(absent) or 'zones'}",
            remedy=f"take cloud.zones of {', '.join(there)}" if there else "correct cloud.region",
        )

    def _quotas(self, account: Account) -> Finding:
        """For a job, the quotas that it needs; otherwise those of all GPU types on spot."""
        job, region = self.job, self.region
        types = job.cloud.instance_types if self.needed else ()
        source = self.prices(region)
        try:
            seen = source.read(types, quotas=CODES)
        finally:
            source.close()
        if seen.notes:
            return Finding(
                result=Result.UNKNOWN,
                sentence="; ".join(seen.notes),
                remedy="the right servicequotas:GetServiceQuota is in the policy launcher_policy",
            )
        if not self.needed:
            names = {f.spot.code: f.spot.name for f in FAMILIES}
            lines = tuple(f"{name}: {seen.quotas[code]:,.0f} vCPUs" for code, name in names.items())
            if any(seen.quotas[code] for code in names):
                return Finding(
                    result=Result.GOOD,
                    sentence=f"there are some for GPUs on spot in {region}",
                    lines=lines,
                )
            return Finding(
                result=Result.WARNING,
                sentence=f"none for GPUs on spot in {region}, as in every new account",
                remedy="ask for them in Service Quotas; `bamboo doctor JOB` says how many",
                lines=lines,
            )
        at = datetime.fromtimestamp(self.now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        catalogue = refreshed(load_catalogue(region), seen, at=at, source=f"EC2 in {region}")
        cluster = job.cluster
        pipelines = max(cluster.pipelines, cluster.max_pipelines)
        nodes = pipelines * cluster.stages + cluster.standbys
        fixed = nodes if job.cloud.market != "spot" else job.cloud.anchors
        needs = [
            need
            for name in types
            for spot, count in ((True, nodes - fixed), (False, fixed))
            for need in quota_needed({name: count}, catalogue, spot=spot)
        ]
        # Any single type of the job may have to serve all of its nodes.
        lines = tuple(quota_sentence(need, region=region) for need in needs)
        enough = [need.enough for need in needs]
        result = (
            Result.FAULT if False in enough else Result.UNKNOWN if None in enough else Result.GOOD
        )
        return Finding(
            result=result,
            sentence=f"{nodes} nodes of {', '.join(types)}",
            remedy="" if result is Result.GOOD else f"ask for more in Service Quotas of {region}",
            lines=lines,
        )

    def _spot_role(self, account: Account) -> Finding:
        if account.has_spot_role():
            return Finding(result=Result.GOOD, sentence=f"{account.spot_role} is there")
        return Finding(
            result=Result.WARNING,
            sentence=f"{account.spot_role} is not there: the first spot request makes it, if it "
            "may",
            remedy="aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
        )

    def _image(self, account: Account) -> Finding:
        cloud = self.job.cloud
        template = cloud.launch_template or ("" if cloud.image else LAUNCH_TEMPLATE)
        image, whose = cloud.image, "the image"
        if template:
            of_template = account.template_image(template)
            if of_template is None:
                return Finding(
                    result=Result.FAULT,
                    sentence=f"there is no launch template {template} in {self.region}",
                    remedy=f"{INIT}, or correct cloud.launch_template",
                )
            whose = f"launch template {template}, and its image"
            image = image or of_template
        state = account.image_state(image) if image else None
        if state == "available":
            return Finding(result=Result.GOOD, sentence=f"{whose} {image} are there")
        return Finding(
            result=Result.FAULT,
            sentence=f"{whose} {image or '(none named)'}: {state or 'not there'}",
            remedy=f"name one of {self.region} as cloud.image, or in the template: image_id",
        )

    def _network(self, account: Account) -> Finding:
        named = {subnet.id: subnet.zone for subnet in self.job.cloud.subnets}
        zones = self.job.cloud.zones
        if not named:
            bare = sorted(set(zones) - set(account.default_subnet_zones()))
            if not bare:
                sentence = f"no subnet is named; the default ones of {', '.join(zones)} are there"
                return Finding(result=Result.GOOD, sentence=sentence)
            return Finding(
                result=Result.FAULT,
                sentence=f"no subnet is named, and {', '.join(bare)} has no default one",
                remedy=f"{INIT}, or name cloud.subnets",
            )
        there = account.subnet_zones(sorted(named))
        wrong = [
            f"{name} is in {there[name]}, not {zone}" if name in there else f"{name} is not there"
            for name, zone in sorted(named.items())
            if there.get(name) != zone
        ]
        if not wrong:
            return Finding(result=Result.GOOD, sentence=f"there: {', '.join(sorted(named))}")
        return Finding(
            result=Result.FAULT,
            sentence="; ".join(wrong),
            remedy="`bamboo init --force` writes down which are there",
        )

    def _rights(self, account: Account) -> Finding:
        """Make both calls of a launch, for one pool and for several, as dry runs."""
        cloud = self.job.cloud
        market, settings = markets_of(self.job)[0], ec2_settings(self.job)
        pools = tuple(
            Pool(instance_type=kind, zone=ZoneId(zone), market=market)
            for kind in cloud.instance_types
            for zone in cloud.zones
            if not settings.subnets or zone in settings.subnets
        )
        if not pools:
            sentence = "there is no type in a zone with a subnet to try it with"
            return Finding(result=Result.UNKNOWN, sentence=sentence, remedy=INIT)
        one = LaunchSpec(
            run=RunId("doctor"),
            pool=pools[0],
            count=1,
            token=secrets.token_hex(16),
            expires_at_s=int(self.now()) + 3600,
        )
        # A single pool is requested through a fleet too, because a later job may have several.
        several = replace(one, alternatives=pools[1:] or pools)
        refusals = [account.refusal_of(spec, settings) for spec in (one, several)]
        said = "; ".join(one[:MOST_SAID] for one in refusals if one)
        if not said:
            sentence = "RunInstances and CreateFleet were tried dry, and would be done"
            return Finding(result=Result.GOOD, sentence=sentence)
        return Finding(
            result=Result.FAULT,
            sentence=said,
            remedy="attach the stack's policy to who launches: "
            "`terraform -chdir=terraform output launcher_policy`",
        )

    def _bucket(self, account: Account) -> Finding:
        """Ask S3 as a launch does."""
        name = self.job.cloud.bucket
        try:
            check_bucket_for_account(self.job)
        except InputError as error:
            sentence, _, remedy = str(error).rpartition("; ")
            return Finding(result=Result.FAULT, sentence=sentence, remedy=remedy)
        if self.job.cloud.boot_script:
            sentence = "cloud.boot_script says what an instance fetches; nothing was looked for"
            return Finding(result=Result.GOOD, sentence=sentence)
        sentence = f"boot files lie in s3://{name}; a launch brings the wheel"
        return Finding(result=Result.GOOD, sentence=sentence)
