"""Checkpoints in a bucket: `ports.ObjectStore` over S3, through boto3.

Rule: the library's own transfer uploads big files in parts, and gives up an upload that fails. The
object that makes a checkpoint complete is written under the condition that it does not exist.
Digests are ours, and the reader compares them.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from bamboo.errors import StorageFull, StorageUnavailable
from bamboo.jsonl import DISK_FULL
from bamboo.ports import SMALL_BYTES
from cloud.ec2.clients import client_of, session_of
from cloud.provider import CloudUnavailable

READ_TIMEOUT_S = 60
ATTEMPTS = 3
PART_BYTES = 64 << 20
_MISSING = ("NoSuchKey", "404")
_FORBIDDEN = ("AccessDenied", "403")
"""What S3 answers for a missing object to a caller that may not list the whole bucket."""
_BEYOND = "InvalidRange"
"""The object ends before the part that was asked for begins."""
_TAKEN = "PreconditionFailed"
_RACED = "ConditionalRequestConflict"


class S3Store:
    """Objects of one bucket whose keys begin with `prefix/`."""

    def __init__(self, client: Any, *, bucket: str, prefix: str, part_bytes: int = PART_BYTES):
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._transfer = TransferConfig(
            multipart_threshold=part_bytes, multipart_chunksize=part_bytes
        )

    @classmethod
    def connect(
        cls, *, bucket: str, prefix: str, region: str, endpoint_url: str | None = None
    ) -> "S3Store":
        """Connect with the credentials that boto3 finds; no call is made yet. Raises
        StorageUnavailable for invalid settings."""
        try:
            client = client_of(
                session_of(region),
                "s3",
                read_timeout_s=READ_TIMEOUT_S,
                attempts=ATTEMPTS,
                endpoint_url=endpoint_url,
            )
        except CloudUnavailable as error:
            raise StorageUnavailable(f"s3://{bucket}: {error}") from error
        return cls(client, bucket=bucket, prefix=prefix)

    def put_file(self, name: str, path: Path) -> None:
        with self._trouble(name):
            self._client.upload_file(
                str(path), self._bucket, self._key(name), Config=self._transfer
            )

    def put_new(self, name: str, data: bytes) -> bool:
        key = self._key(name)
        for last in (False, False, True):
            with self._trouble(name):
                try:
                    self._client.put_object(
                        Bucket=self._bucket, Key=key, Body=data, IfNoneMatch="*"
                    )
                except ClientError as error:
                    if _code(error) == _TAKEN:
                        return False
                    if _code(error) != _RACED or last:
                        raise
                else:
                    return True
        raise AssertionError("the last round returns or raises")

    def get(self, name: str) -> bytes | None:
        with self._trouble(name):
            try:
                found = self._client.get_object(Bucket=self._bucket, Key=self._key(name))
                data: bytes = found["Body"].read(SMALL_BYTES)
                if len(data) < SMALL_BYTES:
                    data += found["Body"].read()  # checks the announced length
            except ClientError as error:
                if self._is_missing(error, name):
                    return None
                raise
        return data

    def part(self, name: str, begin: int, end: int) -> bytes | None:
        if begin == end:
            return b""
        asked = f"bytes={begin}-{end - 1}"
        with self._trouble(name):
            try:
                found = self._client.get_object(
                    Bucket=self._bucket, Key=self._key(name), Range=asked
                )
                data: bytes = found["Body"].read()
            except ClientError as error:
                if _code(error) == _BEYOND:
                    return b""
                if self._is_missing(error, name):
                    return None
                raise
        return data

    def fetch(self, name: str, path: Path) -> bool:
        with self._trouble(name):
            try:
                self._client.download_file(
                    self._bucket, self._key(name), str(path), Config=self._transfer
                )
            except ClientError as error:
                if self._is_missing(error, name):
                    return False
                raise
        return True

    def sizes(self, prefix: str) -> Mapping[str, int]:
        with self._trouble(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            return {
                found["Key"].removeprefix(self._prefix): int(found["Size"])
                for page in pages
                for found in page.get("Contents", ())
            }

    def region(self) -> str:
        """The region of the bucket. Raises StorageUnavailable."""
        with self._trouble(""):
            answer = self._client.head_bucket(Bucket=self._bucket)
            headers = answer["ResponseMetadata"]["HTTPHeaders"]
            return str(headers.get("x-amz-bucket-region", ""))

    def strays(self, prefix: str) -> Collection[str]:
        """None that can be seen: the stack's bucket removes unfinished uploads by itself."""
        del prefix
        return ()

    def delete(self, name: str) -> None:
        with self._trouble(name):
            self._client.delete_object(Bucket=self._bucket, Key=self._key(name))

    def _is_missing(self, error: ClientError, name: str) -> bool:
        if _code(error) in _FORBIDDEN:
            return name not in self.sizes(name)
        return _code(error) in _MISSING

    def _key(self, name: str) -> str:
        if not name or any(part in {"", ".", ".."} for part in name.split("/")):
            raise ValueError(f"{name!r} is no name of an object")
        return self._prefix + name

    @contextmanager
    def _trouble(self, name: str) -> Iterator[None]:
        try:
            yield
        except NoCredentialsError as error:
            raise StorageUnavailable(
                f"s3://{self._bucket}/{self._prefix}{name}: no AWS credentials were found; run "
                "`aws configure`, or on an instance see that it has its role"
            ) from error
        except (ClientError, BotoCoreError, Boto3Error, OSError, RecursionError) as error:
            # RecursionError: the library follows a redirection to itself until the stack is full.
            if isinstance(error, OSError) and error.errno in DISK_FULL:
                raise StorageFull(f"{name}: {error}; make room where it is read to") from error
            raise StorageUnavailable(
                f"s3://{self._bucket}/{self._prefix}{name}: {error}; see that the bucket is there "
                "and that these credentials, or the role of the nodes, may use it"
            ) from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
