"""What the instances of a run in an account start from.

- In the bucket, below `starts/<run>/`, where the launcher writes and no instance does: the agents'
  settings, the store's certificate, the data, and what the run takes along (`checkpoint/along`).
- In a secret of the run: its login at the store.
- Shared by all runs, by digest: the wheel, and tokens (`bamboo/checkpoint/shared_data.py`).

Rule: all of it exists before the first instance, and all but what is shared is deleted when the run
is over. The login's password is in the secret and nowhere else, and opens this one run.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from bamboo import wiring
from bamboo.checkpoint.along import put_code, put_weights, put_wheels
from bamboo.checkpoint.run_files import CHECKED, put_data
from bamboo.config.tree import JobConfig
from bamboo.coord.address import CA_VARIABLE, for_nodes
from bamboo.coord.logins import make_login, remove_login
from bamboo.data.sources import read_source
from bamboo.errors import BambooError
from bamboo.ids import RunId
from bamboo.kept_weights import INIT_FOLDER
from bamboo.ports import ObjectStore
from bamboo.quantities import size
from bamboo.runs.run_folder import RunFolder
from bamboo.sites.account.shared import share_tokens
from bamboo.sites.account.wheel import own_wheel
from bamboo.sites.account.wheelhouse import extra_of
from bamboo.user_code.bundle import CODE_FOLDER
from bamboo.user_code.wheels import WHEELS_FOLDER
from bamboo.wiring.store_reference import REDIS_VARIABLE, SECRET_REFERENCE, store_url_of
from cloud.ec2.user_data import agent_environment

AGENT_ENV, AUTHORITY = "agent.env", "store-ca.pem"
TORCH = "2.13.0"
"""The release of torch of this release of Bamboo, as in constraints.txt. Without a suffix it is the
build of PyPI, which for Linux is the one for CUDA."""
AUTHORITY_ON_INSTANCE = f"/etc/bamboo/{AUTHORITY}"
"""Where `infra/boot.sh` writes the store's certificate."""


def torch_for(job: JobConfig, *, before: str = "") -> str:
    """The build of torch that the instances of a job install. It follows from what they compute on,
    and never from the machine that launches, which may have another one. `before`: what an earlier
    part of the run computed with, whose release is kept."""
    if before and before.partition("+")[0] != TORCH:
        return before
    return TORCH if job.cluster.device == "cuda" else f"{TORCH}+cpu"


class Secrets(Protocol):
    """The secrets of a stack's runs, as `cloud.ec2.secrets.RunSecrets` keeps them."""

    def name(self, run: RunId) -> str:
        """The name of a run's secret."""

    def put(self, run: RunId, text: str) -> None:
        """Store this text in a run's secret."""

    def delete(self, run: RunId) -> None:
        """Delete a run's secret; safe when there is none."""


def put_boot_files(
    objects: ObjectStore,
    job: JobConfig,
    folder: RunFolder,
    *,
    shared: ObjectStore,
    secrets: Secrets,
    reference: str,
    data_digest: str,
    torch: str,
    note: Callable[[str], None],
) -> None:
    """Make the run's login and write everything that its instances begin with: into `objects` what
    the run starts from, into `wheels` (the whole bucket) this process's wheel unless it is there,
    and into the run's secret the URL of the store with the login. `torch` is the build that
    instances install (`torch_for`). Raises StoreRefused where the login behind `reference` may not
    make users, InputError, StorageUnavailable and the errors of a Provider. After an error nothing
    of the run is left."""
    url, run = store_url_of(reference), folder.id
    try:
        settings = put_code_and_data(
            objects,
            job,
            run,
            kept=folder.path,
            shared=shared,
            data_digest=data_digest,
            torch=torch,
            note=note,
        )
        login = make_login(url, run)
        of_nodes, _ = for_nodes(store_url_of(reference, from_here=False), login=login)
        secrets.put(run, of_nodes)
        settings[REDIS_VARIABLE] = f"{SECRET_REFERENCE}{secrets.name(run)}"
        _, authority = for_nodes(url, login=None)
        if authority:
            settings[CA_VARIABLE] = AUTHORITY_ON_INSTANCE
            _put(objects, AUTHORITY, Path(authority).read_bytes())
        put_settings(objects, settings)
    except BaseException:
        with suppress(BambooError):  # the first error is the one to report
            remove_boot_files(objects, run, secrets=secrets, reference=reference)
        raise


