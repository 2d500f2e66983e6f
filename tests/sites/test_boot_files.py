"""What instances start from: put down whole or not at all, with the password in one place, and
taken away again."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.checkpoint.directory import DirectoryStore
from bamboo.config.tree import JobConfig
from bamboo.coord.acl import user_name
from bamboo.coord.open import check_store
from bamboo.errors import BambooError, InputError, StorageUnavailable, StoreRefused
from bamboo.ids import RunId
from bamboo.runs.run_folder import RunFolder
from bamboo.sites.account.boot_files import (
    AGENT_ENV,
    AUTHORITY,
    TORCH,
    put_boot_files,
    put_code_and_data,
    remove_boot_files,
    torch_for,
)
from bamboo.sites.account.wheel import own_wheel
from cloud.provider import CloudUnavailable
from testbed.store_server import AdminStore, start_admin_store
from tests.exposed import files_with
from tests.jobs import TEXT, tiny_job
from tests.tls_store import free_port, make_certificates
from tests.token_folder import prepared, some_ids, write_tokens

RUN = RunId("r1")
IN_ACCOUNT = ("cloud.provider=ec2", "cloud.bucket=bucket", "cloud.region=eu-west-1")
EVAL = ("eval.every_steps=2", "eval.source=path", "eval.path=text.txt", "eval.samples=4")
EVALUATED_ON = hashlib.sha256(TEXT[: 4 * 8 + 1].encode()).hexdigest()
DIGEST = hashlib.sha256(TEXT.encode()).hexdigest()


class Objects(DirectoryStore):
    """A bucket that does not take an object of this name, or forget any."""

    refused = ""
    keeps = False
    unlisted = False

    def sizes(self, prefix: str) -> Mapping[str, int]:
        if self.unlisted:
            raise StorageUnavailable("no")
        return super().sizes(prefix)

    def put_new(self, name: str, data: bytes) -> bool:
        if name == self.refused:
            raise StorageUnavailable(f"{name}: no")
        return super().put_new(name, data)

    def delete(self, name: str) -> None:
        if self.keeps:
            raise StorageUnavailable("no")
        super().delete(name)


class Secrets:
    """Those of a stack, which forgets none while it `keeps` them."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self.keeps = False

    def name(self, run: RunId) -> str:
        return f"stack/runs/{run}"

    def put(self, run: RunId, text: str) -> None:
        self.held[self.name(run)] = text

    def delete(self, run: RunId) -> None:
        if self.keeps:
            raise CloudUnavailable("no")
        self.held.pop(self.name(run), None)


@pytest.fixture
def secrets() -> Secrets:
    return Secrets()


@pytest.fixture
def store() -> Iterator[AdminStore]:
    started = start_admin_store(port=free_port())
    yield started
    started.stop()


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(tmp_path / "bucket")


def job(folder: Path) -> JobConfig:
    made = tiny_job(folder, [*IN_ACCOUNT, *EVAL, 'cloud.zones=["eu-west-1a"]'])
    return replace(made, evaluated_on=EVALUATED_ON)


def reference(folder: Path, url: str) -> str:
    path = folder / "store-url"
    path.touch(mode=0o600)
    path.write_text(url)
    return f"file:{path}"


def put(
    folder: Path,
    objects: Objects,
    secrets: Secrets,
    store_reference: str,
    digest: str = DIGEST,
) -> list[str]:
    notes: list[str] = []
    put_boot_files(
        objects,
        job(folder),
        RunFolder(id=RUN, path=folder / "run"),
        shared=DirectoryStore(folder / "shared"),
        secrets=secrets,
        reference=store_reference,
        data_digest=digest,
        torch="2.13.0",
        note=notes.append,
    )
    return notes


def test_the_build_of_torch_follows_from_the_device_and_from_earlier_parts(tmp_path: Path) -> None:
    cards = job(tmp_path)
    cards = replace(cards, cluster=replace(cards.cluster, device="cuda"))
    idle = replace(cards, cluster=replace(cards.cluster, device="cpu", allow_idle_gpu=True))
    assert torch_for(cards) == TORCH
    assert torch_for(idle) == f"{TORCH}+cpu"
    assert torch_for(cards, before=f"{TORCH}+cu130") == TORCH, "as PyPI's build calls itself"
    assert torch_for(cards, before="2.12.1+cu126") == "2.12.1+cu126", "bits of a run stay"
    constraints = (Path(__file__).parents[2] / "constraints.txt").read_text()
    assert f"torch=={TORCH}" in constraints.splitlines()


