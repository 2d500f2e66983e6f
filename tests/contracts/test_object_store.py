"""One suite for each place where checkpoints go. What is promised stands in `ports.ObjectStore`."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from moto import mock_aws

from bamboo.checkpoint.catalogue import newest_good
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.errors import StorageFull, StorageUnavailable
from bamboo.ports import SMALL_BYTES, ObjectStore
from cloud.ec2.s3 import S3Store
from testbed.waiting import wait_until

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).parents[2]


PART_BYTES = 5 << 20
"""The least that S3 takes for a part."""


@pytest.fixture(params=["directory", "bucket"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectStore]:
    if request.param == "directory":
        yield DirectoryStore(tmp_path / "objects")
        return
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        yield S3Store(client, bucket="bucket", prefix="/runs/r/", part_bytes=PART_BYTES)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a mocked S3 that has no bucket yet."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield boto3.client("s3", region_name="us-east-1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content" * 1000)
    return path


def test_what_is_put_is_there(store: ObjectStore, file: Path, tmp_path: Path) -> None:
    store.put_file("a/b/shard", file)
    assert store.get("a/b/shard") == file.read_bytes()
    back = tmp_path / "back"
    assert store.fetch("a/b/shard", back)
    assert back.read_bytes() == file.read_bytes()
    assert store.sizes("") == {"a/b/shard": 7000}


def test_a_file_replaces_what_was_there(store: ObjectStore, file: Path) -> None:
    store.put_file("a", file)
    file.write_bytes(b"new")
    store.put_file("a", file)
    assert store.get("a") == b"new"


def test_an_empty_file_is_an_object_too(store: ObjectStore, file: Path) -> None:
    file.write_bytes(b"")
    store.put_file("a", file)
    assert store.sizes("") == {"a": 0}
    assert store.get("a") == b""


def test_of_what_is_no_small_object_a_bounded_part_is_read(store: ObjectStore, file: Path) -> None:
    """A manifest that is none is damage, and not the end of who reads it."""
    with file.open("r+b") as opened:
        opened.truncate(SMALL_BYTES + 5)
    store.put_file("step-00000010/manifest.json", file)
    found = store.get("step-00000010/manifest.json")
    assert found is not None
    assert len(found) == SMALL_BYTES
    assert newest_good(store, run="r", semantic_hash="s").manifest is None


def test_a_part_is_read_alone(store: ObjectStore, file: Path) -> None:
    store.put_file("a", file)
    assert store.part("a", 6993, 6996) == b"con"
    assert store.part("a", 7, 7) == b""
    assert store.part("a", 6998, 9000) == b"nt"
    assert store.part("a", 9000, 9001) == b""
    assert store.part("b", 0, 1) is None


def test_the_first_of_two_new_objects_stands(store: ObjectStore) -> None:
    assert store.put_new("a/manifest", b"one")
    assert not store.put_new("a/manifest", b"two")
    assert store.get("a/manifest") == b"one"


def test_what_is_not_there(store: ObjectStore, tmp_path: Path) -> None:
    assert store.get("a/b") is None
    assert not store.fetch("a/b", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert store.sizes("a") == {}
    store.delete("a/b")


def test_names_are_found_by_how_they_begin(store: ObjectStore) -> None:
    for name in ("step-1/a", "step-1/b/c", "step-10/a", "other"):
        assert store.put_new(name, name.encode())
    assert set(store.sizes("step-1/")) == {"step-1/a", "step-1/b/c"}
    assert set(store.sizes("step-1")) == {"step-1/a", "step-1/b/c", "step-10/a"}
    assert len(store.sizes("")) == 4


def test_what_is_deleted_is_gone_and_its_name_free(store: ObjectStore) -> None:
    assert store.put_new("a/b/c", b"x")
    store.delete("a/b/c")
    store.delete("a/b/c")
    assert store.sizes("") == {}
    assert store.put_new("a/b/c", b"y")


def test_a_file_of_several_parts_comes_back_whole(
    store: ObjectStore, file: Path, tmp_path: Path
) -> None:
    file.write_bytes(os.urandom(2 * PART_BYTES + 1))
    store.put_file("step-1/shard", file)
    assert store.fetch("step-1/shard", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == file.read_bytes()
    assert store.sizes("step-1/") == {"step-1/shard": 2 * PART_BYTES + 1}


@pytest.mark.parametrize("name", ["", "/a", "a//b", "../a", "a/../b", "a/", "."])
def test_a_name_never_leads_elsewhere(store: ObjectStore, name: str) -> None:
    with pytest.raises(ValueError, match="no name of an object"):
        store.put_new(name, b"x")


# ---------------------------------------------------------------- the bucket alone


def test_a_bucket_that_is_not_there_is_named(bucket: Any, file: Path, tmp_path: Path) -> None:
    store = S3Store(bucket, bucket="absent", prefix="runs")
    calls: list[Callable[[], object]] = [
        lambda: store.put_file("a", file),
        lambda: store.put_new("a", b"x"),
        lambda: store.get("a"),
        lambda: store.sizes(""),
        lambda: store.delete("a"),
    ]
    for call in calls:
        with pytest.raises(StorageUnavailable, match="s3://absent/runs/"):
            call()


def test_an_upload_that_fails_leaves_no_parts(bucket: Any, file: Path) -> None:
    bucket.create_bucket(Bucket="bucket")
    store = S3Store(bucket, bucket="bucket", prefix="", part_bytes=PART_BYTES)
    file.write_bytes(bytes(2 * PART_BYTES))

    def refuse(**_: object) -> None:
        raise EndpointConnectionError(endpoint_url="s3")

    bucket.meta.events.register("before-send.s3.UploadPart", refuse)
    with pytest.raises(StorageUnavailable):
        store.put_file("a", file)
    assert "Uploads" not in bucket.list_multipart_uploads(Bucket="bucket")
    assert store.sizes("") == {}


def test_no_room_for_what_is_fetched_is_no_fault_of_the_service(bucket: Any, file: Path) -> None:
    bucket.create_bucket(Bucket="bucket")
    store = S3Store(bucket, bucket="bucket", prefix="")
    store.put_file("a", file)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size // 2, before[1]))
    try:
        with pytest.raises(StorageFull, match="File too large; make room"):
            store.fetch("a", file.parent / "fetched")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_service_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    store = S3Store.connect(
        bucket="b", prefix="", region="us-east-1", endpoint_url="http://127.0.0.1:9"
    )
    with pytest.raises(StorageUnavailable, match="s3://b/a"):
        store.get("a")


class _Elsewhere(BaseHTTPRequestHandler):
    """A proxy, or another service, that sends every question on and says not where."""

    def do_GET(self) -> None:
        self.send_response(301)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""


def test_a_service_that_sends_us_round_in_circles_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        store = S3Store.connect(bucket="b", prefix="", region="us-east-1", endpoint_url=url)
        with pytest.raises(StorageUnavailable, match="s3://b/a"):
            store.get("a")
        server.shutdown()


# ---------------------------------------------------------------- the directory alone


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, file: Path) -> None:
    (tmp_path / "objects").write_text("a file where the directory should be")
    with pytest.raises(StorageUnavailable, match="objects/a"):
        DirectoryStore(tmp_path / "objects").put_file("a", file)


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    """The limit of a file's size stands for the disk's end; it is a process's own."""
    program = """
import resource, signal, sys
from pathlib import Path
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.errors import StorageFull
root = Path(sys.argv[1])
(root / "big").write_bytes(bytes(1 << 20))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
store = DirectoryStore(root / "objects")
try:
    store.put_file("step-1/shard", root / "big")
except StorageFull as error:
    print(error)
assert store.sizes("") == {}
assert not list((root / "objects" / "step-1").iterdir())
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert "make room, or keep fewer checkpoints" in done.stdout


def test_a_writer_that_is_killed_leaves_no_half_object(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from bamboo.checkpoint.directory import DirectoryStore
root = Path(sys.argv[1])
(root / "big").write_bytes(bytes(1 << 24))
store = DirectoryStore(root / "objects")
number = 0
while True:
    store.put_file(f"step-{number}/shard", root / "big")
    number += 1
"""
    store = DirectoryStore(tmp_path / "objects")
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT) as writer:
        wait_until(lambda: len(store.sizes("")) >= 3, what="three objects", timeout_s=30)
        os.kill(writer.pid, signal.SIGKILL)
    sizes = store.sizes("")
    assert len(sizes) >= 3
    assert set(sizes.values()) == {1 << 24}
    for name in (*store.strays(""), *sizes):
        store.delete(name)
    # A writer that is killed between a folder and its object leaves an empty folder.
    assert not [path for path in (tmp_path / "objects").rglob("*") if path.is_file()]


