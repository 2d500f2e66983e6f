"""The one place that chooses implementations: which store, objects, account, agent.
`bamboo.sites.opened` chooses where a run lives.

Rule: imports of libraries such as redis and boto3 are inside the functions that need them, so that
a command pays only for what it uses. torch is never imported: code that needs it runs in a process
of its own.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

from bamboo import far_tokens
from bamboo.config.load import job_to_json
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError, StoreUnavailable
from bamboo.ids import RunId
from bamboo.kept_weights import HF_FOLDER
from bamboo.ports import ObjectStore, PriceSource, Store, WorkerStarter
from bamboo.topology.strategy import AUTO
from bamboo.wiring import torch_process
from bamboo.wiring.begun import Begun
from bamboo.wiring.slow_work import SlowWork
from bamboo.wiring.store_reference import REDIS_VARIABLE, SECRET_REFERENCE, store_url_of

if TYPE_CHECKING:
    from bamboo.coord.driver import Driver
    from bamboo.coord.redis_store import StoreSeen
    from bamboo.planner.profiles.profiled import Profile
    from cloud.ec2.account import Ec2Account
    from cloud.ec2.run_roles import Ec2RunRoles
    from cloud.ec2.secrets import RunSecrets
    from cloud.local.start import LocalCloud as LocalCloud
    from cloud.provider import Provider

PROGRAM = "bamboo.wiring.program"
WORKER_ENTRY = "bamboo.wiring.worker:run"
PREFLIGHT_ENTRY = "bamboo.runtime.check.preflight:forked"
_PRELOADED = ("bamboo.wiring.worker", "bamboo.runtime.check.preflight")
_COMPILER = "torch._dynamo"
PREFLIGHT_DEADLINE_S = 300.0
BUILDER_DEADLINE_S = 60.0
STARTS = "starts/"
"""In a bucket, the prefix before the id of a run for what its instances start from."""


# ---------------------------------------------------------------- the store


class Folder(Protocol):
    """What is needed here of a run's folder."""

    @property
    def id(self) -> RunId: ...

    @property
    def path(self) -> Path: ...


def check_external_store(url: str, run: RunId) -> None:
    """Raises StoreRefused unless this store answers, accepts the login and can be written."""
    from bamboo.coord.open import check_store

    check_store(store_url_of(url), run=run)


def check_separates_runs(url: str) -> None:
    """Raises StoreRefused unless the store can give each run a login, and requires one."""
    from bamboo.coord.logins import check_separates_runs

    check_separates_runs(store_url_of(url))


def look_at_store(url: str) -> tuple["StoreSeen", bool]:
    """What answers at a URL or a reference, and whether by TLS. Raises StoreRefused."""
    from bamboo.coord.open import look_at_store

    found = store_url_of(url)
    return look_at_store(found), found.startswith("rediss://")


def remove_run(url: str, run: RunId) -> None:
    """Delete a run of which nothing lives from the store that the user named."""
    from bamboo.coord.open import remove_run

    remove_run(store_url_of(url), run)


@contextmanager
def store_of(run: RunId, url: str) -> Iterator[Store]:
    """The store of a run, closed at the end of the block."""
    from bamboo.coord.open import open_store

    store = open_store(store_url_of(url), run)
    try:
        yield store
    finally:
        store.close()


def driver(store: Store, me: str) -> "Driver":
    """Appends events to a run's log, in the name of `me`, under the run's own policy."""
    from bamboo.coord.driver import join_run

    return join_run(store, me)[0]


def checkpoints_of(folder: Folder, job: JobConfig) -> ObjectStore:
    """Where a run keeps its checkpoints."""
    from bamboo.checkpoint.open import open_objects

    url = checkpoint_url(folder, job)
    return open_objects(url, bucket=partial(bucket, region=job.cloud.region))


def checkpoint_url(folder: Folder, job: JobConfig) -> str:
    """The address of what `checkpoints_of` opens."""
    from bamboo.checkpoint.open import checkpoint_url

    return checkpoint_url(
        job.checkpoint.url,
        run=folder.id,
        run_dir=folder.path,
        run_url=run_url(job, folder.id),
    )


def run_url(job: JobConfig, run: RunId) -> str:
    """Where the nodes of a run in an account write; "" for a run on this machine."""
    return f"s3://{job.cloud.bucket}/runs/{run}" if job.cloud.provider == "ec2" else ""


def start_url(job: JobConfig, run: RunId) -> str:
    """Where the instances of a run in an account start from: only its launcher writes there."""
    return f"s3://{job.cloud.bucket}/{STARTS}{run}"


