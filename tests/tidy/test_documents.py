"""Documents name files, make targets, verbs and options that exist: a reader who follows them gets
there."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from cli import main
from tests.tidy.tree import ROOT, Source, paths, text_sources

ROOMS = r"(?:bamboo|benchmarks|cli|cloud|docs|examples|infra|terraform|testbed|tests|\.ci)"
NAMED_PATH = re.compile(rf"(?<![\w/.-])({ROOMS}/[\w./-]*\w)")
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")
NAMED_TARGET = re.compile(
    r"\bmake ([a-z]+)\b(?=[`\s]*(?:$|[`|#·.,;:)]|JOB=|PYTHON=))", re.MULTILINE
)
COMMAND = re.compile(
    r"^ {4}(?:\$ )?(?:\.venv/bin/)?bamboo +((?:[^\n]*\\\n)*[^\n]*)"  # a line of a block
    r"|`(?:\.venv/bin/)?bamboo\s+([a-z][^`]*)`",  # or words within a text
    re.MULTILINE,
)
VERSION_ROW = re.compile(r"^\|[^|]*\| (\d+), `(?:v|schema_version|format)`[^;|]*; ([^|]*)\|$")
VERSION = re.compile(r"^(?:SCHEMA_VERSION|_FORMAT) = (\d+)$", re.MULTILINE)


def documents() -> list[Source]:
    return [source for source in text_sources() if source.path.endswith(".md")]


def folders() -> set[str]:
    return {"/".join(p.split("/")[:n]) for p in paths() for n in range(1, p.count("/") + 1)}


def missing_paths(document: Source) -> Iterator[str]:
    # A path may be written from the root, or from where the document lies.
    here = document.path.rpartition("/")[0]
    known = {*paths(), *folders()}
    for number, line in enumerate(document.lines, 1):
        for name in NAMED_PATH.findall(line):
            stem = {name, f"{name}.py", f"{here}/{name}".lstrip("/")}
            if not stem & known:
                yield f"{document.path}:{number}: {name} does not exist"


def unnamed_modules(document: Source) -> Iterator[str]:
    """Modules below a room that its README does not name."""
    if not re.fullmatch(r"(bamboo/\w+|cloud)/README\.md", document.path):
        return
    room, said = document.path.rpartition("/")[0], set(re.findall(r"\w+", document.text))
    for path in paths():
        stem = path.rpartition("/")[2].removesuffix(".py")
        if path.startswith(f"{room}/") and path.endswith(".py") and stem not in {*said, "__init__"}:
            yield f"{document.path}: names no `{stem}` ({path}); say what it is for"


def missing_targets(document: Source) -> Iterator[str]:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for number, line in enumerate(document.lines, 1):
        for name in NAMED_TARGET.findall(line):
            if name not in targets:
                yield f"{document.path}:{number}: there is no `make {name}`"


def missing_links(document: Source) -> Iterator[str]:
    # A link is followed from where the document lies.
    here = ROOT / document.path
    for number, line in enumerate(document.lines, 1):
        for name in LINK.findall(line):
            if not (here.parent / name).exists():
                yield f"{document.path}:{number}: the link to {name} leads nowhere"


def other_versions(document: Source) -> Iterator[str]:
    """Versions of formats that are not those of the files which a table names."""
    for number, line in enumerate(document.lines, 1):
        if (row := VERSION_ROW.match(line)) is None:
            continue
        for path in re.findall(r"`([\w/]+\.py)`", row[2]):
            found = VERSION.findall((ROOT / path).read_text())
            if found != [row[1]]:
                yield f"{document.path}:{number}: {path} has version {', '.join(found) or 'none'}"


def refusal(words: list[str]) -> click.UsageError | None:
    """Why `bamboo` would refuse these words; they are parsed, and nothing is run. Values are not
    looked at: words such as RUN or N stand for them."""
    command: click.Command | None = main.bamboo
    words = [word for word in words if word not in ("-h", "--help")]
    while isinstance(command, click.Group) and words:
        verb, *words = words
        command = command.get_command(click.Context(command), verb)
        if command is None:
            return click.UsageError(f"there is no {verb}")
    if command is None or isinstance(command, click.Group):
        return None
    try:
        command.make_context(command.name, words)
    except click.BadParameter:
        return None
    except click.UsageError as error:
        return error
    return None


def refused_commands(document: Source) -> Iterator[str]:
    for found in COMMAND.finditer(document.text):
        line, text = re.sub(r"\\\n *", "", found[1] or ""), found[2] or ""
        error = refusal(shlex.split(re.split(r" {3,}| [>|] ", line)[0] or text, comments=True))
        # Within a text an option may stand without its value.
        if error is None or (text and isinstance(error, click.BadOptionUsage)):
            continue
        number = document.text[: found.start()].count("\n") + 1
        yield f"{document.path}:{number}: bamboo {line or text}: {error.format_message()}"


CHECKS = [
    missing_paths,
    missing_targets,
    missing_links,
    unnamed_modules,
    refused_commands,
    other_versions,
]


@pytest.mark.parametrize("check", CHECKS)
def test_documents_lead_somewhere(check: object) -> None:
    assert callable(check)
    offences = [offence for document in documents() for offence in check(document)]
    assert not offences, "\n" + "\n".join(offences)


def test_a_document_that_leads_nowhere_is_seen() -> None:
    text = "`bamboo/nowhere.py`, `tests/tidy`, bamboo/core/machine; `make nothing`, make test.\n"
    document = Source("README.md", text)
    assert list(missing_paths(document)) == ["README.md:1: bamboo/nowhere.py does not exist"]
    assert list(missing_targets(document)) == ["README.md:1: there is no `make nothing`"]


def test_a_module_that_a_room_does_not_name_is_seen() -> None:
    offences = list(unnamed_modules(Source("bamboo/chaos/README.md", "`draw`, `hands` and `led`")))
    assert any(line.startswith("bamboo/chaos/README.md: names no `judge`") for line in offences)
    assert not any("`draw`" in line for line in offences)
    assert not list(unnamed_modules(Source("docs/page.md", "")))


def test_a_link_is_followed_from_where_its_document_lies() -> None:
    text = "[a](guarantees.md#x), [b](../README.md), [c](https://a.b/c.md), [d](docs/nowhere.md)\n"
    (offence,) = missing_links(Source("docs/page.md", text))
    assert offence == "docs/page.md:1: the link to docs/nowhere.md leads nowhere"


def test_a_version_that_a_file_does_not_have_is_seen() -> None:
    text = "| a line | 0, `v`; `bamboo/telemetry/records.py` |\n"
    (offence,) = other_versions(Source("docs/page.md", text))
    assert offence == "docs/page.md:1: bamboo/telemetry/records.py has version 1"


def test_a_command_that_would_be_refused_is_seen() -> None:
    text = """
    .venv/bin/bamboo launch JOB.toml \\
        --max-nodes N --nowhere   # an option that is not there
    $ bamboo plan JOB.toml --json > plan.json
    bamboo go

Ask `bamboo verify RUN --steps`, `bamboo trace stats FILE`, and not `bamboo stop RUN --now`.
"""
    refused = list(refused_commands(Source("docs/page.md", text)))
    for offence, words in zip(
        refused, ("2: bamboo launch", "5: bamboo go", "7: bamboo stop"), strict=True
    ):
        assert offence.startswith(f"docs/page.md:{words}")
    assert ["--nowhere" in offence for offence in refused] == [True, False, False]
