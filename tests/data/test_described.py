"""What is said of the data before they are trained on; nothing of it changes what is read."""

import os
from pathlib import Path
from typing import Any

import pytest

from bamboo.data.described import is_text
from bamboo.data.sources import read_described, read_source
from cli.views.plan import data_lines
from tests.jobs import TEXT, tiny_job


def described(folder: Path, files: dict[str, bytes], *overrides: str) -> dict[str, Any]:
    for name, content in files.items():
        path = folder / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    job = tiny_job(folder, ["data.path=texts", *overrides])
    text, body = read_described(job)
    assert text == read_source(job)
    assert body["bytes"] == len(text)
    return body


def said(body: dict[str, Any]) -> str:
    return " ".join(" ".join(data_lines(body)).split())


def test_one_file_of_text(tmp_path: Path) -> None:
    _, body = read_described(tiny_job(tmp_path))
    assert (body["files"], body["bytes"]) == (1, len(TEXT))
    assert said(body).startswith("data: 1 file, ")
    assert said(body).endswith(" of UTF-8 text")


def test_what_is_left_out_of_a_folder_is_counted_by_its_kind(tmp_path: Path) -> None:
    (tmp_path / "texts" / "sub").mkdir(parents=True)
    os.mkfifo(tmp_path / "texts" / "pipe")
    (tmp_path / "texts" / "there").symlink_to(tmp_path)
    (tmp_path / "texts" / "gone").symlink_to(tmp_path / "nowhere")
    hidden = {".git/config": b"x", ".x": b"x", "sub/.y": b"x", "__pycache__/a.pyc": b"x"}
    body = described(tmp_path, {"a.txt": b"word " * 50, **hidden})
    assert body["left_out"] == {
        "__pycache__ folder": 1,
        "broken link": 1,
        "hidden": 3,
        "link to a folder": 1,
        "no regular file": 1,
    }
    assert "; left out: 1 __pycache__ folder, 1 broken link, 3 hidden, 1 link to a" in said(body)


def test_what_is_no_text_is_named_and_warned_of(tmp_path: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n" + bytes(100)
    body = described(tmp_path, {"a.txt": b"word " * 50, "logo.png": png})
    assert body["not_text"] == {"files": 1, "named": ["logo.png"]}
    assert body["files"] == 2
    words = said(body)
    assert "2 files, 358 B of bytes; not text: 1 (logo.png)" in words
    assert "warning: the model learns the bytes of 1 (logo.png) too; move what is no text" in words
    more = {f"{n}.bin": b"\xff\xfe" * 9 for n in range(5)} | {"odd\x1b[2J.bin": b"\0"}
    words = said(described(tmp_path, more))
    assert "not text: 7 (0.bin, 1.bin, 2.bin, ...)" in words
    assert "\x1b" not in said({**body, "not_text": {"files": 1, "named": ["odd\x1b[2J.bin"]}})


def test_text_with_a_syntax_is_read_with_it(tmp_path: Path) -> None:
    files = {"b.JSONL": b'{"text": "x"}\n' * 9, "c.csv": b"a,b\n" * 9, "d.txt": b"x" * 9}
    words = said(described(tmp_path, files))
    assert "of UTF-8 text; read with its syntax: CSV in 1 (c.csv); read with its" in words
    assert "read with its syntax: JSON lines in 1 (b.JSONL)" in words


def test_what_max_bytes_cuts_is_said_with_all_that_there_is(tmp_path: Path) -> None:
    files = {"a.txt": b"x" * 3000, "b.txt": "é".encode() * 3000, "c.txt": b"x" * 3000}
    body = described(tmp_path, files, "data.max_bytes=4001")
    assert (body["files"], body["all_files"], body["all_bytes"]) == (2, 3, 12_000)
    words = said(body)
    assert "data: 2 files, 3.9 KiB of UTF-8 text; cut at data.max_bytes = 3.9 KiB of" in words
    assert words.endswith("of 11.7 KiB in 3 files")
    assert "cut at" not in said(described(tmp_path, files, "data.max_bytes=12000"))


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (b"", True),
        ("é\u4e2d".encode()[:-1], True),
        ("é".encode("latin-1") + b"tat", False),
        ("x".encode("utf-16"), False),
        (b"a\0b", False),
    ],
)
def test_text_is_utf_8_without_nul_also_where_it_is_cut(part: bytes, text: bool) -> None:
    assert is_text(part) is text