def run_secrets(region: str, stack: str) -> "RunSecrets":
    """The secrets of a stack's runs: each holds a run's login at the store."""
    from cloud.ec2.secrets import RunSecrets

    return RunSecrets(region=region, stack=stack)


def check_checkpoints(job: JobConfig) -> None:
    """Raises InputError where the checkpoint directory that the job names is not writable."""
    from bamboo.checkpoint.open import check_directory

    check_directory(job.checkpoint.url)


def bucket(url: str, *, region: str = "") -> ObjectStore:
    """`s3://bucket/prefix` as an object store, with the credentials of this process and, if they
    are set, its AWS_ENDPOINT_URL and (unless `region` is given) its region."""
    from cloud.ec2.s3 import S3Store

    name, _, prefix = url.removeprefix("s3://").partition("/")
    region = (
        region
        or os.environ.get("AWS_REGION")
        or os.environ.get("AWS_DEFAULT_REGION")
        or "us-east-1"
    )
    return S3Store.connect(bucket=name, prefix=prefix, region=region)


def reads_buckets() -> None:
    """From now on this process may read tokens in buckets, with its credentials and endpoint."""
    far_tokens.open_with(lambda url, region: bucket(url, region=region), program=PROGRAM)


def region_of(url: str, *, region: str) -> str:
    """The region of the bucket at this address. Raises StorageUnavailable."""
    from cloud.ec2.s3 import S3Store

    name = url.removeprefix("s3://").partition("/")[0]
    return S3Store.connect(bucket=name, prefix="", region=region).region()


# ---------------------------------------------------------------- processes with torch


