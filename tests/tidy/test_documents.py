"""Documents name files, make targets and verbs that exist: a reader who follows them gets there."""

import re
from collections.abc import Iterator

import pytest

from tests.tidy.tree import ROOT, Source, paths, text_sources

ROOMS = r"(?:bamboo|benchmarks|cli|cloud|examples|infra|terraform|tests|\.ci)"
NAMED_PATH = re.compile(rf"(?<![\w/.-])({ROOMS}/[\w./-]*\w)")
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")
NAMED_TARGET = re.compile(
    r"\bmake ([a-z]+)\b(?=[`\s]*(?:$|[`|#·.,;:)]|JOB=|PYTHON=))", re.MULTILINE
)


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


@pytest.mark.parametrize("check", [missing_paths, missing_targets, missing_links])
def test_documents_lead_somewhere(check: object) -> None:
    assert callable(check)
    offences = [offence for document in documents() for offence in check(document)]
    assert not offences, "\n" + "\n".join(offences)


def test_a_document_that_leads_nowhere_is_seen() -> None:
    text = "`bamboo/nowhere.py`, `tests/tidy`, bamboo/core/machine; `make nothing`, make test.\n"
    document = Source("README.md", text)
    assert list(missing_paths(document)) == ["README.md:1: bamboo/nowhere.py does not exist"]
    assert list(missing_targets(document)) == ["README.md:1: there is no `make nothing`"]


def test_a_link_is_followed_from_where_its_document_lies() -> None:
    text = "[a](guarantees.md#x), [b](../README.md), [c](https://a.b/c.md), [d](docs/nowhere.md)\n"
    (offence,) = missing_links(Source("docs/page.md", text))
    assert offence == "docs/page.md:1: the link to docs/nowhere.md leads nowhere"
