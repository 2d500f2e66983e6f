"""Where a run lives: this machine or an account, with its fleet; chosen by `cloud.provider` at the
start and by `endpoint.json` from then on.

Rule: as in `bamboo.wiring`, imports that only some commands need are inside the functions.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from bamboo import wiring
from bamboo.config.tree import JobConfig
from bamboo.errors import BambooError
from bamboo.ids import ZoneId
from bamboo.loading import interpreter
from bamboo.planner.prices.catalogue import Catalogue
from bamboo.ports import ObjectStore, Store
from bamboo.runs.live import local_cloud_of
from bamboo.runs.ports import Screen
from bamboo.runs.run_folder import RunFolder, is_detached, part_of
from bamboo.sites.site import Site
from bamboo.wiring.begun import Begun
from bamboo.wiring.store_reference import named_store, store_of_job, store_url_of

if TYPE_CHECKING:
    from bamboo.sites.account.account_site import AccountSite
    from bamboo.sites.fleet import FormerFleet, RunFleet
    from cloud.local.start import LocalCloud
    from cloud.provider import Provider


def start_site(
    folder: RunFolder,
    job: JobConfig,
    *,
    begun: Begun | None,
    data_digest: str,
    spot_usd_per_hour: Mapping[str, Mapping[str, float]],
    note: Callable[[str], None],
) -> Site:
    """The site of a run that begins. On this machine that is a local cloud, which is started unless
    it has `begun`, and ends when this process does. In an account nothing is changed before
    `prepare`. Raises BambooError."""
    if job.cloud.provider == "local":
        note(f"{folder.id}: starting the local cloud")
        from cloud.intents import Intents

        cloud = _local_cloud(folder, job, spot_usd_per_hour, begun)
        intents = Intents(folder.path / "intents.jsonl", run=folder.id, now=time.time)
        intents.all_gone("this local cloud is new")
        return cloud
    from bamboo.sites.account.account_ready import check_free
    from bamboo.sites.account.boot_files import put_boot_files, torch_for
    from bamboo.sites.account.run_roles import make_role, remove_role

    note(
        f"{folder.id}: starting in the account, {job.cloud.region}; an instance boots and installs "
        f"for some minutes before its node joins, within {job.cluster.forming_timeout_s / 60:.0f}"
    )
    if part_of(folder).number == 1:
        check_free(job, folder.id)  # again, since looking at the model took a while
    reference = store_of_job(job)

    def put() -> None:
        try:
            make_role(job, folder.id)
            put_boot_files(
                _start_objects(folder, job),
                job,
                folder,
                shared=wiring.bucket(f"s3://{job.cloud.bucket}", region=job.cloud.region),
                secrets=wiring.run_secrets(job.cloud.region, job.cloud.stack),
                reference=reference,
                data_digest=data_digest,
                torch=torch_for(job, before=_torch_before(folder)),
                note=note,
            )
        except BaseException:
            with suppress(BambooError):
                remove_role(job, folder.id)
            with suppress(BambooError):  # the id is free again
                wiring.remove_run(reference, folder.id)
            raise

    return _account_site(folder, job, reference, led=True, put=put)


def _torch_before(folder: RunFolder) -> str:
    """The build of torch that an earlier part of the run computed with; "": there is none."""
    from bamboo.coord.attested import attested_in
    from bamboo.runs.run_status import strategy_of

    attested = attested_in(folder.path, strategy_of(folder).semantics)
    facts = () if attested is None else attested.numerics
    return next((fact.value for fact in facts if fact.name == "torch"), "")


def site_of(folder: RunFolder) -> Site:
    """The site of a run that has not ended. Raises InputError when the run has no endpoint."""
    endpoint = folder.live_endpoint()
    if endpoint is None or "account" not in endpoint:
        return local_cloud_of(folder)
    from bamboo.runs.run_folder import job_of

    return _account_site(folder, job_of(folder), str(endpoint["store_url"]), led=False)


def outlives_its_launcher(folder: RunFolder) -> bool:
    """Whether the run goes on without its launcher: a run in an account always does."""
    from bamboo.runs.run_folder import job_of

    return is_detached(folder) or job_of(folder).cloud.provider != "local"


@contextmanager
def store_left_by(folder: RunFolder, site: Site) -> Iterator[Store]:
    """The store of a run whose site is gone. A store of the user's own still answers; an embedded
    one is started again over its data until the block ends. Raises BambooError."""
    if not site.has_store:
        with wiring.store_of(folder.id, site.store_url) as store:
            yield store
        return
    from cloud.local.directory import make_directory
    from cloud.local.valkey import start_valkey

    directory = make_directory()
    try:
        child = start_valkey(
            data_dir=folder.path / "store",
            socket_path=directory / "valkey.sock",
            log_path=folder.path / "logs" / "store.log",
        )
        try:
            with wiring.store_of(folder.id, child.url) as store:
                yield store
        finally:
            child.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run_fleet(
    folder: RunFolder,
    job: JobConfig,
    site: Site,
    *,
    catalogue: Catalogue,
    zones: Mapping[str, int],
    screen: Screen,
) -> "RunFleet":
    """The run's instances, through the EC2 code: against the endpoint of a local cloud, or in the
    account. What is seen in the account is recorded in the form in which a local cloud records what
    it does."""
    from bamboo.config.resolve import nodes_of
    from bamboo.sites.account.instances import run_settings
    from bamboo.sites.bought import markets_of, speeds_of
    from bamboo.sites.fleet import RunFleet
    from cloud.ec2.provider import Ec2Provider
    from cloud.fleet import Fleet
    from cloud.local.start import LocalCloud
    from cloud.reconcile import Gang
    from cloud.recorder import Recorded

    local = isinstance(site, LocalCloud)
    on_demand_usd_per_hour = catalogue.on_demand_prices()
    ec2 = Ec2Provider.connect(
        settings=run_settings(job, folder.id),
        instance_types=job.cloud.instance_types,
        zones=job.cloud.zones,
        markets=markets_of(job),
        on_demand_usd_per_hour=on_demand_usd_per_hour,
        speeds=speeds_of(job, catalogue),
        ceilings=catalogue.ceilings(),
        note=screen.note,
        endpoint_url=site.endpoint_url if isinstance(site, LocalCloud) else None,
        token=site.token if isinstance(site, LocalCloud) else "",
    )
    recorded = Recorded(ec2, folder.cloud, asks_prices=True, note=screen.note)
    return RunFleet(
        Fleet(
            ec2 if local else recorded,
            run=folder.id,
            intents=folder.path / "intents.jsonl",
            pool_out_s=job.cloud.pool_out_s,
            until_s=inf if local else _over_s(folder, job),
        ),
        site,
        journal=folder.cloud,
        kills=folder.kills,
        on_demand_usd_per_hour=on_demand_usd_per_hour,
        nodes=nodes_of(job),
        zones={ZoneId(zone): count for zone, count in zones.items()},
        most=job.budget.max_instances,
        anchors=job.cloud.anchors,
        gang=Gang(nodes=job.cluster.pipelines * job.cluster.stages, within_s=job.cloud.gang_s),
        close=recorded.close,
        max_usd=0.0 if local else job.budget.max_usd,
        dearest_usd_per_hour=max(
            on_demand_usd_per_hour.get(kind, 0.0) for kind in job.cloud.instance_types
        ),
        free_first_hour=job.budget.free_first_hour,
        note=screen.note,
        detail=screen.detail,
    )


def former_fleet(
    folder: RunFolder, job: JobConfig, *, on_demand_usd_per_hour: Mapping[str, float]
) -> "FormerFleet":
    """The instances of a run whose site is gone, for its bill."""
    from bamboo.sites.fleet import FormerFleet

    return FormerFleet(
        journal=folder.cloud,
        kills=folder.kills,
        on_demand_usd_per_hour=on_demand_usd_per_hour,
        free_first_hour=job.budget.free_first_hour,
    )


# ---------------------------------------------------------------- one machine


def _local_cloud(
    folder: RunFolder,
    job: JobConfig,
    spot_usd_per_hour: Mapping[str, Mapping[str, float]],
    begun: Begun | None,
) -> "LocalCloud":
    from bamboo.config.resolve import nodes_of
    from cloud.local.start import start_local_cloud

    named = named_store()
    return start_local_cloud(
        run=folder.id,
        run_dir=folder.path,
        store_url=store_url_of(named),
        store_reference=named,
        region=job.cloud.region,
        spot_usd_per_hour=spot_usd_per_hour,
        agent_command=_booting(job.cloud.boot_s),
        begun=None if begun is None else begun.take(),
        preload=wiring.preloaded(job),
        worker_entry=wiring.WORKER_ENTRY,
        # Twice as many, for nodes that are replaced while they still exist.
        most_instances=2 * max(nodes_of(job), job.cluster.stages),
    )


def _booting(boot_s: float) -> tuple[str, ...]:
    """The agent's command behind a modelled boot; empty: the agent starts at once."""
    if boot_s <= 0:
        return ()
    agent = interpreter("cli.main", "agent")
    return ("/bin/sh", "-c", 'sleep "$0" && exec "$@"', f"{boot_s:g}", *agent)


