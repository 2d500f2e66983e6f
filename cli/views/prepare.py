"""What `bamboo prepare` made, as a line and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bamboo.quantities import count, size

if TYPE_CHECKING:
    from bamboo.data.prepare import Prepared


def prepared_text(found: "Mapping[str, Prepared]") -> str:
    """`[data]: 1,204,331 tokens below 8,000 in 120 documents, of 4.1 MB in 2.1 s; /where/they/lie`,
    for each section."""
    if not found:
        return "nothing to prepare: the bytes of these data are their tokens"
    return "\n".join(f"[{section}]: {_text(one)}" for section, one in found.items())


def _text(found: "Prepared") -> str:
    words = f"{count(found.facts.tokens, 'token')} below {found.header.vocabulary:,}"
    if found.facts.documents:
        words += f" in {count(found.facts.documents, 'document')}"
    words += f", of {size(found.source_bytes)}"
    words += f" in {found.took_s:.1f} s" if found.took_s else ", prepared before"
    return f"{words}\n{found.place or found.path}"


def prepared_body(found: "Mapping[str, Prepared]") -> dict[str, Any]:
    """The same for `--json`: section -> what it has."""
    return {
        section: {
            "path": one.place or str(one.path),
            **asdict(one.header),
            **asdict(one.facts),
            "digest": one.facts.digest,
            "source_bytes": one.source_bytes,
            "took_s": round(one.took_s, 3),
        }
        for section, one in found.items()
    }
