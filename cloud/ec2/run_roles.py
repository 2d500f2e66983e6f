"""The role of each run in an account, made before the run's first instance and deleted after its
last. With it come the instance profile that contains it, and the launch template that names the
profile.

Rule: every name follows from the run, so nothing has to be remembered. What a killed launcher has
left is found by name, and making or removing twice does no harm. The role is made first and deleted
last, so whatever is left of a run is found by its role.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from botocore.exceptions import ClientError

from bamboo.errors import BambooError, InputError
from bamboo.ids import RunId, run_id
from cloud.ec2 import requests
from cloud.ec2.calls import code_and_message, translated
from cloud.ec2.clients import clients_of
from cloud.ec2.run_role import (
    POLICY,
    Owner,
    RunRole,
    boundary_arn,
    owner_of,
    rights,
    stack_path,
    who_has_it,
)
from cloud.provider import CloudRefused

READ_TIMEOUT_S = 10
ATTEMPTS = 3
VISIBLE_S = 30.0
"""IAM may take so long to know what it has just made."""
ASK_AGAIN_S = 1.0
_MISSING = ("NoSuchEntity", "InvalidLaunchTemplateName.NotFoundException")
_NOT_YET = (*_MISSING, "AccessDenied")
"""What IAM may answer for a role that it does not know yet: a launcher's rights are by path, and
IAM knows no path of such a role. A launcher that really lacks the right got that answer from the
call that made the role."""
_THERE = ("EntityAlreadyExists", "InvalidLaunchTemplateName.AlreadyExistsException")
_IN_USE = ("LimitExceeded",)
"""What IAM answers for a profile that already has its one role."""


class Ec2RunRoles:
    """The roles of the runs of one stack."""

    def __init__(
        self,
        *,
        iam: Any,
        ec2: Any,
        sts: Any,
        region: str,
        stack: str,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._iam = iam
        self._ec2 = ec2
        self._sts = sts
        self._region = region
        self._stack = stack
        self._now = now
        self._sleep = sleep

    @classmethod
    def connect(cls, *, region: str, stack: str, endpoint_url: str | None = None) -> "Ec2RunRoles":
        """With clients of its own and the user's usual credentials. Makes no call yet. Raises
        CloudUnavailable where the user's AWS settings cannot be read."""
        iam, ec2, sts = clients_of(
            ("iam", "ec2", "sts"),
            region=region,
            read_timeout_s=READ_TIMEOUT_S,
            attempts=ATTEMPTS,
            endpoint_url=endpoint_url,
        )
        return cls(iam=iam, ec2=ec2, sts=sts, region=region, stack=stack)

    def make(self, run: RunId, *, bucket: str, template: str, reads: Collection[str] = ()) -> None:
        """Make the run's role, its profile and, from `template` (name or id; "" makes none), its
        launch template. `reads`: what it may read of what runs share, by key. What a killed
        launcher has left of it is reused. Raises CloudRefused, CloudThrottled,
        CloudUnavailable, InputError; then nothing of it is left."""
        role = RunRole(region=self._region, stack=self._stack, run=run)
        with translated("GetCallerIdentity", service="AWS"):
            owner = owner_of(str(self._sts.get_caller_identity()["Arn"]))
        document = rights(role, owner, bucket=bucket, reads=reads)
        try:
            self._make_role(role, owner)
            self._once_visible(
                "PutRolePolicy",
                lambda: self._iam.put_role_policy(
                    RoleName=role.name, PolicyName=POLICY, PolicyDocument=json.dumps(document)
                ),
            )
            self._make_profile(role)
            if template:
                self._make_template(role, template)
        except BaseException:
            with suppress(BambooError):  # the first error is the one to report
                self.remove(run)
            raise

    def remove(self, run: RunId) -> None:
        """Delete all of it; safe to call again. Raises as `make` does, after doing the rest. The
        role then still exists, without rights."""
        role = RunRole(region=self._region, stack=self._stack, run=run)
        if not self._paths(role.path):
            # IAM knows no path of a role that does not exist, and may refuse a launcher, whose
            # rights are by path. A role of this name on another path belongs to another run.
            return
        profile = {"InstanceProfileName": role.name}
        named = {"RoleName": role.name}
        steps: tuple[tuple[str, str, Callable[[], object]], ...] = (
            (
                "EC2",
                "DeleteLaunchTemplate",
                lambda: self._ec2.delete_launch_template(LaunchTemplateName=role.template),
            ),
            (
                "IAM",
                "RemoveRoleFromInstanceProfile",
                lambda: self._iam.remove_role_from_instance_profile(**profile, **named),
            ),
            (
                "IAM",
                "DeleteInstanceProfile",
                lambda: self._iam.delete_instance_profile(**profile),
            ),
            (
                "IAM",
                "DeleteRolePolicy",
                lambda: self._iam.delete_role_policy(**named, PolicyName=POLICY),
            ),
        )
        first: BambooError | None = None
        for service, action, call in steps:
            try:
                _unless(_MISSING, service, action, call)
            except BambooError as error:
                first = first or error
        if first is not None:
            raise first
        _unless(_MISSING, "IAM", "DeleteRole", lambda: self._iam.delete_role(**named))

    def runs(self) -> tuple[RunId, ...]:
        """The runs that have any of this. Raises as `make` does."""
        prefix = stack_path(self._region, self._stack)
        found = []
        for path in self._paths(prefix):
            with suppress(InputError):  # not one of our names
                found.append(run_id(path.removeprefix(prefix).removesuffix("/")))
        return tuple(sorted(found))

    def _paths(self, prefix: str) -> list[str]:
        """The paths of all roles below this one."""
        with translated("ListRoles", service="IAM"):
            pages = self._iam.get_paginator("list_roles").paginate(PathPrefix=prefix)
            return [str(role["Path"]) for page in pages for role in page["Roles"]]

    def close(self) -> None:
        """Close the connections."""
        for client in (self._iam, self._ec2, self._sts):
            client.close()

    def _make_role(self, role: RunRole, owner: Owner) -> None:
        bound = boundary_arn(role, owner)
        made = _unless(
            _THERE,
            "IAM",
            "CreateRole",
            lambda: self._iam.create_role(
                Path=role.path,
                RoleName=role.name,
                AssumeRolePolicyDocument=who_has_it(),
                PermissionsBoundary=bound,
                Description="What the instances of one Bamboo run may do",
            ),
        )
        if made:
            return
        with translated("GetRole", service="IAM"):
            there = self._iam.get_role(RoleName=role.name)["Role"]
        bounds = there.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn")
        if there["Path"] != role.path or bounds != bound:
            raise CloudRefused(
                f"the role {role.name} is in the account already, below {there['Path']} and "
                f"bounded by {bounds}: Bamboo made none such; delete it, or take another --run id"
            )

    def _make_profile(self, role: RunRole) -> None:
        profile = {"InstanceProfileName": role.name}
        _unless(
            _THERE,
            "IAM",
            "CreateInstanceProfile",
            lambda: self._iam.create_instance_profile(**profile, Path=role.path),
        )
        self._once_visible(
            "AddRoleToInstanceProfile",
            lambda: self._iam.add_role_to_instance_profile(**profile, RoleName=role.name),
            also=_IN_USE,
        )

    def _make_template(self, role: RunRole, template: str) -> None:
        """From the present version of the stack's template, with the profile."""
        with translated("DescribeLaunchTemplateVersions"):
            found = self._ec2.describe_launch_template_versions(
                **requests.template_version(template)
            )["LaunchTemplateVersions"]
        if not found:
            raise CloudRefused(
                f"the launch template {template} has no default version; `bamboo init --apply` "
                "makes it, or name another as cloud.launch_template"
            )
        form = self._ec2.meta.service_model.shape_for("RequestLaunchTemplateData")
        data = _that_may_be_asked(found[0]["LaunchTemplateData"], form)
        asked = requests.run_template(role, data)
        if not self._has_made(asked):
            # A template that was left may be outdated, so it is made again.
            _unless(
                _MISSING,
                "EC2",
                "DeleteLaunchTemplate",
                lambda: self._ec2.delete_launch_template(LaunchTemplateName=role.template),
            )
            with translated("CreateLaunchTemplate"):
                self._ec2.create_launch_template(**asked)

    def _has_made(self, asked: Mapping[str, Any]) -> bool:
        return _unless(
            _THERE,
            "EC2",
            "CreateLaunchTemplate",
            lambda: self._ec2.create_launch_template(**asked),
        )

    def _once_visible(
        self, action: str, call: Callable[[], object], *, also: Collection[str] = ()
    ) -> None:
        """Call it until IAM knows what was made a moment ago. Until then IAM may answer that it
        does not exist, or that nobody may change it."""
        end_s = self._now() + VISIBLE_S
        while self._now() < end_s:
            if _unless(_NOT_YET, "IAM", action, call, also=also):
                return
            self._sleep(ASK_AGAIN_S)
        with translated(action, service="IAM"):
            call()


def _unless(
    codes: Collection[str],
    service: str,
    action: str,
    call: Callable[[], object],
    *,
    also: Collection[str] = (),
) -> bool:
    """Whether the call was done, or (`also`) had been before; False for an answer in `codes`."""
    with translated(action, service=service):
        try:
            call()
        except ClientError as error:
            code, _ = code_and_message(error)
            if code in also:
                return True
            if code in codes:
                return False
            raise
    return True


def _that_may_be_asked(data: Any, form: Any) -> Any:
    """The part of EC2's description of a template that EC2 accepts as a template: a description has
    states too."""
    if form.type_name == "structure":
        return {
            name: _that_may_be_asked(value, form.members[name])
            for name, value in data.items()
            if name in form.members
        }
    if form.type_name == "list":
        return [_that_may_be_asked(one, form.member) for one in data]
    return data
