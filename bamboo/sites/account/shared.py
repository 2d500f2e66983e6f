"""Tokens in the bucket of a stack, which runs share: what a launch uploads of them, what it may
read, what the bucket has, and removing it.

Rule: a plan says how many bytes a launch would upload, before anything costs money. No run deletes
tokens, neither at its end nor when it is removed: a person does, by their digest.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bamboo import wiring
from bamboo.checkpoint import shared_data
from bamboo.checkpoint.shared_data import Kept, is_there, keys_of, put_place, shared_tokens
from bamboo.config.account import account_file, account_job
from bamboo.config.prepared import token_files
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.far_tokens import TOKENS, Place, place_of
from bamboo.planner.prices.auxiliary import GIB, AuxiliaryPrice
from bamboo.planner.prices.catalogue import Catalogue
from bamboo.ports import ObjectStore
from bamboo.quantities import size, usd


@dataclass(frozen=True, slots=True, kw_only=True)
class InBucket:
    """The tokens of one section of a job, as its instances are to read them."""

    section: str
    url: str
    digest: str
    """Of those that runs share; "": they are the user's own object."""
    size_bytes: int
    upload_bytes: int
    """What the launch uploads of them."""
    usd_per_month: float
    """What they cost while they lie there; modelled. 0 where Bamboo does not keep them."""
    needs: str = ""
    """Which right of an instance profile of the user's own they need."""

    def sentence(self) -> str:
        """Where they lie, what is uploaded, and what they cost from then on."""
        first = f"[{self.section}]: {size(self.size_bytes)} of tokens"
        if not self.digest:
            words = f"{first} are read at {self.url}: nothing is uploaded"
            return f"{words}; {self.needs}" if self.needs else words
        there = f"are at {self.url} already: nothing is uploaded"
        if self.upload_bytes:
            there = f"are uploaded to {self.url}, once for all runs"
        return (
            f"{first} {there}; they stay there, for {usd(self.usd_per_month)} a month (modelled), "
            f"until `bamboo rm --data {self.digest[:12]}`"
        )

    def body(self) -> dict[str, Any]:
        """The value in `--json`."""
        return asdict(self)


def in_bucket(job: JobConfig, catalogue: Catalogue) -> tuple[InBucket, ...]:
    """The tokens that the instances of a job are to read in its bucket; none of a job on this
    machine. Raises InputError for a file that is not prepared, StorageUnavailable."""
    if job.cloud.provider == "local" or not job.cloud.bucket:
        return ()
    found: dict[str, InBucket] = {}
    for section, path in token_files(job).items():
        if place := place_of(path):
            found[str(path)] = _own_object(job, section, place)
            continue
        tokens = shared_tokens(path)
        known = found.get(tokens.digest)
        there = known is not None or is_there(_bucket_of(job), tokens)
        found[tokens.digest] = known or InBucket(
            section=section,
            url=f"s3://{job.cloud.bucket}/{tokens.folder}/",
            digest=tokens.digest,
            size_bytes=tokens.size_bytes,
            upload_bytes=0 if there else tokens.size_bytes,
            usd_per_month=_usd_per_month(tokens.size_bytes, catalogue.auxiliary.get("storage")),
        )
    return tuple(found.values())


def _own_object(job: JobConfig, section: str, place: Place) -> InBucket:
    url, profile = f"{place.url}/{place.name}", job.cloud.instance_profile
    right = f"s3:GetObject on {url.removeprefix('s3://')}*"
    return InBucket(
        section=section,
        url=url,
        digest="",
        size_bytes=sum(place.sizes.values()),
        upload_bytes=0,
        usd_per_month=0.0,
        needs=f"the profile {profile} of its instances must allow {right}" if profile else "",
    )


def _usd_per_month(size_bytes: int, price: AuxiliaryPrice | None) -> float:
    return 0.0 if price is None else size_bytes / GIB * price.usd


def objects_read(job: JobConfig) -> tuple[str, ...]:
    """The objects, as `bucket/key`, of the tokens that the instances of a job read. Raises
    InputError."""
    found: list[str] = []
    for path in token_files(job).values():
        if place := place_of(path):
            there = f"{place.url}/{place.name}".removeprefix("s3://")
            found += [f"{there}{ending}" for ending in place.sizes]
        else:
            keys = keys_of(shared_tokens(path).digest)
            found += [f"{job.cloud.bucket}/{key}" for key in keys]
    return tuple(dict.fromkeys(found))


def places_of(job: JobConfig) -> dict[str, Place]:
    """Section -> where its tokens lie, of those that are an object of the user's own."""
    found = {section: place_of(path) for section, path in token_files(job).items()}
    return {section: place for section, place in found.items() if place is not None}


def share_tokens(
    begins: ObjectStore,
    objects: ObjectStore,
    job: JobConfig,
    *,
    digests: Mapping[str, str],
    note: Callable[[str], None],
) -> None:
    """Tell the instances of a run where its tokens lie, in `begins`, and upload what the bucket,
    `objects`, lacks. `digests`: that of the run's data, by section. Raises InputError where a file
    has changed since it was looked at, StorageUnavailable."""
    for section, path in token_files(job).items():
        digest = digests[section]
        if own := place_of(path):
            put_place(begins, digest, own)
            continue
        tokens = shared_tokens(path)
        # What a model makes of tokens has a digest of its own, which the nodes compare.
        if not job.unit and digest not in (tokens.digest, tokens.facts.padded_digest):
            raise InputError("the data has changed since it was looked at; launch again")
        place = Place(
            url=f"s3://{job.cloud.bucket}/{tokens.folder}",
            name=TOKENS,
            sizes=tokens.sizes,
            digest=tokens.digest,
        )
        put_place(begins, digest, place)
        if is_there(objects, tokens):
            note(f"the tokens of [{section}] are in the bucket already, {size(tokens.size_bytes)}")
            continue
        note(f"the tokens of [{section}] go to the bucket, {size(tokens.size_bytes)}")
        shared_data.upload(objects, tokens)


def _bucket_of(job: JobConfig) -> ObjectStore:
    return wiring.bucket(f"s3://{job.cloud.bucket}", region=job.cloud.region)


# ---------------------------------------------------------------- what the bucket has


def kept_data() -> tuple[Kept, ...]:
    """What the bucket of the account file has of them. Raises InputError where it names none,
    StorageUnavailable."""
    return shared_data.kept_in(_bucket_of(_account()), starts=wiring.STARTS)


def remove_data(kept: Kept) -> None:
    """Delete them from that bucket. Raises InputError where a run reads them,
    StorageUnavailable."""
    shared_data.remove(_bucket_of(_account()), kept, starts=wiring.STARTS)


def _account() -> JobConfig:
    job = account_job()
    if job is None or not job.cloud.bucket:
        raise InputError(
            f"{account_file()} names no bucket, and tokens that runs share lie in that of a stack; "
            "`bamboo init` writes it"
        )
    return job
