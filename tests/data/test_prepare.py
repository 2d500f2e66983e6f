"""Text becomes tokens once, by contents; what cannot become tokens is refused in a line."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bamboo import extras
from bamboo.config.load import load_job
from bamboo.config.prepared import find_tokens
from bamboo.data.dataset import Dataset, load_data
from bamboo.data.evaluation import load_eval
from bamboo.data.tokens import Windows
from bamboo.errors import InputError
from bamboo.named_files import sha256_of
from cli.main import run
from tests.jobs import SMALL

pytest.importorskip("tokenizers")

WORDS = [f"word{i} and {i * i % 97} more, line\n" for i in range(300)]
TEXTS = ["".join(WORDS[a : a + 20]) for a in range(0, 300, 20)]
SETS = ("data.source=jsonl", "data.path=corpus", "data.tokenizer=tokenizer.json")


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of words, which pads and cuts unless it is told not to."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE(unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<pad>", "?", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    made.train_from_iterator(TEXTS, trainer)
    made.enable_padding(length=1000)
    made.enable_truncation(10)
    path = tmp_path_factory.mktemp("made") / "tokenizer.json"
    made.save(str(path))
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer_file: Path) -> Path:
    """A job on two files of lines, with a home of its own."""
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    shutil.copy(tokenizer_file, tmp_path / "tokenizer.json")
    (tmp_path / "corpus").mkdir()
    for name, texts in (("b.jsonl", TEXTS[5:]), ("a.jsonl", TEXTS[:5])):
        write_lines(tmp_path / "corpus" / name, texts)
    (tmp_path / "job.toml").write_text(SMALL.replace("text.txt", "corpus"), encoding="utf-8")
    return tmp_path


def write_lines(path: Path, texts: Sequence[object], field: str = "text") -> None:
    lines = (json.dumps({"id": 1, field: text}) + "\n" for text in texts)
    path.write_text("".join(lines), encoding="utf-8")


def prepare(folder: Path, *sets: str) -> int:
    return run(["prepare", str(folder / "job.toml"), *(p for s in sets for p in ("--set", s))])


def trained_on(folder: Path, *sets: str) -> Dataset:
    return load_data(load_job(folder / "job.toml", sets))


def decoded(folder: Path, data: Dataset) -> str:
    """All windows of the data as text."""
    assert data.text is not None
    (inputs,), _ = data.text.batch(range(data.samples), [])
    return _text_of(folder, inputs.flatten().tolist())


def _text_of(folder: Path, ids: Sequence[int]) -> str:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    words = [tokenizer.id_to_token(i) for i in ids]
    return "".join(words).replace("Ġ", " ").replace("Ċ", "\n")


def test_lines_become_tokens_once(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"data.path = 'corpus': is not prepared.*bamboo prepare"):
        trained_on(folder, *SETS)
    assert prepare(folder, *SETS) == 0
    said, path = capfd.readouterr().out.splitlines()
    assert " tokens below 380 in 15 documents, of " in said
    data = trained_on(folder, *SETS)
    whole = "</s>".join(TEXTS) + "</s>"
    assert whole.startswith(decoded(folder, data))
    assert len(whole) - len(decoded(folder, data)) < 8 * 20
    made = Path(path).stat()
    # The same contents, elsewhere and written later.
    shutil.move(folder / "corpus", folder / "moved")
    moved = ("data.source=jsonl", "data.path=moved", "data.tokenizer=tokenizer.json")
    with pytest.raises(InputError, match="is not prepared"):
        trained_on(folder, *moved)
    assert prepare(folder, *moved) == 0
    assert capfd.readouterr().out.splitlines()[0].endswith(", prepared before")
    assert trained_on(folder, *moved).digest == data.digest
    assert Path(path).stat().st_mtime_ns == made.st_mtime_ns


def test_what_decides_tokens_asks_for_another_preparing(folder: Path) -> None:
    assert prepare(folder, *SETS) == 0
    digest = trained_on(folder, *SETS).digest
    ended = (*SETS, "data.end=none")
    with pytest.raises(InputError, match="is not prepared"):
        trained_on(folder, *ended)
    assert prepare(folder, *ended) == 0
    assert trained_on(folder, *ended).digest != digest
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="is not prepared"):
        trained_on(folder, *SETS)


def test_files_of_text_are_documents_that_may_be_padded(folder: Path) -> None:
    long = "".join(WORDS) * 20  # several pieces
    for name, text in (("a.txt", TEXTS[0]), ("b.txt", long), ("empty.txt", ""), (".x", "hidden")):
        (folder / "corpus" / name).write_text(text, encoding="utf-8")
    for name in ("a.jsonl", "b.jsonl"):
        (folder / "corpus" / name).unlink()
    sets = ("data.source=text", *SETS[1:])
    assert prepare(folder, *sets) == 0
    assert decoded(folder, trained_on(folder, *sets)).startswith(f"{TEXTS[0]}</s>{long[:100]}")
    padded = trained_on(folder, *sets, "data.documents=padded")
    assert (padded.samples, padded.described_tokens["cut"]) == (2, 2)


def test_a_column_of_an_arrow_folder(folder: Path) -> None:
    datasets = pytest.importorskip("datasets")
    assert prepare(folder, *SETS) == 0
    digest = trained_on(folder, *SETS).digest
    rows = {"body": TEXTS, "ids": [[i, i + 1, 399] for i in range(15)], "odd": [1.5] * 15}
    table = datasets.Dataset.from_dict(rows)
    table.save_to_disk(str(folder / "arrow"))
    arrow = ("data.source=arrow", "data.path=arrow", SETS[2], "data.field=body")
    assert prepare(folder, *arrow) == 0
    assert trained_on(folder, *arrow).digest == digest
    ids = ("data.source=arrow", "data.path=arrow", "data.field=ids")
    assert prepare(folder, *ids) == 0
    (inputs,), _ = trained_on(folder, *ids).text.batch([0], [])  # type: ignore[union-attr]
    assert inputs.tolist() == [[0, 1, 399, 1, 2, 399, 2, 3]]
    assert load_job(folder / "job.toml", ids).model.vocabulary == 400
    datasets.DatasetDict(train=table).save_to_disk(str(folder / "splits"))
    for sets, line in (
        ((*arrow[:2], SETS[2]), "data.field = 'text': is none of the columns: body, ids, odd"),
        ((*ids[:2], "data.field=odd"), "data.field = 'odd': holds in row 0 1.5, and not a list of"),
        (("data.source=arrow", "data.path=corpus", SETS[2]), "is no folder of datasets"),
        (("data.source=arrow", "data.path=splits", SETS[2]), "has the splits train; name one, as"),
    ):
        with pytest.raises(InputError, match=line):
            _prepared(folder, sets)


def test_an_evaluation_is_prepared_with_the_tokenizer_of_the_data(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_lines(folder / "held-out.jsonl", TEXTS[3:5])
    chosen = ("every_steps=2", "source=jsonl", "path=held-out.jsonl", "samples=3")
    sets = (*SETS, *(f"eval.{one}" for one in chosen))
    assert prepare(folder, *SETS) == 0
    with pytest.raises(InputError, match=r"eval\.path = 'held-out.jsonl': is not prepared"):
        load_eval(load_job(folder / "job.toml", sets), None, None)
    assert prepare(folder, *sets) == 0
    assert "[eval]: " in capfd.readouterr().out
    job = load_job(folder / "job.toml", sets)
    data = load_eval(job, None, None)
    assert data is not None
    assert isinstance(data.text, Windows)
    (inputs,), _ = data.text.batch([0], [])
    found = _text_of(folder, inputs.flatten().tolist())
    assert TEXTS[3].startswith(found)
    brought = find_tokens(job, job.evaluated, section="eval")[0]
    (folder / "held-out.jsonl").unlink()
    again = load_eval(job, None, None, brought)
    assert again is not None
    assert again.digest == data.digest
    bytes_alone = ("data.source=path", "data.path=corpus", "data.tokenizer=")
    with pytest.raises(InputError, match=r"eval\.source = 'jsonl': needs the tokenizer of"):
        load_job(folder / "job.toml", (*sets, *bytes_alone))


@pytest.mark.parametrize("lost", ["tokens.json", "tokens.tree", "tokens.documents", "tokens"])
def test_tokens_that_are_not_whole_are_made_again(
    folder: Path, lost: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """As after a kill while the files get their names."""
    assert prepare(folder, *SETS) == 0
    path = Path(capfd.readouterr().out.splitlines()[-1])
    was = {one.name: one.read_bytes() for one in path.parent.iterdir()}
    (path.parent / lost).unlink()
    with pytest.raises(InputError, match="is not prepared as it stands; say `bamboo prepare JOB`"):
        load_job(folder / "job.toml", SETS)
    assert prepare(folder, *SETS) == 0
    assert {one.name: one.read_bytes() for one in path.parent.iterdir()} == was


def test_text_that_changes_while_it_is_read_gets_no_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its tokens would stand for the contents that were hashed before."""

    def hashed(path: Path) -> str:
        found = sha256_of(path)
        if path.name == "b.jsonl":
            _line(folder, '{"text": "more"}')
        return found

    monkeypatch.setattr("bamboo.data.prepare.sha256_of", hashed)
    assert prepare(folder, *SETS) == 2
    (said,) = capfd.readouterr().err.splitlines()
    assert "data.path = 'corpus': has changed while it was read; prepare it once nothing" in said
    assert list((folder / "runs").rglob("tokens*")) == []