# ---------------------------------------------------------------- an account


def _account_site(
    folder: RunFolder,
    job: JobConfig,
    reference: str,
    *,
    led: bool,
    put: Callable[[], None] | None = None,
) -> "AccountSite":
    from bamboo.sites.account.account_site import AccountSite
    from bamboo.sites.account.boot_files import remove_boot_files
    from bamboo.sites.account.run_roles import each, remove_role

    def remove() -> None:
        each(
            lambda: remove_boot_files(
                _start_objects(folder, job),
                folder.id,
                secrets=wiring.run_secrets(job.cloud.region, job.cloud.stack),
                reference=reference,
            ),
            lambda: remove_role(job, folder.id),
        )

    return AccountSite(
        run=folder.id,
        region=job.cloud.region,
        bucket=job.cloud.bucket,
        store_url=reference,
        provider=partial(_recorded, folder, job),
        remove=remove,
        intents=folder.path / "intents.jsonl",
        led=led,
        put=put,
    )


def _recorded(folder: RunFolder, job: JobConfig) -> "Provider":
    """The account for processes other than the launcher; what it shows is recorded all the same."""
    from cloud.recorder import Recorded

    return Recorded(wiring.account(job.cloud.region, stack=job.cloud.stack), folder.cloud)


def _start_objects(folder: RunFolder, job: JobConfig) -> ObjectStore:
    return wiring.bucket(wiring.start_url(job, folder.id), region=job.cloud.region)


def _over_s(folder: RunFolder, job: JobConfig) -> float:
    """After this time (Unix) no instance of the run may exist, whatever process leads it."""
    from cloud.expiry import TO_STOP_S

    hours = job.budget.max_hours
    return part_of(folder).started_s + hours * 3600 + TO_STOP_S if hours > 0 else inf