def put_code_and_data(
    objects: ObjectStore,
    job: JobConfig,
    run: RunId,
    *,
    kept: Path,
    shared: ObjectStore,
    data_digest: str,
    torch: str,
    note: Callable[[str], None],
) -> dict[str, str]:
    """Write what instances begin with but for the login, as `put_boot_files` does, and return their
    settings, to be written last. `kept`: the folder of the run that they train or check. Raises
    InputError, StorageUnavailable."""
    # What a model makes of text has a digest of its own, which the nodes compare.
    as_read = not job.unit
    digests = {"data": data_digest, "eval": job.evaluated_on}
    share_tokens(objects, shared, job, digests=digests, note=lambda text: note(f"{run}: {text}"))
    # A model's own data are made by each instance, from the code that comes with the run.
    if not job.data.is_prepared and job.reads_text:
        put_data(objects, read_source(job), data_digest, as_read=as_read)
    if not job.evaluated.is_prepared and job.eval.source and "eval.source" not in job.own:
        text = read_source(replace(job, data=job.evaluated), section="eval")
        put_data(objects, text, job.evaluated_on, as_read=as_read)
    if job.code:
        put_code(objects, kept / CODE_FOLDER)
    if job.weights:
        note(f"{run}: the weights that it begins with go to the bucket")
        put_weights(objects, kept / INIT_FOLDER, job.weights)
    if job.wheels:
        note(f"{run}: the wheels of {job.model.requirements} go to the bucket")
        put_wheels(objects, kept / WHEELS_FOLDER, job.wheels)
    wheel = own_wheel()
    if wheel.name not in shared.sizes(wheel.name):
        note(f"{run}: the wheel goes to the bucket, {size(len(wheel.data))}")
        shared.put_new(wheel.name, wheel.data)
    return {
        "BAMBOO_RUN": run,
        "BAMBOO_RUN_URL": wiring.run_url(job, run),
        "BAMBOO_START_URL": wiring.start_url(job, run),
        "BAMBOO_WHEEL": wheel.name,
        "BAMBOO_TORCH": torch,
        **boot_settings(job),
        "AWS_REGION": job.cloud.region,
        "AWS_DEFAULT_REGION": job.cloud.region,
    }


def boot_settings(job: JobConfig) -> dict[str, str]:
    """What only a job that brings code says to the boot of its instances: the extra of Bamboo that
    it needs, and the Python that its wheels are for."""
    python = job.cloud.python if job.model.requirements else ""
    found = {"BAMBOO_EXTRA": extra_of(job), "BAMBOO_PYTHON": python}
    return {name: value for name, value in found.items() if value}


def put_settings(objects: ObjectStore, settings: Mapping[str, str]) -> None:
    """Write the settings, with which instances can begin. Raises InputError,
    StorageUnavailable."""
    _put(objects, AGENT_ENV, agent_environment(settings).encode())


def remove_boot_files(
    objects: ObjectStore,
    run: RunId,
    *,
    secrets: Secrets,
    reference: str,
    results: ObjectStore | None = None,
) -> None:
    """Delete secret, login and files of a run of which nothing lives; safe to call again. Of a
    check, `results` is what its machine has written, and goes too. Does what it can, then raises
    BambooError that names everything that could not be deleted."""
    troubles: list[str] = []
    try:
        secrets.delete(run)
    except BambooError as error:
        troubles.append(f"the secret {secrets.name(run)} may be in the account still: {error}")
    if reference:
        try:
            remove_login(store_url_of(reference), run)
        except BambooError as error:
            troubles.append(f"the login of run {run} may be in its store still: {error}")
    try:
        objects.delete(AGENT_ENV)
        objects.delete(AUTHORITY)
        names = objects.sizes("")
        if results is not None and any(name.startswith(CHECKED) for name in names):
            for name in results.sizes(""):  # before the files that tell a check from a run
                results.delete(name)
        for name in names:
            objects.delete(name)
    except BambooError as error:
        troubles.append(f"{AGENT_ENV} or data of run {run} may be in its bucket still: {error}")
    if troubles:
        raise BambooError(f"{'; '.join(troubles)}; `bamboo stop {run}` again takes them away")


def _put(objects: ObjectStore, name: str, data: bytes) -> None:
    """Write it, replacing what an earlier start may have left."""
    objects.delete(name)
    objects.put_new(name, data)
