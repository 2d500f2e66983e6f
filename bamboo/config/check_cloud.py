"""Which values of `[cloud]` about the instances themselves are possible together."""

from pathlib import Path

from bamboo.config.tree import JobConfig
from bamboo.errors import InputError


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
    if cloud.subnets and len(cloud.subnets) != len(cloud.zones):
        raise _at(
            job,
            "cloud.subnets",
            f"are {len(cloud.subnets)} for {len(cloud.zones)} zones",
            "give one a zone, in the order of cloud.zones",
        )
    if not (cloud.launch_template or cloud.image):
        raise _at(job, "cloud.launch_template", "is empty, and so is cloud.image", "name one")
    if cloud.boot_script and not (Path(job.file).parent / cloud.boot_script).is_file():
        raise _at(job, "cloud.boot_script", "is no file", "correct the path")
    if cloud.boot_script and not cloud.bucket:
        raise _at(job, "cloud.bucket", "is empty, and cloud.boot_script needs it", "name it")


def _at(job: JobConfig, key: str, problem: str, remedy: str) -> InputError:
    value = getattr(job.cloud, key.removeprefix("cloud."))
    shown = list(value) if isinstance(value, tuple) else value
    return InputError.at(file=job.file, key=key, value=shown, problem=problem, remedy=remedy)
