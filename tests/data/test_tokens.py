"""Token files: windows and documents, hashes at the first read, and what is refused in a line."""

import hashlib
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from bamboo.config.tree import DataConfig, JobConfig, ModelConfig
from bamboo.data.dataset import Dataset, load_data, open_tokens
from bamboo.data.text import Text
from bamboo.data.tokens import UNCOUNTED
from bamboo.errors import DamagedData, InputError
from bamboo.token_files import (
    CHUNK_BYTES,
    TREE,
    Facts,
    beside,
    leaf,
    root_of,
    tree_file,
)
from cli.main import run
from cli.views.plan import data_lines
from tests.jobs import TEXT, tiny_job
from tests.token_folder import VOCABULARY, prepared, some_ids, write_tokens


def data_of(path: Path, *, context: int = 8, documents: str = "packed") -> Dataset:
    described = DataConfig(source="tokens", path=str(path), documents=documents)
    model = ModelConfig(context=context, vocabulary=VOCABULARY)
    job = JobConfig(model=model, data=described, tokens=str(path))
    return load_data(job)


@pytest.mark.parametrize("kind", ["u2", "u4"])
def test_windows_are_those_of_a_text_with_the_same_tokens(tmp_path: Path, kind: str) -> None:
    text = TEXT.encode()
    path = write_tokens(tmp_path / "x.ids", list(text), kind=kind)
    facts = prepared(path).facts
    ours = data_of(path)
    theirs = Dataset(Text(bytearray(text), context=8), batch=16, microbatch=2, seed=1)
    assert ours.samples == theirs.samples
    for step, index in ((0, 0), (3, 1), (400, 7)):  # the last one is in another data epoch
        for here, there in zip(
            ours.microbatch(step, index), theirs.microbatch(step, index), strict=True
        ):
            torch.testing.assert_close(here[0], there[0], rtol=0, atol=0)
    assert facts.largest == max(text)
    counts = Counter(text)
    share = [n / len(text) for n in counts.values()]
    assert facts.entropy_nats == pytest.approx(-sum(p * math.log(p) for p in share), abs=1e-12)


def test_the_digest_is_that_of_the_contents(tmp_path: Path) -> None:
    ids = some_ids(1000)
    digest = prepared(write_tokens(tmp_path / "a", ids)).facts.digest
    assert prepared(write_tokens(tmp_path / "b", ids, vocabulary=9000)).facts.digest == digest
    for name, changed in (("c", np.roll(ids, 1)), ("d", ids[:-1]), ("e", ids + 1)):
        assert prepared(write_tokens(tmp_path / name, changed % 700)).facts.digest != digest
    assert prepared(write_tokens(tmp_path / "f", ids, kind="u4")).facts.digest != digest
    path = write_tokens(tmp_path / "g", ids, documents=[0, 10, 1000])
    prepared(path)
    assert len({digest, data_of(path).digest, data_of(path, documents="padded").digest}) == 3


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 6, 7, 8, 13])
def test_the_tree_is_that_of_rfc_6962(count: int) -> None:
    def of(leaves: list[bytes]) -> bytes:
        if len(leaves) < 2:
            return leaves[0] if leaves else hashlib.sha256(b"").digest()
        half = 1 << (len(leaves) - 1).bit_length() - 1
        return hashlib.sha256(b"\1" + of(leaves[:half]) + of(leaves[half:])).digest()

    leaves = [leaf(bytes([i])) for i in range(count)]
    assert root_of(b"".join(leaves)) == of(leaves).hex()
    assert leaf(b"x") == hashlib.sha256(b"\0x").digest()