def test_what_is_written_whole_leaves_no_stray(store: ObjectStore, file: Path) -> None:
    store.put_file("a/shard", file)
    assert store.put_new("a/manifest", b"one")
    assert not store.put_new("a/manifest", b"two")
    assert list(store.strays("")) == []


def test_what_was_left_half_written_is_no_object_and_can_be_deleted(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    assert store.put_new("step-1/gen-1/shard", b"one")
    for folder in ("step-1/gen-1", "step-10/gen-1"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / ".aside-1").write_bytes(b"half")
    assert list(store.strays("step-1/")) == ["step-1/gen-1/.aside-1"]
    for name in store.strays(""):
        with pytest.raises(ValueError, match="is no name of an object"):
            store.get(name)
        store.delete(name)
        store.delete(name)
    assert list(store.strays("")) == []
    assert set(store.sizes("")) == {"step-1/gen-1/shard"}
    assert not (tmp_path / "step-10").exists()


def test_full_is_one_way_of_being_unavailable() -> None:
    assert issubclass(StorageFull, StorageUnavailable)


def test_a_bucket_asked_without_credentials_says_how_to_get_some() -> None:
    class Bare:
        def delete_object(self, **_: Any) -> None:
            raise NoCredentialsError

    with pytest.raises(StorageUnavailable, match=r"s3://b/wheels/w: no AWS .* `aws configure`"):
        S3Store(Bare(), bucket="b", prefix="").delete("wheels/w")


class Forbidding:
    """S3 for a role that may list only below a prefix: what is not there is forbidden, too."""

    listed: tuple[str, ...] = ()
    may_list = True

    def get_object(self, **_: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetObject")

    def download_file(self, *_: Any, **__: Any) -> None:
        raise ClientError({"Error": {"Code": "403", "Message": "Forbidden"}}, "HeadObject")

    def get_paginator(self, _: str) -> "Forbidding":
        return self

    def paginate(self, **_: Any) -> list[dict[str, Any]]:
        if not self.may_list:
            raise ClientError({"Error": {"Code": "AccessDenied"}}, "ListObjectsV2")
        return [{"Contents": [{"Key": name, "Size": 1} for name in self.listed]}]


def test_what_is_not_there_may_be_called_forbidden(tmp_path: Path) -> None:
    client = Forbidding()
    store = S3Store(client, bucket="b", prefix="runs/r1")
    assert store.get("manifest") is None
    assert not store.fetch("manifest", tmp_path / "m")
    client.listed = ("runs/r1/manifest-2",)
    assert store.get("manifest") is None
    for client.listed, client.may_list in ((("runs/r1/manifest",), True), ((), False)):
        with pytest.raises(StorageUnavailable):
            store.get("manifest")
        with pytest.raises(StorageUnavailable):
            store.fetch("manifest", tmp_path / "m")