def _prepared(folder: Path, sets: Sequence[str]) -> None:
    from bamboo import api

    api.prepare_data(folder / "job.toml", overrides=sets)


def _line(folder: Path, line: str) -> None:
    path = folder / "corpus" / "b.jsonl"
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")


def _no_document(folder: Path) -> None:
    for path in (folder / "corpus").iterdir():
        path.write_text("\n \n", encoding="utf-8")


REFUSED: list[tuple[Callable[[Path], None], str, str]] = [
    (lambda f: _line(f, '{"text": ""}'), "", "b.jsonl, line 11: the document is empty"),
    (lambda f: _line(f, "{text}"), "", "b.jsonl, line 11 is no JSON ("),
    (lambda f: _line(f, '{"body": "x"}'), "", "b.jsonl, line 11 has no text in 'text'"),
    (lambda f: _line(f, '{"text": "a \\ud800"}'), "", "b.jsonl, line 11 has half a character in"),
    (_no_document, "", "data.path = 'corpus': holds no document; name a file that has one"),
    (lambda f: None, "data.tokenizer=job.toml", "data.tokenizer = 'job.toml': is no tokenizer ("),
    (lambda f: None, "data.tokenizer=none.json", "there is no file"),
    (lambda f: None, "data.tokenizer=", "data.tokenizer = '': names no tokenizer"),
    (lambda f: None, "data.end=<end>", "data.end = '<end>': is no token of tokenizer.json"),
    (lambda f: None, "data.path=nowhere", "data.path = 'nowhere': there is no file or folder"),
]


