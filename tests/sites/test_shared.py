"""Tokens that runs share: a plan says what is uploaded, and a person lists and removes them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo import api, wiring
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.config.catalogue import load_catalogue
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.sites.account.shared import in_bucket, share_tokens
from cli import main
from tests.jobs import tiny_job
from tests.token_folder import prepared, some_ids, write_tokens

IN_ACCOUNT = (
    *("cloud.provider=ec2", "cloud.bucket=bucket", "data.source=tokens"),
    *("eval.every_steps=2", "eval.source=tokens", "eval.samples=4"),
)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], DirectoryStore]:
    def opened(url: str, *, region: str = "") -> DirectoryStore:
        return DirectoryStore(tmp_path / url.removeprefix("s3://"))

    monkeypatch.setattr(wiring, "bucket", opened)
    monkeypatch.setenv("BAMBOO_CONFIG", str(tmp_path / "cloud.toml"))
    (tmp_path / "cloud.toml").write_text('[cloud]\nbucket = "bucket"\n')
    return opened


def job_of(folder: Path, *, count: int = 1000) -> JobConfig:
    path = write_tokens(folder / f"{count}.ids", some_ids(count))
    facts = prepared(path).facts
    named = (f"data.path={path.name}", f"eval.path={path.name}")
    return replace(tiny_job(folder, [*IN_ACCOUNT, *named]), evaluated_on=facts.digest)


def test_a_plan_says_what_is_uploaded_and_only_the_first_time(
    tmp_path: Path, bucket: Callable[[str], DirectoryStore]
) -> None:
    job, catalogue = job_of(tmp_path), load_catalogue("us-east-1")
    (first,) = in_bucket(job, catalogue)
    assert first.upload_bytes == first.size_bytes > 2000
    words = f"[data]: 2.2 KiB of tokens are uploaded to s3://bucket/data/{job.evaluated_on}/, once"
    assert first.sentence().startswith(words)
    digests = {"data": job.evaluated_on, "eval": job.evaluated_on}
    notes: list[str] = []
    share_tokens(
        bucket("s3://bucket/starts/r1"),
        bucket("s3://bucket"),
        job,
        digests=digests,
        note=notes.append,
    )
    assert [note.partition(",")[0] for note in notes] == [
        "the tokens of [data] go to the bucket",
        "the tokens of [eval] are in the bucket already",
    ]
    (again,) = in_bucket(job, catalogue)
    assert again == replace(first, upload_bytes=0)
    assert "are at s3://bucket/data/" in again.sentence()
    assert f"until `bamboo rm --data {job.evaluated_on[:12]}`" in again.sentence()
    assert again.usd_per_month > 0
    assert in_bucket(replace(job, cloud=replace(job.cloud, provider="local")), catalogue) == ()


def test_they_are_listed_and_removed_by_their_digest(
    tmp_path: Path,
    bucket: Callable[[str], DirectoryStore],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run(["list", "--data"]) == 0
    assert capsys.readouterr().out == "no tokens in the bucket\n"
    digests = []
    for run, count in (("r1", 1000), ("r2", 2000)):
        job = job_of(tmp_path, count=count)
        digests.append(digest := job.evaluated_on)
        share_tokens(
            bucket(f"s3://bucket/starts/{run}"),
            bucket("s3://bucket"),
            job,
            digests={"data": digest, "eval": digest},
            note=print,
        )
    capsys.readouterr()
    bucket("s3://bucket/starts/r2").delete(f"data/{digests[1]}/place.json")
    assert main.run(["list", "--data"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert {tuple(line.split()[i] for i in (0, 3, 4)) for line in lines} == {
        (digests[0][:12], "whole", "r1"),
        (digests[1][:12], "whole", "-"),
    }
    for words, refused in (
        (["rm", "--data", digests[0], "--yes"], "stay: r1 read them"),
        (["rm", "--data", "", "--yes"], "the bucket has no such data; see `bamboo list --data`"),
        (["rm", "--data", "xyz", "--yes"], "--data 'xyz': the bucket has no such data"),
        (["rm", "--data", digests[1]], "there is nobody to ask"),
        (["rm"], "name one thing to remove: RUN, or --data DIGEST"),
    ):
        assert main.run(words) == 2
        assert refused in capsys.readouterr().err
    assert main.run(["rm", "--data", digests[1][:12], "--yes", "--json"]) == 0
    assert digests[1] in capsys.readouterr().out
    assert [one.digest for one in api.shared_data()] == [digests[0]]
    (tmp_path / "cloud.toml").unlink()
    with pytest.raises(InputError, match=r"cloud.toml names no bucket.*`bamboo init` writes it"):
        api.shared_data()
