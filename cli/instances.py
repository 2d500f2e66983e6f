"""What the instances of a job are asked for with: image, template, network, rights, boot script.

Rule: in an account the instances of a run have a role of the run's own, unless the job names an
instance profile, which brings the rights that its owner gave it.
"""

from bamboo.config.tree import JobConfig
from bamboo.ids import RunId
from cloud.ec2.requests import Ec2Settings, of_run
from cloud.ec2.run_role import RunRole
from cloud.ec2.user_data import boot_script

LOCAL_IMAGE = "ami-00000000"
"""The mock starts processes, whatever the image; the real one stands in the launch template."""
LAUNCH_TEMPLATE = "bamboo-worker"
"""As `terraform/` names it by default."""


def has_role(job: JobConfig) -> bool:
    """Whether a role is made for each run of this job."""
    return job.cloud.provider == "ec2" and not job.cloud.instance_profile


def ec2_settings(job: JobConfig) -> Ec2Settings:
    """What does not change from launch to launch of a job."""
    cloud = job.cloud
    subnets = {subnet.zone: subnet.id for subnet in cloud.subnets}
    groups = (cloud.security_group,) if cloud.security_group else ()
    if cloud.provider == "local":
        # The mock takes of a template only what the request repeats.
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
    """The settings with which the instances of a run are asked for: with its own role, if one is
    made for it."""
    settings = ec2_settings(job)
    if not has_role(job):
        return settings
    return of_run(settings, RunRole(region=job.cloud.region, stack=job.cloud.stack, run=run))
