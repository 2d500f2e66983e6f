"""What must hold before a job is launched into an account. The job itself is checked first, then
the store, then the bucket.

Rule: a check costs nothing and changes nothing. What would otherwise be found out only on an
instance, which is paid for, is refused here with key, value and remedy.
"""

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from packaging.utils import canonicalize_name

from bamboo import wiring
from bamboo.config.tree import JobConfig
from bamboo.coord.address import for_nodes, hide_password, read_address
from bamboo.errors import InputError, RunExists
from bamboo.ids import RunId
from bamboo.ports import ObjectStore
from bamboo.sites.account.boot_files import AGENT_ENV, boot_settings
from bamboo.sites.account.instances import has_role
from bamboo.sites.account.shared import objects_read, places_of
from bamboo.wiring.store_reference import REDIS_VARIABLE, store_of_job, store_url_of
from cloud.ec2.run_role import SHARED_KEY
from cloud.ec2.user_data import NAMES_FILE

LEAST_FORMING_S = 600.0
"""The least time to form: an instance boots, fetches and installs before its node joins."""
BOOT_FILES = (
    *("constraints.txt", "agent_names.txt", "bamboo-agent.service"),
    *("bamboo-deadman.service", "bamboo-deadman.timer", "deadman.sh"),
    *("bamboo-logs.service", "bamboo-logs.timer", "ship-logs.sh"),
)
"""What `infra/boot.sh` fetches from `boot/`, where `terraform/` puts it."""
BOUNDS = "boot/bounds.json"
"""What the role of any run may do at most, as `terraform/` puts it there, too."""
_UP_TO_DATE = "`bamboo init --apply` brings the stack up to this release"
LOCAL = 'or take cloud.provider = "local"'


def check_account(job: JobConfig, run: RunId) -> None:
    """Check everything that a job in an account needs. Raises InputError or StoreRefused for the
    first thing that is missing or wrong, StorageUnavailable when the bucket does not answer."""
    check_job_for_account(job)
    check_store_for_account(job, run)
    check_bucket_for_account(job)


def check_free(job: JobConfig, run: RunId) -> None:
    """Raises RunExists where the account or the store already has something of a run with this id.
    A launcher on another machine may lead that run, and two launchers would end each other's
    instances and delete each other's login."""
    region, found = job.cloud.region, ""
    with wiring.store_of(run, store_of_job(job)) as store:
        if store.documents():
            found = "the store holds a run of this id"
    if not found and wiring.bucket(wiring.start_url(job, run), region=region).sizes(AGENT_ENV):
        found = f"{AGENT_ENV} of a run of this id is in the bucket"
    if not found and _live_there(job, run):
        found = "instances carry the tag of this run"
    if found:
        raise RunExists(
            f"run {run} exists already in {region}: {found}; take another --run id, or end it "
            f"first: `bamboo stop {run} --region {region}`"
        )


def _live_there(job: JobConfig, run: RunId) -> bool:
    account = wiring.account(job.cloud.region, stack=job.cloud.stack)
    return any(one.state.live for one in account.describe(run))


def check_job_for_account(job: JobConfig) -> None:
    """Raises InputError for settings of a job that do not work on an instance."""
    cluster = job.cluster
    chaos = job.chaos
    url = job.checkpoint.url
    if chaos.kill:
        raise _at(job, "chaos.kill", "an account kills nothing on order", f"leave it out, {LOCAL}")
    if chaos.kills_per_hour:
        raise _at(
            job, "chaos.kills_per_hour", "an account kills nothing on order", f"take 0, {LOCAL}"
        )
    if cluster.transport != "tcp":
        raise _at(
            job, "cluster.transport", "its sockets are of one machine", 'take "tcp" in an account'
        )
    if cluster.forming_timeout_s < LEAST_FORMING_S:
        raise _at(
            job,
            "cluster.forming_timeout_s",
            "an instance boots and installs for minutes before its node joins",
            f"take at least {LEAST_FORMING_S:g}",
        )
    if url and not url.startswith("s3://"):
        raise _at(
            job,
            "checkpoint.url",
            "is a folder of this machine",
            "leave it out: they go to the run's folder of cloud.bucket",
        )
    if url and has_role(job) and url.rstrip("/") != f"s3://{job.cloud.bucket}/runs":
        raise _at(
            job,
            "checkpoint.url",
            "is out of reach of the run's instances: their role reaches the run's own folder of "
            "cloud.bucket",
            "leave it out; or name a cloud.instance_profile of yours that reaches it",
        )