def test_tokens_go_to_the_bucket_unless_the_image_has_them(
    tmp_path: Path, objects: Objects
) -> None:
    path = write_tokens(tmp_path / "x.ids", some_ids(1000))
    digest = prepared(path).facts.digest
    data = replace(job(tmp_path).data, source="tokens", path=str(path), in_image=True)
    other = write_tokens(tmp_path / "y.ids", some_ids(900))
    evaluated_on = prepared(other).facts.digest
    evaluated = replace(job(tmp_path).eval, source="tokens", path=str(other))
    found = replace(job(tmp_path), data=data, tokens=str(path), eval=evaluated)
    found = replace(found, evaluated_on=evaluated_on)

    shared = DirectoryStore(tmp_path / "shared")
    notes: list[str] = []

    def put_for(asked: JobConfig) -> set[str]:
        notes.clear()
        put_code_and_data(
            objects,
            asked,
            RUN,
            kept=tmp_path,
            shared=shared,
            data_digest=digest,
            torch="2.13.0",
            note=notes.append,
        )
        return set(objects.sizes(""))

    def shared_files(digest: str) -> set[str]:
        return {f"data/{digest}/tokens{ending}" for ending in ("", ".json", ".tree")} | {
            f"data/{digest}/whole.json"
        }

    def places(*digests: str) -> set[str]:
        return {f"data/{digest}/place.json" for digest in digests}

    assert put_for(found) == places(evaluated_on)
    assert set(shared.sizes("data/")) == shared_files(evaluated_on)
    brought = replace(found, data=replace(data, in_image=False))
    assert put_for(brought) == places(digest, evaluated_on)
    assert set(shared.sizes("data/")) == shared_files(digest) | shared_files(evaluated_on)
    assert [note for note in notes if "tokens" in note] == [
        "r1: the tokens of [data] go to the bucket, 2.2 KiB",
        "r1: the tokens of [eval] are in the bucket already, 2.0 KiB",
    ]
    with pytest.raises(InputError, match="has changed since"):
        put_for(replace(brought, evaluated_on="0" * 64))


def test_what_a_model_makes_its_data_of_goes_to_the_bucket_by_their_digest(
    tmp_path: Path, objects: Objects
) -> None:
    made = replace(job(tmp_path), unit="masked token", evaluated_on="e" * 64)
    bert = replace(made, model=replace(made.model, model="hf:bert"))
    put_code_and_data(
        objects,
        bert,
        RUN,
        kept=tmp_path,
        shared=DirectoryStore(tmp_path / "shared"),
        data_digest="d" * 64,
        torch="2.13.0",
        note=print,
    )
    assert {name for name in objects.sizes("") if name.startswith("data/")} == {
        *(f"data/{digit * 64}" for digit in "de")
    }


def settings(objects: Objects) -> dict[str, str]:
    text = objects.get(AGENT_ENV)
    assert text is not None
    pairs = (line.partition("=") for line in text.decode().splitlines())
    return {name: json.loads(value) for name, _, value in pairs}


def test_an_agent_is_told_all_that_it_needs(
    tmp_path: Path, objects: Objects, secrets: Secrets, store: AdminStore
) -> None:
    (note,) = put(tmp_path, objects, secrets, reference(tmp_path, store.admin_url))
    assert "the wheel goes to the bucket" in note
    told = settings(objects)
    url = secrets.held["stack/runs/r1"]
    wheel = told.pop("BAMBOO_WHEEL")
    assert DirectoryStore(tmp_path / "shared").get(wheel) == own_wheel().data
    assert told == {
        "BAMBOO_RUN": "r1",
        "BAMBOO_REDIS_URL": "secret:stack/runs/r1",
        "BAMBOO_RUN_URL": "s3://bucket/runs/r1",
        "BAMBOO_START_URL": "s3://bucket/starts/r1",
        "AWS_REGION": "eu-west-1",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "BAMBOO_TORCH": "2.13.0",
    }
    assert url.startswith("redis://bamboo-r1:")
    assert url.endswith(f"@127.0.0.1:{store.port}/0")
    assert store.password not in url
    check_store(url, run=RUN)
    password = url.split(":")[2].partition("@")[0]
    assert not files_with(password, tmp_path)
    assert set(objects.sizes("")) == {AGENT_ENV, f"data/{DIGEST}", f"data/{EVALUATED_ON}"}