def test_documents_are_padded_and_masked(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "x", range(1, 31), documents=[0, 4, 5, 25, 30])
    prepared(path)
    data = data_of(path, documents="padded")
    assert data.samples == 4
    assert data.text is not None
    (inputs,), (targets,) = data.text.batch([0, 2, 1, 3], [])
    assert inputs.tolist() == [
        [1, 2, 3, 0, 0, 0, 0, 0],
        list(range(6, 14)),
        [0] * 8,
        [26, 27, 28, 29, 0, 0, 0, 0],
    ]
    assert targets.tolist() == [
        [2, 3, 4, *[UNCOUNTED] * 5],
        list(range(7, 15)),
        [UNCOUNTED] * 8,
        [27, 28, 29, 30, *[UNCOUNTED] * 4],
    ]
    # A step of 16 has each of the four documents four times.
    assert data.count(0) == 4 * (3 + 8 + 0 + 4)
    assert " ".join(" ".join(data_lines(data.described_tokens)).split()) == (
        "data: 30 tokens in x, 60 B, below 700; 4 documents, padded, 1 of them cut at model.context"
    )


def test_a_damaged_chunk_is_named_when_it_is_read(tmp_path: Path) -> None:
    size = 3 * CHUNK_BYTES // 2 + 1000
    path = write_tokens(tmp_path / "x.ids", some_ids(size))
    prepared(path)
    with path.open("r+b") as file:
        file.seek(CHUNK_BYTES + 5)
        file.write(b"\xff")
    text = data_of(path).text
    assert text is not None
    per_chunk = CHUNK_BYTES // 2 // 8
    text.batch([0, per_chunk - 1 - 1, 3 * per_chunk + 1], [])
    with pytest.raises(DamagedData, match=r"x\.ids is damaged: chunk 1 of 4, from byte 1,048,576"):
        text.batch([per_chunk + 7], [])
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(InputError, match=r"and x\.ids has 3,147,726"):
        data_of(path)


def test_a_file_that_changes_while_it_is_read_is_compared_again(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "x.ids", some_ids(CHUNK_BYTES))
    prepared(path)
    text = data_of(path).text
    assert text is not None
    was = text.batch([1], [])
    held = path.read_bytes()
    with path.open("r+b") as file:
        file.write(b"\xff" * 100)
    with pytest.raises(DamagedData, match=r"x\.ids is damaged: chunk 0 of 2"):
        text.batch([1], [])
    path.write_bytes(held)
    assert torch.equal(text.batch([1], [])[0][0], was[0][0])
    # Through the map, what was cut off would be a signal.
    os.truncate(path, 10)
    with pytest.raises(DamagedData, match=r"x\.ids is damaged: chunk 0 of 2"):
        text.batch([1], [])


def _header_lies(path: Path) -> None:
    write_tokens(path, some_ids(1000), tokens=1001)


def _beyond(path: Path) -> None:
    write_tokens(path, [1, 2, VOCABULARY, 3] * 100)


def _empty_document(path: Path) -> None:
    write_tokens(path, some_ids(1000), documents=[0, 10, 10, 1000])


def _short_documents(path: Path) -> None:
    write_tokens(path, some_ids(1000), documents=[0, 10, 900])


def _other_tokenizer(path: Path) -> None:
    (path.parent / "t.json").write_text("{}")
    write_tokens(path, some_ids(1000), tokenizer="0" * 64)


def _huge_vocabulary(path: Path) -> None:
    write_tokens(path, some_ids(1000))
    header = path.with_name("x.ids.json")
    header.write_text(header.read_text().replace(str(VOCABULARY), str(10**10)))


def _type_is_a_list(path: Path) -> None:
    write_tokens(path, some_ids(1000))
    header = path.with_name("x.ids.json")
    header.write_text(header.read_text().replace('"u2"', '["u2"]'))


def _no_header(path: Path) -> None:
    path.write_bytes(b"1234")


REFUSED = [
    (_no_header, (), "x.ids has no header x.ids.json beside it"),
    (_header_lies, (), "says 1,001 tokens of u2, which are 2,002 bytes, and x.ids has 2,000"),
    (_huge_vocabulary, (), "vocabulary = 10000000000 is not possible; give a number from 2 to"),
    (_type_is_a_list, (), "type = ['u2'] is not possible; give u2 or u4"),
    (_beyond, (), "token 2 is 700, and the vocabulary of its header has 700"),
    (_empty_document, (), "document 1 is empty (it ends at 10)"),
    (_short_documents, (), "ends with 900; end with the number of tokens, 1,000"),
    (_other_tokenizer, ("data.tokenizer=t.json",), "the tokens of x.ids were made with 000000"),
]


