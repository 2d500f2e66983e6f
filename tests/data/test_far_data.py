"""Tokens that a job names in a bucket: read where they lie, or refused with what to do."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
import torch
from moto import mock_aws

from bamboo import api, far_tokens, wiring
from bamboo.checkpoint import shared_data
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.config.catalogue import load_catalogue
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import load_data
from bamboo.data.tokens import TokenFile
from bamboo.errors import InputError
from bamboo.far_tokens import opened
from bamboo.sites.account.account_ready import BOUNDS, check_reads
from bamboo.sites.account.shared import in_bucket, objects_read, share_tokens
from bamboo.token_files import DOCUMENTS, FILES, HEADER, TREE, beside
from cli import main
from tests.infra.launcher_calls import document
from tests.jobs import tiny_job
from tests.token_folder import prepared, some_ids, write_tokens

BUCKET, KEY = "mine-1", "data/corpus/x.ids"
IN_ACCOUNT = ("cloud.provider=ec2", f"cloud.bucket={BUCKET}", "data.source=tokens")


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket with a prepared token file, as S3 answers for it."""
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("BAMBOO_CONFIG", str(tmp_path / "cloud.toml"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        path = write_tokens(tmp_path / "x.ids", some_ids(2000), documents=[0, 10, 2000])
        prepared(path)
        for ending in FILES:
            body = beside(path, ending).read_bytes()
            client.put_object(Bucket=BUCKET, Key=f"{KEY}{ending}", Body=body)
        yield client


def job_of(folder: Path, path: str = f"s3://{BUCKET}/{KEY}", *more: str) -> JobConfig:
    return tiny_job(folder, [*IN_ACCOUNT, f"data.path={path}", *more])


def test_samples_are_those_of_the_file(s3: Any, tmp_path: Path) -> None:
    job = job_of(tmp_path)
    assert job.model.vocabulary == 700, "as the header says"
    far, near = load_data(job), load_data(replace(job, tokens=str(tmp_path / "x.ids")))
    assert far.digest == near.digest
    for step in (0, 1, 5):
        ours, theirs = far.microbatch(step, 0), near.microbatch(step, 0)
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one[0], other[0])
    assert Path(job.tokens).stat().st_blocks == 0, "the stand-in has nothing of the tokens"
    padded = job_of(tmp_path, f"s3://{BUCKET}/{KEY}", "data.documents=padded")
    assert load_data(padded).samples == 2
    s3.put_object(Bucket=BUCKET, Key=KEY, Body=b"\0" * 4000)
    with pytest.raises(InputError, match=rf"s3://{BUCKET}/{KEY} is damaged: chunk 0.*put it there"):
        TokenFile(Path(job.tokens)).ids(0, 10)


def test_prepare_tells_what_there_is(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_of(tmp_path)
    lines = [f"--set={one}" for one in (*IN_ACCOUNT, f"data.path=s3://{BUCKET}/{KEY}")]
    assert main.run(["prepare", job.file, *lines]) == 0
    said = capsys.readouterr().out
    assert said == (
        "[data]: 2,000 tokens below 700 in 2 documents, of 3.9 KiB, prepared before\n"
        f"s3://{BUCKET}/{KEY}\n"
    )


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda s3: s3.delete_object(Bucket=BUCKET, Key=KEY), "is no object that these creden"),
        (lambda s3: s3.delete_object(Bucket=BUCKET, Key=f"{KEY}{HEADER}"), "has no x.ids.json"),
        (
            lambda s3: s3.delete_object(Bucket=BUCKET, Key=f"{KEY}{TREE}"),
            r"has no x.ids.tree beside it; `bamboo prepare` writes its hashes where the file is",
        ),
        (
            lambda s3: s3.put_object(Bucket=BUCKET, Key=KEY, Body=b"0" * 10),
            rf"s3://{BUCKET}/{KEY}.json says 2,000 tokens of u2.*has 10; correct the header",
        ),
        (
            lambda s3: s3.put_object(
                Bucket=BUCKET, Key=f"{KEY}{HEADER}", Body=b'{"type": "u4", "tokens": 1000, '
                b'"vocabulary": 700}'
            ),
            "data.path = .* is not prepared as it stands; `bamboo prepare` writes",
        ),
        (
            lambda s3: [
                s3.delete_objects(
                    Bucket=BUCKET, Delete={"Objects": [{"Key": f"{KEY}{e}"} for e in FILES]}
                ),
                s3.delete_bucket(Bucket=BUCKET),
            ],
            r"cannot be read: .*NoSuchBucket.*; see that the bucket is there",
        ),
    ],
    ids=["object", "header", "hashes", "size", "unprepared", "bucket"],
)  # fmt: skip
def test_what_is_not_as_it_should_be_is_refused(
    s3: Any, tmp_path: Path, broken: Callable[[Any], object], said: str
) -> None:
    broken(s3)
    with pytest.raises(InputError, match=said) as found:
        job_of(tmp_path)
    assert str(tmp_path / "runs") not in str(found.value), "its stand-in is not the user's"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.source=path", "is in a bucket, where only token files are read"),
        (
            "cloud.provider=local",
            "which the instances of a local cloud have no right to read; copy",
        ),
        ("data.in_image=true", "names no object that instances read"),
        (f"data.path=s3://{BUCKET}/data/", "names no object that instances read; name the token"),
    ],
)
def test_what_cannot_be_read_in_a_bucket_is_refused(
    s3: Any, tmp_path: Path, override: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        job_of(tmp_path, f"s3://{BUCKET}/{KEY}", override)


def test_what_instances_may_not_read_is_refused_before_they_are_paid_for(
    s3: Any, tmp_path: Path
) -> None:
    bounds = json.dumps(document("run")).replace("bamboo-1", BUCKET)
    s3.put_object(Bucket=BUCKET, Key=BOUNDS, Body=bounds.encode())
    objects, job = wiring.bucket(f"s3://{BUCKET}"), job_of(tmp_path)
    check_reads(job, objects)
    elsewhere = replace(job, cloud=replace(job.cloud, bucket="stack-2"))
    with pytest.raises(InputError, match=r"out of reach.*copy it below s3://stack-2/data/; or"):
        check_reads(elsewhere, objects)
    own = replace(elsewhere, cloud=replace(elsewhere.cloud, instance_profile="readers"))
    check_reads(own, objects)
    (shown,) = in_bucket(own, load_catalogue("us-east-1"))
    right = rf"readers of its instances must allow s3:GetObject on {BUCKET}/{KEY}\*"
    assert shown.sentence().endswith(right.replace("\\", ""))
    spaced = KEY.replace("corpus", "a corpus")
    for ending in FILES:
        source = {"Bucket": BUCKET, "Key": f"{KEY}{ending}"}
        s3.copy_object(Bucket=BUCKET, Key=f"{spaced}{ending}", CopySource=source)
    with pytest.raises(InputError, match="names of letters, digits and"):
        check_reads(job_of(tmp_path, f"s3://{BUCKET}/{spaced}"), objects)
    west = boto3.client("s3", region_name="eu-west-1")
    west.create_bucket(
        Bucket="west-1", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
    )
    for ending in FILES:
        source = {"Bucket": BUCKET, "Key": f"{KEY}{ending}"}
        west.copy_object(Bucket="west-1", Key=f"{KEY}{ending}", CopySource=source)
    with pytest.raises(InputError, match=r"lies in eu-west-1, and each byte.*copy it to a bucket"):
        check_reads(job_of(tmp_path, f"s3://west-1/{KEY}"), objects)


def test_a_launch_uploads_nothing_of_them(s3: Any, tmp_path: Path) -> None:
    job = job_of(tmp_path)
    (shown,) = in_bucket(job, load_catalogue("us-east-1"))
    assert shown.sentence() == (
        f"[data]: 4.2 KiB of tokens are read at s3://{BUCKET}/{KEY}: nothing is uploaded"
    )
    assert objects_read(job) == tuple(f"{BUCKET}/{KEY}{ending}" for ending in FILES)
    begins = DirectoryStore(tmp_path / "starts")
    digest = TokenFile(Path(job.tokens)).facts.digest
    share_tokens(begins, wiring.bucket(f"s3://{BUCKET}"), job, digests={"data": digest}, note=print)
    brought = shared_data.far_tokens(begins, digest, tmp_path / "here", bucket=wiring.bucket)
    assert brought is not None
    assert brought.documents is not None
    assert TokenFile(brought).ids(0, 10).tolist() == some_ids(10).tolist()
    assert beside(brought.path, DOCUMENTS).stat().st_size == 24


def test_a_process_that_reads_no_buckets_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far_tokens, "_openers", [])
    with pytest.raises(InputError, match="this process reads no buckets; copy the tokens"):
        opened("s3://a/b", "us-east-1")
    assert far_tokens.through("m") == ("m",)
    api.load_job(Path(__file__).parents[2] / "examples" / "reference.toml")
    assert far_tokens.through("m") == (wiring.PROGRAM, "m")
