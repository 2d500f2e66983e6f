"""The data of a job in one line, and in another what is probably a mistake in them."""

from collections.abc import Mapping
from typing import Any

from bamboo.quantities import count, size
from cli.views.columns import paragraph


def data_lines(body: Mapping[str, Any]) -> list[str]:
    """From a body as `bamboo.data.described.Description` makes it."""
    not_text = body["not_text"]
    kind = "UTF-8 text" if not not_text["files"] else "bytes"
    words = f"data: {count(body['files'], 'file')}, {size(body['bytes'])} of {kind}"
    if body["left_out"]:
        words += "; left out: " + ", ".join(_several(*one) for one in body["left_out"].items())
    if not_text["files"]:
        words += f"; not text: {_named(not_text)}"
    for syntax, files in body["syntax"].items():
        words += f"; read with its syntax: {syntax} in {_named(files)}"
    if body["bytes"] < body["all_bytes"]:
        words += (
            f"; cut at data.max_bytes = {size(body['max_bytes'])} of {size(body['all_bytes'])} in "
            f"{count(body['all_files'], 'file')}"
        )
    lines = paragraph(words)
    if not_text["files"]:
        lines += paragraph(
            f"warning: the model learns the bytes of {_named(not_text)} too; move what is no text "
            "out of data.path, unless you mean it"
        )
    return lines


def _several(what: str, number: int) -> str:
    """`2 hidden`, `1 link to a folder`."""
    return f"{number:,} {what}" if number == 1 or what == "hidden" else f"{number:,} x {what}"


def _named(files: Mapping[str, Any]) -> str:
    """`1 (logo.png)`, `5 (a.png, b.png, c.png, ...)`. A name is made printable."""
    names = ", ".join(ascii(name)[1:-1] for name in files["named"])
    more = ", ..." if files["files"] > len(files["named"]) else ""
    return f"{files['files']:,} ({names}{more})"
