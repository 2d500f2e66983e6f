"""Names of modules and classes keep to the glossary: a word that it rules out is in none of them.

Rule: the glossary is what is read here. Behind `Not:` it rules out the words that are set as code,
and its last section allows those that are still to be renamed, for as long as a name has one.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from tests.tidy.tree import ROOT, Source, python_sources

GLOSSARY = ROOT / "docs" / "glossary.md"
REMAINING = "## Still to be renamed"


def ruled_out(text: str) -> frozenset[str]:
    """The words as code behind each `Not:`, up to the end of its entry."""
    entries = re.split(r"\n(?=- |#|\n)", text.partition(REMAINING)[0])
    ruled = (entry.partition("Not:")[2] for entry in entries)
    return frozenset(word for words in ruled for word in re.findall(r"`([a-z]+)`", words))


def remaining(text: str) -> frozenset[str]:
    """The words that begin an entry of the last section."""
    return frozenset(re.findall(r"^- `([a-z]+)`:", text.partition(REMAINING)[2], re.MULTILINE))


def names_of(source: Source) -> Iterator[tuple[int, str]]:
    """The module's own name and its classes, each with its line."""
    yield 1, PurePosixPath(source.path).stem
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            yield node.lineno, node.name


def words_of(name: str) -> frozenset[str]:
    """`FeedsOf` and `feeds_of` alike: feeds, feed, of."""
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
    return frozenset(words | {word.removesuffix("s") for word in words})


def offences(sources: Sequence[Source], words: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Each ruled-out word with the place where a name has it."""
    for source in sources:
        for line, name in names_of(source):
            for word in sorted(words & words_of(name)):
                yield (
                    word,
                    f"{source.path}:{line}: {name}: {word!r} is not used, see {GLOSSARY.name}",
                )


def product() -> list[Source]:
    return [source for source in python_sources() if source.is_product]


def test_names_keep_to_the_glossary() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    held = ruled_out(text) - remaining(text)
    found = [where for _, where in offences(product(), held)]
    assert not found, "\n" + "\n".join(found)


def test_what_is_still_to_be_renamed_is_there() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    assert remaining(text) <= ruled_out(text), "each is ruled out by an entry of the glossary"
    found = {word for word, _ in offences(product(), remaining(text))}
    gone = sorted(remaining(text) - found)
    assert not gone, f"no name has {', '.join(gone)} any more: take it out of the last section"


def test_the_glossary_rules_something_out() -> None:
    words = ruled_out(GLOSSARY.read_text(encoding="utf-8"))
    assert {"reform", "relayout", "relaid", "letter", "mail", "parcel"} <= words


def test_a_planted_name_is_seen_and_an_innocent_is_not() -> None:
    text = (
        "- **message**: what is sent. Not: `letter`,\n  `mail`, post.\n"
        "- **mailbox**: where `act` comes in.\n\n"
        f"{REMAINING}\n\n- `mail`: a class.\n"
    )
    assert ruled_out(text) == {"letter", "mail"}
    assert remaining(text) == {"mail"}
    source = Source(
        "bamboo/wire/letters.py", '"""A."""\nclass Mailbox: ...\nclass OpenLetter: ...\n'
    )
    found = [where for _, where in offences([source], ruled_out(text))]
    assert [where.split(" ")[0] for where in found] == [
        "bamboo/wire/letters.py:1:",
        "bamboo/wire/letters.py:3:",
    ]
