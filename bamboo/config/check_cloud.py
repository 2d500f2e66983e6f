"""Checks which values of `[cloud]` about the instances themselves are possible together."""

import re

from bamboo.config.account import SECRET_ARN
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.ids import BUCKET, STACK
from bamboo.named_files import what_is_wrong

_PYTHON = re.compile(r"3\.(1[1-9]|[2-9]\d)")


def check_cloud(job: JobConfig) -> None:
    """Raises InputError with the first impossible value."""
    cloud = job.cloud
    if cloud.anchors and cloud.market != "spot":
        raise _at(job, "cloud.anchors", "stand beside spot nodes only", 'take 0, or market "spot"')
    if cloud.anchors > job.cluster.pipelines * job.cluster.stages:
        raise _at(
            job,
            "cloud.anchors",
            f"are more than the {job.cluster.pipelines} x {job.cluster.stages} nodes of the grid",
            "take fewer",
        )
    if not _PYTHON.fullmatch(cloud.python):
        raise _at(job, "cloud.python", "is no version from 3.11 on", 'write "3.12", for example')
    _subnets(job)
    secret = cloud.store_secret
    if secret and not SECRET_ARN.fullmatch(secret):
        # A value that is not a reference may be the secret itself, so it is not shown.
        raise InputError(
            f"{job.file}: cloud.store_secret: is no reference of a secret; give its ARN, "
            "arn:aws:secretsmanager:..., and never what is in it"
        )
    if not STACK.fullmatch(cloud.stack):
        raise _at(
            job,
            "cloud.stack",
            "is no name of a stack",
            "give 2 to 31 lower-case letters, digits and hyphens, a letter first",
        )
    if cloud.bucket and not BUCKET.fullmatch(cloud.bucket):
        raise _at(
            job,
            "cloud.bucket",
            "is no name of a bucket",
            "give 3 to 63 lower-case letters, digits, dots and hyphens, without s3:// before them",
        )
    # pathlib raises for a name that no file can have.
    script = job.named(cloud.boot_script)
    if cloud.boot_script and (wrong := what_is_wrong(script)):
        raise _at(job, "cloud.boot_script", wrong, "correct the path")
    if cloud.boot_script and not cloud.bucket:
        raise _at(job, "cloud.bucket", "is empty, and cloud.boot_script needs it", "name it")


def _subnets(job: JobConfig) -> None:
    with_subnet = [subnet.zone for subnet in job.cloud.subnets]
    bare = [zone for zone in job.cloud.zones if zone not in with_subnet]
    if with_subnet and bare:
        raise _at(
            job,
            "cloud.zones",
            f"has {', '.join(bare)}, of which cloud.subnets names none",
            f"take zones of {', '.join(with_subnet)}, or add a subnet there",
        )
    if len(set(with_subnet)) < len(with_subnet):
        raise _at(job, "cloud.subnets", "names a zone twice", "give one subnet a zone")


def _at(job: JobConfig, key: str, problem: str, remedy: str) -> InputError:
    value = getattr(job.cloud, key.removeprefix("cloud."))
    shown = list(value) if isinstance(value, tuple) else value
    return InputError.at(file=job.file, key=key, value=shown, problem=problem, remedy=remedy)