@pytest.mark.parametrize(("make", "sets", "line"), REFUSED)
def test_what_cannot_be_prepared_is_refused_in_a_line(
    tmp_path: Path,
    make: object,
    sets: tuple[str, ...],
    line: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert callable(make)
    make(tmp_path / "x.ids")
    job = tiny_job(tmp_path).file
    overrides = ("data.source=tokens", "data.path=x.ids", *sets)
    assert run(["prepare", job, *(part for one in overrides for part in ("--set", one))]) == 2
    (said,) = capfd.readouterr().err.splitlines()
    assert said.startswith("error: ")
    assert line in said


def test_a_job_that_is_not_prepared_says_how(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "x.ids", some_ids(1000))
    sets = ["data.source=tokens", "data.path=x.ids"]
    refused = r"data.path = 'x.ids': is not prepared as it stands; say `bamboo prepare JOB`"
    with pytest.raises(InputError, match=refused):
        tiny_job(tmp_path, sets)
    prepared(path)
    job = tiny_job(tmp_path, sets)
    assert (job.model.vocabulary, job.tokens) == (VOCABULARY, str(path))
    small = tiny_job(tmp_path, [*sets, "model.vocabulary=256"])
    with pytest.raises(InputError, match=r"model.vocabulary = 256: the tokens of x.ids go up to 6"):
        open_tokens(small, small.data, Path(small.tokens))
    write_tokens(path, some_ids(999))
    with pytest.raises(InputError, match="is not prepared as it stands"):
        tiny_job(tmp_path, sets)


def test_keys_that_a_source_does_not_have_are_refused(tmp_path: Path) -> None:
    for override, line in (
        ("data.tokenizer=t.json", "data.tokenizer = 't.json': is not read from path; set data.so"),
        ("data.documents=some", "data.documents = 'some': is not possible; take one of packed"),
        ("data.in_image=true", "data.in_image = True: is not read from path; set"),
        ("data.source=webs", "data.source = 'webs': is not possible; take one of python-stdlib"),
    ):
        with pytest.raises(InputError, match=line):
            tiny_job(tmp_path, [override])


SPARSE = """
import resource, sys, time
from pathlib import Path
import numpy, torch
from bamboo.data.dataset import Dataset
from bamboo.data.tokens import TokenFile, Windows
def memory_mb():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 1e6
before_mb, began_s = memory_mb(), time.process_time()
data = Windows(TokenFile(Path(sys.argv[1])), context=1024)
Dataset(data, batch=8, microbatch=2, seed=1).microbatch(0, 0)  # the order of all samples, too
print(time.process_time() - began_s, memory_mb() - before_mb, data.samples)
"""


def test_a_file_of_20_gb_opens_at_once(tmp_path: Path) -> None:
    path, size_bytes = tmp_path / "x.ids", 20_000_000_000
    write_tokens(path, [], tokens=size_bytes // 4, type="u4")
    os.truncate(path, size_bytes)
    whole, rest = divmod(size_bytes, CHUNK_BYTES)
    leaves = leaf(bytes(CHUNK_BYTES)) * whole + leaf(bytes(rest))
    facts = Facts(
        type="u4",
        tokens=size_bytes // 4,
        documents=0,
        largest=0,
        root=root_of(leaves),
        entropy_nats=0.0,
    )
    beside(path, TREE).write_bytes(tree_file(facts, leaves))
    done = subprocess.run(
        [sys.executable, "-c", SPARSE, str(path)], capture_output=True, text=True, check=True
    )
    seconds, megabytes, samples = map(float, done.stdout.split())
    assert seconds < 1
    assert megabytes < 100
    assert samples == (size_bytes // 4 - 1) // 1024