def check_store_for_account(job: JobConfig, run: RunId) -> None:
    """Raises StoreRefused or InputError unless the job names a store by reference, the store
    answers, instances can reach it, and it keeps their run apart from other runs."""
    reference = store_of_job(job)
    if not reference:
        raise _at(
            job,
            "cloud.store_secret",
            "no store is named, and instances do not reach one of this machine",
            f"`bamboo init` names that of your stack; or set {REDIS_VARIABLE}",
        )
    if "://" in reference and read_address(reference).options.get("password"):
        raise InputError(
            f"{REDIS_VARIABLE} = {hide_password(reference)!r} has a password, which a run in an "
            "account does not write down; put the URL into a private file and name that: file:/path"
        )
    for_nodes(store_url_of(reference, from_here=False), login=None)
    wiring.check_external_store(reference, run)
    wiring.check_separates_runs(reference)


def check_bucket_for_account(job: JobConfig) -> None:
    """Raises InputError unless the job names a bucket with the files that instances boot from,
    StorageUnavailable when the bucket does not answer."""
    if not job.cloud.bucket:
        raise _at(
            job, "cloud.bucket", "is empty", "`bamboo init --apply` makes a stack and names its own"
        )
    objects = wiring.bucket(f"s3://{job.cloud.bucket}", region=job.cloud.region)
    if not job.cloud.boot_script:
        check_bucket(job, objects)
    check_reads(job, objects)


def check_bucket(job: JobConfig, objects: ObjectStore) -> None:
    """Raises InputError unless the boot files are in the bucket, and know what the job tells
    them."""
    there = objects.sizes("boot/")
    missing = [name for name in BOOT_FILES if f"boot/{name}" not in there]
    if missing:
        raise _at(
            job,
            "cloud.bucket",
            f"lacks {', '.join(missing)} in boot/",
            _UP_TO_DATE,
        )
    told = boot_settings(job)
    known = (objects.get(f"boot/{NAMES_FILE}") or b"").decode().split() if told else ()
    if older := [name for name in told if name not in known]:
        words = f"has a boot that knows no {', '.join(older)}, so it is of an older release"
        raise _at(job, "cloud.bucket", words, _UP_TO_DATE)


def check_reads(job: JobConfig, objects: ObjectStore) -> None:
    """Raises InputError unless the role of a run may read the tokens of a job: a stack of an older
    release allows none, and none allows those of another bucket. StorageUnavailable."""
    region = job.cloud.region
    for section, place in places_of(job).items():
        found = wiring.region_of(place.url, region=region)
        if found and found != region:
            words = (
                f"lies in {found}, and each byte that instances in {region} read would be billed"
            )
            raise _at(job, f"{section}.path", words, f"copy it to a bucket in {region}")
    names = objects_read(job) if has_role(job) else ()
    if not names:
        return
    bounds = objects.get(BOUNDS) or b""
    for section, place in places_of(job).items():
        name = f"{place.url}/{place.name}".removeprefix("s3://")
        if not SHARED_KEY.fullmatch(name.removeprefix(f"{job.cloud.bucket}/")):
            raise _at(
                job,
                f"{section}.path",
                "is out of reach of the run's instances: their role reads data/ of cloud.bucket, "
                "and names of letters, digits and _./=+@- there",
                f"copy it below s3://{job.cloud.bucket}/data/; or name a cloud.instance_profile of "
                "yours that may read it",
            )
    if not all(_within(bounds, name) for name in names):
        words = "is of a stack whose runs may not read tokens that runs share"
        raise _at(job, "cloud.bucket", words, _UP_TO_DATE)


def _within(bounds: bytes, place: str) -> bool:
    """Whether a policy allows to read this object, given as `bucket/key`."""
    try:
        allowed = [one for one in json.loads(bounds)["Statement"] if one["Effect"] == "Allow"]
        return any(
            fnmatchcase(place, str(resource).partition(":s3:::")[2])
            for one in allowed
            if "s3:GetObject" in _listed(one["Action"])
            for resource in _listed(one["Resource"])
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def pins_of_instances(job: JobConfig) -> dict[str, str]:
    """Distribution -> version that instances get of what Bamboo brings, by the stack's bucket; {}
    where a boot script of the user's own installs it. Raises StorageUnavailable."""
    if job.cloud.boot_script or not job.cloud.bucket:
        return {}
    objects = wiring.bucket(f"s3://{job.cloud.bucket}", region=job.cloud.region)
    return _pins_in((objects.get("boot/constraints.txt") or b"").decode())


def _pins_in(text: str) -> dict[str, str]:
    """The versions in a file of constraints; lines of another form say nothing."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, version = line.partition("==")
        if equals and name.strip() and not name.lstrip().startswith("#"):
            found[canonicalize_name(name.strip())] = version.strip()
    return found


def _at(job: JobConfig, key: str, problem: str, remedy: str) -> InputError:
    section, name = key.split(".")
    value: Any = getattr(getattr(job, section), name)
    shown = [str(one) for one in value] if isinstance(value, tuple) else value
    return InputError.at(file=job.file, key=key, value=shown, problem=problem, remedy=remedy)
