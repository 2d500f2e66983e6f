"""What `bamboo prepare` made, as a line and as JSON."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bamboo.quantities import count, size

if TYPE_CHECKING:
    from bamboo.data.prepare import Prepared


def prepared_text(found: "Prepared | None") -> str:
    """`1,204,331 tokens below 8,000 in 120 documents, of 4.1 MB in 2.1 s; /where/they/lie`."""
    if found is None:
        return "nothing to prepare: the bytes of these data are their tokens"
    words = f"{count(found.facts.tokens, 'token')} below {found.header.vocabulary:,}"
    if found.facts.documents:
        words += f" in {count(found.facts.documents, 'document')}"
    words += f", of {size(found.source_bytes)}"
    words += f" in {found.took_s:.1f} s" if found.took_s else ", prepared before"
    return f"{words}\n{found.path}"


def prepared_body(found: "Prepared | None") -> dict[str, Any]:
    """The same for `--json`."""
    if found is None:
        return {"path": None}
    return {
        "path": str(found.path),
        **asdict(found.header),
        **asdict(found.facts),
        "digest": found.facts.digest,
        "source_bytes": found.source_bytes,
        "took_s": round(found.took_s, 3),
    }
