"""What an account says of itself before anything is started: caller, image, network, roles.

Rule: it reads and changes nothing. A missing thing is a value, a question without an answer an
error.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from cloud.ec2 import requests
from cloud.ec2.calls import code_and_message, status_of, translated
from cloud.ec2.clients import client_of, session_of
from cloud.ec2.errors import Meaning, meaning
from cloud.ec2.requests import Ec2Settings
from cloud.provider import LaunchSpec

READ_TIMEOUT_S = 10
ATTEMPTS = 3
SPOT_ROLE = "AWSServiceRoleForEC2Spot"
WOULD_HAVE = "DryRunOperation"
"""What EC2 answers to a dry run that would have succeeded."""
NO_ANSWER = (Meaning.UNAVAILABLE, Meaning.THROTTLED)
PARAMETER = "resolve:ssm:"
"""Prefix of the name of a parameter that holds the id of an image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The owner of the credentials, and the service's time (Unix; None: it sent none)."""

    arn: str
    now_s: float | None


class Ec2Account:
    """One region of the account that this process has credentials of. `client` makes the client of
    a service at its first use, because a client of EC2 alone costs more than a question.
    """

    spot_role = SPOT_ROLE

    def __init__(self, client: Callable[[str], Any]) -> None:
        self._client = client
        self._clients: dict[str, Any] = {}

    @classmethod
    def connect(cls, *, region: str, endpoint_url: str | None = None) -> "Ec2Account":
        """With clients of its own and the user's usual credentials. Makes no call yet. Raises
        CloudUnavailable where the user's AWS settings cannot be read."""
        session = session_of(region)
        client = partial(
            client_of,
            session,
            read_timeout_s=READ_TIMEOUT_S,
            attempts=ATTEMPTS,
            endpoint_url=endpoint_url,
        )
        return cls(client)

    def caller(self) -> Caller:
        """The caller. Raises the errors of a Provider, as all methods below do."""
        with translated("GetCallerIdentity", service="AWS"):
            answer = self._of("sts").get_caller_identity()
        date = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("date", "")
        try:
            now_s = parsedate_to_datetime(date).timestamp()
        except ValueError:
            now_s = None
        return Caller(arn=str(answer["Arn"]), now_s=now_s)

    def zones(self, region: str) -> tuple[str, ...]:
        """The zones of the region, by name; none where it is not a region of this account."""
        with translated("DescribeAvailabilityZones"):
            answer = self._of("ec2").describe_availability_zones(**requests.zones(region))
        return tuple(sorted(str(zone["ZoneName"]) for zone in answer["AvailabilityZones"]))

    def has_spot_role(self) -> bool:
        """Whether the role exists in whose name EC2 starts and ends spot instances."""
        return (
            _unless_missing("GetRole", "IAM", lambda: self._of("iam").get_role(RoleName=SPOT_ROLE))
            is not None
        )

    def template_image(self, template: str) -> str | None:
        """The image of a launch template's default version, "" where it names none; None: there is
        no such template."""
        found = _unless_missing(
            "DescribeLaunchTemplateVersions",
            "EC2",
            lambda: self._of("ec2").describe_launch_template_versions(
                **requests.template_version(template)
            ),
        )
        versions = [] if found is None else found["LaunchTemplateVersions"]
        return str(versions[0]["LaunchTemplateData"].get("ImageId", "")) if versions else None

    def image_state(self, image: str) -> str | None:
        """The state of an image, given by id or by the name of a parameter; None: there is none."""
        if image.startswith(PARAMETER):
            name = image.removeprefix(PARAMETER)
            found = _unless_missing(
                "GetParameter", "SSM", lambda: self._of("ssm").get_parameter(Name=name)
            )
            if found is None:
                return None
            image = str(found["Parameter"]["Value"])
        with translated("DescribeImages"):
            images = self._of("ec2").describe_images(**requests.image(image))["Images"]
        return str(images[0]["State"]) if images else None

    def subnet_zones(self, subnets: Sequence[str]) -> Mapping[str, str]:
        """Subnet -> zone, for the subnets that exist."""
        with translated("DescribeSubnets"):
            found = self._of("ec2").describe_subnets(**requests.subnets(subnets))["Subnets"]
        return {str(one["SubnetId"]): str(one["AvailabilityZone"]) for one in found}

    def default_subnet_zones(self) -> tuple[str, ...]:
        """The zones that have a default subnet."""
        with translated("DescribeSubnets"):
            found = self._of("ec2").describe_subnets(**requests.default_subnets())["Subnets"]
        return tuple(sorted(str(one["AvailabilityZone"]) for one in found))

    def refusal_of(self, spec: LaunchSpec, settings: Ec2Settings) -> str:
        """Why EC2 would refuse this launch to these credentials, or "". It makes the call of the
        launch itself, as a dry run."""
        call, arguments = requests.launch_call(spec, settings)
        ec2 = self._of("ec2")
        ask = {"CreateFleet": ec2.create_fleet, "RunInstances": ec2.run_instances}[call]
        with translated(call):
            try:
                ask(**arguments, DryRun=True)
            except ClientError as error:
                code, message = code_and_message(error)
                if code == WOULD_HAVE:
                    return ""
                if meaning(code, status=status_of(error)) in NO_ANSWER:
                    raise
                return f"{call}: {code}: {message}"
        return ""

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()

    def _of(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._client(service)
        return self._clients[service]


def _unless_missing(action: str, service: str, ask: Callable[[], Any]) -> Any:
    """The answer, or None where the service does not know the name."""
    with translated(action, service=service):
        try:
            return ask()
        except ClientError as error:
            code, _ = code_and_message(error)
            if "NotFound" in code or code in ("NoSuchEntity", "InvalidLaunchTemplateId.Malformed"):
                return None
            raise
