"""The request for the instances of a job: image, template, network, rights, boot script.

Rule: in an account the instances of a run have a role of that run, unless the job names an instance
profile with rights of the user's choice.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from bamboo.config.tree import JobConfig
from bamboo.ids import RunId
from cloud.ec2.requests import Ec2Settings, asks_several, launch_call, of_run, shown
from cloud.ec2.run_role import RunRole
from cloud.ec2.user_data import boot_script
from cloud.provider import LaunchSpec

LOCAL_IMAGE = "ami-00000000"
"""The mock starts processes, whatever the image; in an account the launch template has it."""
LAUNCH_TEMPLATE = "bamboo-worker"
"""The default name in `terraform/`."""


def has_role(job: JobConfig) -> bool:
    """Whether each run of this job gets a role of its own."""
    return job.cloud.provider == "ec2" and not job.cloud.instance_profile


def ec2_settings(job: JobConfig) -> Ec2Settings:
    """The settings that all launches of a job share."""
    cloud = job.cloud
    subnets = {subnet.zone: subnet.id for subnet in cloud.subnets}
    groups = (cloud.security_group,) if cloud.security_group else ()
    if cloud.provider == "local":
        # Of a template the mock uses only what the request repeats.
        return Ec2Settings(
            region=cloud.region,
            image=LOCAL_IMAGE,
            launch_template=cloud.launch_template,
            subnets=subnets,
            security_groups=groups,
            instance_profile=cloud.instance_profile,
        )
    data = ""
    if cloud.boot_script:
        script = job.named(cloud.boot_script).read_text(encoding="utf-8")
        data = boot_script(bucket=cloud.bucket, script=script)
    return Ec2Settings(
        region=cloud.region,
        stack=cloud.stack,
        image=cloud.image,
        launch_template=cloud.launch_template or ("" if cloud.image else LAUNCH_TEMPLATE),
        subnets=subnets,
        security_groups=groups,
        instance_profile=cloud.instance_profile,
        user_data=data,
    )


def run_settings(job: JobConfig, run: RunId) -> Ec2Settings:
    """The settings that the instances of a run are requested with, including the run's own role if
    it has one."""
    settings = ec2_settings(job)
    if not has_role(job):
        return settings
    return of_run(settings, RunRole(region=job.cloud.region, stack=job.cloud.stack, run=run))


def chooses_among_pools(settings: Ec2Settings) -> bool:
    """Whether one request may name several pools, of which the cloud takes one."""
    return asks_several(settings)


def shown_requests(
    specs: Iterable[LaunchSpec], settings: Ec2Settings
) -> tuple[Mapping[str, Any], ...]:
    """The calls that would request these instances, as they may be shown."""
    return tuple(shown(*launch_call(spec, settings)) for spec in specs)
