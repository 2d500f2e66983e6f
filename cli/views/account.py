"""What a job uses of an account, for the dry run. Pure."""

from dataclasses import asdict
from typing import Any

from bamboo.config.tree import JobConfig

NAMES = (
    *("launch_template", "subnets", "security_group", "instance_profile", "bucket"),
    "store_secret",
)

_IN_TEMPLATE = "(in the launch template)"
_UNNAMED = {"security_group": _IN_TEMPLATE, "instance_profile": _IN_TEMPLATE}


def account_lines(job: JobConfig) -> list[str]:
    """A line for each part of the account that the job uses; none of a local job."""
    if job.cloud.provider == "local":
        return []
    parts = account_body(job)["account"]
    if not any(parts.values()):
        return [f"account in {job.cloud.region}: nothing is named; `bamboo init` writes it down"]
    lines = [f"account in {job.cloud.region}:"]
    for name, value in parts.items():
        listed = (
            ", ".join(f"{s['id']} ({s['zone']})" for s in value) if name == "subnets" else value
        )
        lines.append(f"  {name:17}{listed or _UNNAMED.get(name, '(none named)')}")
    return lines


def account_body(job: JobConfig) -> dict[str, Any]:
    """The same for `--json`; null for a local job."""
    if job.cloud.provider == "local":
        return {"account": None}
    cloud = asdict(job.cloud)
    return {"account": {name: cloud[name] for name in NAMES}}
