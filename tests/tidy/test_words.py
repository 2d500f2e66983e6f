"""Texts are in plain, present-day English: the phrases that the glossary rules out are in none.

Rule: the glossary is what is read here. The table of its section on texts has a phrase on the left
of each row; strings, docstrings and comments of the product, and documents, do without it.
"""

import io
import re
import tokenize
from collections.abc import Iterator

from tests.tidy.test_glossary import GLOSSARY
from tests.tidy.tree import Source, python_sources, text_sources

SECTION = "## Words of texts"
TEXTS = (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))


def phrases(glossary: str) -> tuple[str, ...]:
    """The phrases as code on the left of each row of the table."""
    section = glossary.partition(SECTION)[2].partition("\n## ")[0]
    left = (row.split("|")[1] for row in section.splitlines() if row.startswith("| `"))
    return tuple(phrase for cell in left for phrase in re.findall(r"`([^`]+)`", cell))


def pattern(avoided: tuple[str, ...]) -> re.Pattern[str]:
    """Any of them, as whole words, also over the end of a line."""
    spelled = (r"\s+".join(map(re.escape, phrase.split())) for phrase in avoided)
    return re.compile(rf"\b(?:{'|'.join(spelled)})\b", re.IGNORECASE)


def texts(source: Source) -> Iterator[tuple[int, str]]:
    """What people read in a file, each with its first line: all of a document, and of code the
    strings and the comments."""
    if not source.path.endswith(".py"):
        yield 1, source.text
        return
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type in TEXTS:
            yield token.start[0], token.string


def offences(source: Source, avoided: re.Pattern[str]) -> Iterator[str]:
    if not avoided.search(source.text):
        return
    for line, text in texts(source):
        for found in avoided.finditer(text):
            at = line + text.count("\n", 0, found.start())
            said = " ".join(found[0].split())
            yield f"{source.path}:{at}: {said!r}: see {SECTION.strip('# ')!r} in {GLOSSARY.name}"


def documents() -> list[Source]:
    others = ("docs/glossary.md", "docs/claims.md", "CHANGELOG.md", "benchmarks/")
    sources = (one for one in text_sources() if one.path.endswith(".md"))
    return [one for one in sources if not one.path.startswith(others)]


def test_texts_keep_to_the_glossary() -> None:
    avoided = pattern(phrases(GLOSSARY.read_text(encoding="utf-8")))
    read = [*documents(), *(one for one in python_sources() if one.is_product)]
    found = [where for source in read for where in offences(source, avoided)]
    assert not found, "\n" + "\n".join(found)


def test_the_glossary_rules_something_out() -> None:
    assert {"whoever", "anew", "he"} <= set(phrases(GLOSSARY.read_text(encoding="utf-8")))


def test_a_planted_phrase_is_seen_and_a_name_is_not() -> None:
    avoided = pattern(("anew", "once more"))
    code = 'anew = 1  # begun anew\ntext = """Try once\nmore."""\n'
    assert [where.split(":")[1] for where in offences(Source("bamboo/a.py", code), avoided)] == [
        "1",
        "2",
    ]
    assert not list(offences(Source("docs/a.md", "One newer thing, at once.\n"), avoided))
