"""Data: addressed by (step, microbatch), each sample once a data epoch, refused when missing."""

import errno
import hashlib
import math
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bamboo.data.dataset import Dataset, load_data
from bamboo.data.sources import MOST_BYTES, stdlib_files
from bamboo.data.text import Text
from bamboo.errors import InputError
from tests.jobs import TEXT, tiny_job


def _dataset(samples: int, *, batch: int = 8, microbatch: int = 2, seed: int = 1) -> Dataset:
    text = bytearray(i % 251 for i in range(samples * 4 + 1))
    return Dataset(Text(text, context=4), batch=batch, microbatch=microbatch, seed=seed)


def _samples(data: Dataset, step: int, microbatches: int) -> list[int]:
    return [i for m in range(microbatches) for i in data.sample_indices(step, m)]


def test_windows_hold_inputs_and_the_next_tokens() -> None:
    data = _dataset(10)
    (inputs_BT,), (targets_BT,) = data.microbatch(0, 1)
    assert inputs_BT.shape == targets_BT.shape == (2, 4)
    assert inputs_BT.dtype == targets_BT.dtype == torch.int64
    for row, sample in enumerate(data.sample_indices(0, 1)):
        window = [(sample * 4 + i) % 251 for i in range(5)]
        assert inputs_BT[row].tolist() == window[:-1]
        assert targets_BT[row].tolist() == window[1:]


@pytest.mark.parametrize("samples", [8, 10, 37, 64])
def test_each_sample_comes_once_in_each_data_epoch(samples: int) -> None:
    data = _dataset(samples)
    seen = [i for s in range(samples) for m in range(4) for i in data.sample_indices(s, m)]
    orders = [tuple(seen[e * samples : (e + 1) * samples]) for e in range(8)]
    for order in orders:
        assert Counter(order) == Counter(range(samples))
    assert len(set(orders)) > 1
    assert any(order != tuple(range(samples)) for order in orders)


def test_address_alone_decides_whatever_was_asked_before() -> None:
    one, other = _dataset(10), _dataset(10)
    steps = list(range(30))
    forth = {s: one.sample_indices(s, 3) for s in steps}
    back = {s: other.sample_indices(s, 3) for s in reversed(steps)}
    assert forth == back
    assert forth != {s: _dataset(10, seed=2).sample_indices(s, 3) for s in steps}


def test_samples_do_not_depend_on_the_size_of_a_microbatch() -> None:
    twos, fours = _dataset(37, microbatch=2), _dataset(37, microbatch=4)
    for step in range(12):
        assert _samples(twos, step, 4) == _samples(fours, step, 2)


def test_a_batch_larger_than_the_data_goes_through_it_again() -> None:
    data = _dataset(3)
    assert sorted(_samples(data, 0, 3)) == [0, 0, 1, 1, 2, 2]


def test_digest_and_entropy(tmp_path: Path) -> None:
    data = load_data(tiny_job(tmp_path)).text
    assert data is not None
    assert data.digest == hashlib.sha256(TEXT.encode()).hexdigest()
    counts = Counter(TEXT.encode())
    expected = -sum(n / len(TEXT) * math.log(n / len(TEXT)) for n in counts.values())
    assert data.unigram_entropy_nats == pytest.approx(expected, abs=1e-12)
    flat = Text(bytearray(range(256)), context=5)
    assert flat.unigram_entropy_nats == pytest.approx(math.log(256))


def test_a_folder_is_read_by_relative_path_without_hidden_files(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    for name, text in {
        "b.txt": "two",
        "a/z.txt": "one",
        ".hidden": "no",
        "__pycache__/c.pyc": "no",
        "c/d/e.md": "three",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text * 10, encoding="utf-8")
    data = load_data(tiny_job(tmp_path, ["data.path=texts"]))
    expected = b"one" * 10 + b"two" * 10 + b"three" * 10
    assert data.digest == hashlib.sha256(expected).hexdigest()


def test_max_bytes_cuts(tmp_path: Path) -> None:
    data = load_data(tiny_job(tmp_path, ["data.max_bytes=100"]))
    assert data.digest == hashlib.sha256(TEXT.encode()[:100]).hexdigest()
    assert data.samples == 12


def test_more_than_a_node_may_hold_is_refused_before_it_is_read(tmp_path: Path) -> None:
    tiny_job(tmp_path)
    (tmp_path / "texts").mkdir()
    for name in "ab":
        with (tmp_path / "texts" / name).open("wb") as file:
            file.truncate(MOST_BYTES // 2 + 1)
    with pytest.raises(InputError, match=r"data.max_bytes = 0.*asks for 2,000,000,002 bytes of"):
        load_data(tiny_job(tmp_path, ["data.path=texts"]))
    whole = ["data.path=texts", f"data.max_bytes={MOST_BYTES + 1}"]
    with pytest.raises(InputError, match="2,000,000,000 are the most"):
        load_data(tiny_job(tmp_path, whole))
    data = load_data(tiny_job(tmp_path, ["data.path=texts", "data.max_bytes=100"]))
    assert data.text is not None
    assert data.text.size_bytes == 100, "of a part nobody asks how much there is"


def test_the_standard_library_without_tests_and_packages(tmp_path: Path) -> None:
    root = Path(sysconfig.get_path("stdlib"))
    names = [p.relative_to(root).as_posix() for p in stdlib_files(root)]
    assert names == sorted(names)
    assert "os.py" in names
    assert "json/decoder.py" in names
    assert not any("site-packages" in n or "/test" in f"/{n}".rpartition("/")[0] for n in names)
    job = tiny_job(tmp_path, ["data.source=python-stdlib", 'data.path=""'])
    data = load_data(job)
    assert data.digest == load_data(job).digest
    assert data.text is not None
    assert 2.5 < data.text.unigram_entropy_nats < 4.0


@pytest.mark.parametrize(
    ("text", "message"),
    [(b"", "0 bytes hold no window"), (b"12345678", "8 bytes hold no window of context + 1 = 9")],
)
def test_empty_data_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    job = tiny_job(tmp_path)
    (tmp_path / "text.txt").write_bytes(text)
    with pytest.raises(InputError, match=r"data\.path = 'text\.txt'") as caught:
        load_data(job)
    assert message in str(caught.value)


def test_a_cut_that_leaves_no_window_is_named(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, ["data.max_bytes=7"])
    (tmp_path / "text.txt").write_bytes(b"12345678" * 9)
    with pytest.raises(InputError, match=r"data\.max_bytes = 7: 7 bytes hold no window"):
        load_data(job)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="0 bytes hold no window"):
        load_data(tiny_job(tmp_path, ["data.path=none"]))


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file or folder"):
        load_data(tiny_job(tmp_path, [f"data.path={'x' * 400}"]))


def test_a_folder_that_may_not_be_looked_into_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tiny_job(tmp_path)  # nothing is forbidden to root, so the system's refusal is played
    (tmp_path / job.data.path).unlink()
    (tmp_path / job.data.path).mkdir()

    def refused(folder: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(InputError, match=r"text\.txt: Permission denied; make it readable"):
        load_data(job)


def test_data_that_vanished_is_refused(tmp_path: Path) -> None:
    job = tiny_job(tmp_path)
    (tmp_path / "text.txt").unlink()
    with pytest.raises(InputError, match="there is no file or folder"):
        load_data(job)


def test_a_vocabulary_without_the_datas_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model.vocabulary = 120: the data holds byte 122"):
        load_data(tiny_job(tmp_path, ["model.vocabulary=120"]))
    text = load_data(tiny_job(tmp_path, ["model.vocabulary=123"])).text
    assert text is not None
    assert text.largest_token == 122
