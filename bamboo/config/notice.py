"""The time between a notice and the loss, and how much of it is left when the members know."""

from bamboo.config.tree import JobConfig

EC2_NOTICE_S = 120.0
"""AWS, Spot Instance interruption notices: two minutes before the instance is interrupted."""
EC2_KNOWN_S = 3.0
"""An instance checks for its notice every 2 s, and reports it to the store."""
LOCAL_KNOWN_S = 0.5
"""The local cloud shows a notice at once, and a node checks for it every 0.2 s."""


def notice_s(job: JobConfig) -> float:
    """The shortest notice of a job: the cloud's, or that of its simulated preemptions."""
    if job.cloud.provider != "local":
        return EC2_NOTICE_S
    chaos = job.chaos
    given = [kill.notice_s for kill in chaos.kill if kill.notice_s > 0]
    if chaos.kills_per_hour > 0 and chaos.notice_share > 0:
        given.append(chaos.notice_s)
    return min(given, default=EC2_NOTICE_S)


def known_notice_s(job: JobConfig) -> float:
    """The part of it that is left when the members know of it."""
    late_s = EC2_KNOWN_S if job.cloud.provider != "local" else LOCAL_KNOWN_S
    return max(0.0, notice_s(job) - late_s)