@pytest.mark.parametrize(
    ("change", "override", "line"), REFUSED, ids=[line for *_, line in REFUSED]
)
def test_what_cannot_become_tokens(
    folder: Path,
    change: Callable[[Path], None],
    override: str,
    line: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    change(folder)
    assert prepare(folder, *SETS, *filter(None, [override])) == 2
    (said,) = capfd.readouterr().err.splitlines()
    assert said.startswith("error: ")
    assert line in said
    made = list((folder / "runs").rglob("tokens*"))
    assert made == [], "nothing is left of what failed"


@pytest.mark.parametrize(("source", "name"), [("jsonl", "tokenizers"), ("arrow", "datasets")])
def test_an_extra_that_is_not_installed(
    folder: Path,
    source: str,
    name: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda module: None if module == name else module)
    sets = (f"data.source={source}", *SETS[1:])
    assert prepare(folder, *sets) == 2
    assert (
        capfd.readouterr()
        .err.splitlines()[-1]
        .endswith(
            f'needs {name}, which is not installed; install it: pip install "bamboo-train[data]"'
        )
    )


@pytest.mark.full
def test_the_rate_is_that_of_the_tokenizer_alone(folder: Path) -> None:
    from tokenizers import Tokenizer

    texts = [" ".join(WORDS[i % 280 : i % 280 + 20]) for i in range(30_000)]
    write_lines(folder / "corpus" / "a.jsonl", texts)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    began_s = time.monotonic()
    for at in range(0, len(texts), 1000):
        tokenizer.encode_batch_fast(texts[at : at + 1000], add_special_tokens=False)
    alone_s = time.monotonic() - began_s
    began_s = time.monotonic()
    assert prepare(folder, *SETS) == 0
    assert time.monotonic() - began_s < 2 * alone_s