def run_preflight(
    job: JobConfig,
    *,
    told: Callable[[int, int], None] | None = None,
    model: bool = True,
    begun: Begun | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Look at model and data in a process of its own: layers, data digest, entropy, numerics.
    `told` is called with (done, of all), `note` with a line on what takes a while. Without `model`
    no layer is built or reported. A local cloud that has `begun` for the job has torch imported
    already, so the process is a fork there.

    Raises InputError with the process's line when the job cannot be trained, BambooError when the
    process broke or took longer than PREFLIGHT_DEADLINE_S.
    """
    # We make and remove its scratch folder, since the process may be killed.
    with _room() as room, SlowWork(note, "importing torch") as work:

        def reached(done: int, of_all: int) -> None:
            work.reached(done, of_all)
            if told is not None:
                told(done, of_all)

        forked = begun and begun.fork(PREFLIGHT_ENTRY, room=room if model else "data")
        return torch_process.ask(
            forked
            or torch_process.Started(("bamboo.runtime.check.preflight", room if model else "data")),
            job_to_json(_on_this_machine(job)),
            what="the preflight",
            told=reached,
            works=work.begins,
            deadline_s=PREFLIGHT_DEADLINE_S,
            too_long=f"looking at model and data took longer than {PREFLIGHT_DEADLINE_S:g} s; "
            "`bamboo plan JOB --gpu` models the layers without running them; or take less "
            "data.max_bytes or a smaller model",
        )


def preloaded(job: JobConfig) -> tuple[str, ...]:
    """What the fork server of a local cloud imports for a job: `module`, or `module:argument` for a
    module whose function `preload` takes that. What takes seconds is for those jobs only that need
    it: transformers, and torch's compiler, which is loaded where layers are computed again, though
    nothing of it is used."""
    found = [*_PRELOADED, *([_COMPILER] if job.cluster.recomputes else [])]
    if job.model.is_hf:
        kept = Path(job.code) / HF_FOLDER if job.code else job.named(job.model.hf_folder)
        found += ["bamboo.models.hf.lora"] if job.model.lora.rank else []
        found.append(f"bamboo.models.hf.workload:{kept.absolute()}")
    return tuple(found)


def imported_words(job: JobConfig) -> str:
    """The part of it that takes a while, in words."""
    return "torch and transformers" if job.model.is_hf else "torch"


def _on_this_machine(job: JobConfig) -> JobConfig:
    """The job as this machine can look at it: the cards of an account's instances are not here."""
    if job.cloud.provider == "local" or job.cluster.device not in (AUTO, "cuda"):
        return job
    return replace(job, cluster=replace(job.cluster, device="cpu", allow_idle_gpu=True))


def _room() -> "TemporaryDirectory[str]":
    try:
        return TemporaryDirectory(prefix="bamboo-look-", ignore_cleanup_errors=True)
    except OSError as error:
        raise InputError(
            f"no temporary folder can be made here ({error.strerror}); make room, or set TMPDIR"
        ) from error


def run_profile(
    job: JobConfig,
    *,
    device: str,
    limit_s: float,
    machine: str,
    seen: str,
    told: Callable[[int, int], None],
) -> "Profile":
    """Measure every layer of a resolved job in a process of its own, on `cpu` or `cuda`. `told` is
    called with (done, of all). Raises InputError when it cannot be measured here, BambooError when
    the process broke or did not end."""
    from bamboo.planner.profiles.profiled import Profile

    request = {"job": job_to_json(job), "device": device, "limit_s": limit_s}
    deadline_s = limit_s + PREFLIGHT_DEADLINE_S
    body = torch_process.answer(
        ("bamboo.runtime.check.profile",),
        json.dumps(request | {"machine": machine, "seen": seen}),
        what="the measuring",
        told=told,
        deadline_s=deadline_s,
        too_long=f"the measuring was not over after {deadline_s:g} s, as one pass of a layer takes "
        "too long; take a smaller train.microbatch",
    )
    return Profile.from_json(str(body["profile"]))


def run_builder(
    file: Path, function: str, facts: Sequence[Mapping[str, Any]], situation: Mapping[str, Any]
) -> dict[str, Any]:
    """What a builder of strategies that the user wrote returns, from a process of its own. Raises
    InputError with the process's line where it raises or returns no rules, BambooError when the
    process broke, or did not end within BUILDER_DEADLINE_S."""
    asked = {
        "file": str(file.absolute()),
        "function": function,
        "facts": list(facts),
        "situation": dict(situation),
    }
    return torch_process.answer(
        ("bamboo.runtime.check.own_builder",),
        json.dumps(asked),
        what=f"the builder {file.name}:{function}",
        deadline_s=BUILDER_DEADLINE_S,
        too_long=f"the builder {file.name}:{function} had no answer after "
        f"{BUILDER_DEADLINE_S:g} s; make it faster, or name one of Bamboo's",
    )


def run_verify(
    folder: Path,
    *,
    told: Callable[[int, int], None],
    samples: bool = False,
    segment: tuple[int, int] | None = None,
    brought: bool = False,
) -> dict[str, Any]:
    """Train the run again calmly in a process of its own, or only its steps `segment`, given as
    first and stop; or with `samples` check which samples its steps used. `told` is called with
    (step, steps). `brought`: the folder is one of `run_files.fetch_checked`.

    Raises InputError when the run cannot be compared here.
    """
    module = "bamboo.runtime.check.verify_samples" if samples else "bamboo.runtime.check.verify"
    options = ("--brought",) if brought else map(str, segment or ())
    return torch_process.answer(
        ("bamboo.runs.segment" if segment else module, str(folder), *options),
        "",
        what="verify",
        told=told,
        good=(0, 5),
    )


def run_after(
    what: str,
    folder: Path,
    files: Sequence[Path],
    options: Mapping[str, Any],
    *,
    told: Callable[[int, int], None],
) -> dict[str, Any]:
    """`export`, `evaluate` or `sample` the state in these files of the run in this folder, in a
    process of its own. `told` is called with (done, of all). Raises InputError with the process's
    line when that is impossible, BambooError when it broke."""
    asked = {
        "do": what,
        "run": str(folder.absolute()),
        "files": [str(path.absolute()) for path in files],
        "options": dict(options),
    }
    return torch_process.answer(
        ("bamboo.runtime.after.program",), json.dumps(asked), what=f"to {what}", told=told
    )


def run_take(job: JobConfig, source: Path, folder: Path) -> None:
    """Write the weights that torch.distributed.checkpoint wrote into the folder `source` as those
    of a job, into files in `folder`. Raises the same errors as `run_after`."""
    asked = {
        "do": "take",
        "job": job_to_json(job),
        "source": str(source.absolute()),
        "folder": str(folder),
    }
    what = "reading train.init"
    torch_process.answer(("bamboo.runtime.after.program",), json.dumps(asked), what=what)


# ---------------------------------------------------------------- the cloud


def price_source(region: str) -> PriceSource:
    """The source of prices: AWS, with the user's credentials and, if it is set, the
    AWS_ENDPOINT_URL of this process. Raises BambooError where its settings cannot be read."""
    from cloud.ec2.prices import Ec2Prices

    return Ec2Prices.connect(region=region)


def account_facts(*, region: str) -> "Ec2Account":
    """What the user's account says of itself in a region, with credentials and endpoint as in
    `account`. Makes no call yet. Raises CloudUnavailable for settings that cannot be read."""
    from cloud.ec2.account import Ec2Account

    return Ec2Account.connect(region=region)


def stack_in(region: str) -> str:
    """The stack of the account file, if it is in that region; else ""."""
    from bamboo.config.account import account_defaults

    there = account_defaults()
    if there.get("region", JobConfig().cloud.region) != region or not there:
        return ""
    return str(there.get("stack", JobConfig().cloud.stack))


def account(
    region: str,
    *,
    stack: str | None = None,
    instance_types: Sequence[str] = (),
    zones: Sequence[str] = (),
) -> "Provider":
    """What the user's account holds of a stack in a region, and the spot prices there; with the
    user's credentials and, if it is set, the AWS_ENDPOINT_URL of this process. Without `stack` it
    is the stack of the account file, or any stack where that names none in the region."""
    from cloud.ec2.provider import Ec2Provider
    from cloud.ec2.requests import Ec2Settings
    from cloud.provider import Market

    return Ec2Provider.connect(
        settings=Ec2Settings(region=region, stack=stack_in(region) if stack is None else stack),
        instance_types=instance_types,
        zones=zones,
        markets=(Market.SPOT,),
        on_demand_usd_per_hour={},
    )


@contextmanager
def run_roles(region: str, stack: str) -> "Iterator[Ec2RunRoles]":
    """The roles of a stack's runs, with the credentials and endpoint of `account`. Raises
    CloudUnavailable for settings that cannot be read."""
    from cloud.ec2.run_roles import Ec2RunRoles

    roles = Ec2RunRoles.connect(region=region, stack=stack)
    try:
        yield roles
    finally:
        roles.close()


# ---------------------------------------------------------------- an instance


def live_as_agent(environment: Mapping[str, str]) -> int:
    """Be the agent of this instance until its worker has left; the exit status. An instance that
    has files to start from and no store checks the bits of a run instead."""
    from bamboo.agent.config import AgentConfig
    from bamboo.agent.main import run_agent
    from bamboo.coord.open import open_store, opened_in_time
    from cloud.ec2.imds import Imds

    begins = environment.get("BAMBOO_START_URL")
    if begins and not environment.get(REDIS_VARIABLE):
        from bamboo.agent.check import check_run

        return check_run(
            begins=bucket(begins),
            results=bucket(environment["BAMBOO_RUN_URL"]),
            verify=partial(run_verify, brought=True),
            heard_file=environment.get("BAMBOO_HEARD_FILE", ""),
            bucket=bucket,
        )
    config = AgentConfig.from_environment(environment)
    if config.store_url.startswith(SECRET_REFERENCE):
        # It is read once, so that a worker that starts later does not depend on one more service.
        url = opened_in_time(
            lambda: store_url_of(config.store_url), deadline_s=config.open_deadline_s
        )
        config = replace(config, store_url=url)
    return run_agent(
        metadata=Imds.from_environment(environment),
        store=lambda: open_store(store_url_of(config.store_url), config.run),
        starter=worker_starter(environment),
        config=config,
    )


def worker_starter(environment: Mapping[str, str]) -> WorkerStarter:
    """A fork of the local cloud's pre-imported server, or a new interpreter where there is none."""
    zygote = environment.get("BAMBOO_ZYGOTE", "")
    if not zygote:
        from cloud.ec2.process_starter import ProcessStarter

        return ProcessStarter()
    from cloud.local.fork_starter import ForkStarter

    return ForkStarter(
        socket_path=Path(zygote),
        entry=environment.get("BAMBOO_WORKER_ENTRY", WORKER_ENTRY),
        log=Path(environment["BAMBOO_LOG"]),
    )


WIPE_DEADLINE_S = 2.0


def local_cloud(told: Mapping[str, Any]) -> "LocalCloud":
    """The local cloud that said this of itself when it was ready, as a run's endpoint keeps it."""
    from cloud.local.config import Ready
    from cloud.local.start import LocalCloud

    return LocalCloud(Ready(**{field.name: told[field.name] for field in fields(Ready)}))


class OwnStore(Protocol):
    """What is needed here of a run's site."""

    @property
    def store_url(self) -> str: ...

    @property
    def has_store(self) -> bool: ...


def wipe_store(site: OwnStore) -> None:
    """Delete everything in a run's own store. Raises InputError where the run has none,
    StoreUnavailable when it does not answer."""
    import redis

    if not site.has_store:
        raise InputError("the store is not the run's own")
    client = redis.Redis.from_url(site.store_url, socket_timeout=WIPE_DEADLINE_S)
    try:
        client.flushall()
    except redis.RedisError as error:
        raise StoreUnavailable(f"the store does not answer: {error}") from error
    finally:
        client.close()


reads_buckets()