def test_all_of_it_is_taken_away_also_the_second_time(
    tmp_path: Path, objects: Objects, secrets: Secrets, store: AdminStore
) -> None:
    where = reference(tmp_path, store.admin_url)
    for _ in range(2):  # what a launcher that was killed has left is written over
        put(tmp_path, objects, secrets, where)
    for _ in range(2):
        remove_boot_files(objects, RUN, secrets=secrets, reference=where)
        assert not objects.sizes("")
        assert secrets.held == {}
        assert user_name(RUN) not in store.users()


def test_a_start_that_fails_leaves_no_login_and_no_file(
    tmp_path: Path, objects: Objects, secrets: Secrets, store: AdminStore
) -> None:
    where = reference(tmp_path, store.admin_url)
    objects.refused = AGENT_ENV
    with pytest.raises(StorageUnavailable):
        put(tmp_path, objects, secrets, where)
    assert not objects.sizes("")
    assert secrets.held == {}
    assert user_name(RUN) not in store.users()
    with pytest.raises(InputError, match="has changed since"):
        put(tmp_path, objects, secrets, where, digest="0" * 64)


def test_what_could_not_be_taken_away_is_said_when_the_rest_is(
    tmp_path: Path, objects: Objects, secrets: Secrets, store: AdminStore
) -> None:
    where = reference(tmp_path, store.admin_url)
    put(tmp_path, objects, secrets, where)
    objects.keeps = secrets.keeps = True
    said = r"the secret stack/runs/r1 may be.*data of run r1 may be in its bucket still.*again"
    with pytest.raises(BambooError, match=said):
        remove_boot_files(objects, RUN, secrets=secrets, reference=where)
    assert user_name(RUN) not in store.users()


def test_a_bucket_that_is_not_listed_forgets_the_settings_all_the_same(
    tmp_path: Path, objects: Objects, secrets: Secrets, store: AdminStore
) -> None:
    where = reference(tmp_path, store.admin_url)
    put(tmp_path, objects, secrets, where)
    objects.unlisted = True
    with pytest.raises(BambooError, match="or data of run r1 may be in its bucket still"):
        remove_boot_files(objects, RUN, secrets=secrets, reference=where)
    assert objects.get(AGENT_ENV) is None


def test_a_login_that_may_make_no_users_is_lent_to_nobody(
    tmp_path: Path, objects: Objects, secrets: Secrets, store: AdminStore
) -> None:
    put(tmp_path, objects, secrets, reference(tmp_path, store.admin_url))
    of_run = secrets.held["stack/runs/r1"]
    with pytest.raises(StoreRefused, match=r"may make no users.*name one that may"):
        put(tmp_path, objects, secrets, reference(tmp_path, of_run))
    assert not objects.sizes("")
    assert secrets.held == {}


def test_the_authority_lies_beside_the_settings(
    tmp_path: Path, objects: Objects, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificates(tmp_path)
    monkeypatch.setenv("BAMBOO_REDIS_CA", str(tmp_path / "ca.pem"))
    monkeypatch.setattr(
        "bamboo.sites.account.boot_files.make_login", lambda url, run: ("bamboo-r1", "pw")
    )
    put(tmp_path, objects, secrets, reference(tmp_path, "rediss://admin:secret@store.test:7/0"))
    told = settings(objects)
    assert secrets.held["stack/runs/r1"] == "rediss://bamboo-r1:pw@store.test:7/0"
    assert told["BAMBOO_REDIS_CA"] == "/etc/bamboo/store-ca.pem"
    assert objects.get(AUTHORITY) == (tmp_path / "ca.pem").read_bytes()
    script = (Path(__file__).parents[2] / "infra" / "boot.sh").read_text()
    assert f'fetch "starts/$run/{AUTHORITY}" "$etc/{AUTHORITY}"' in script
