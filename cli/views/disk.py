"""What runs take on the disk, as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from bamboo.core.phrases import size
from cli.views.columns import columns


def parts_text(parts: Mapping[str, int]) -> str:
    """`1.0 GiB: final 978.1 MiB, checkpoints 40.2 MiB, books 1.2 MiB`."""
    words = ", ".join(f"{name} {size(held)}" for name, held in parts.items())
    return f"{size(sum(parts.values()))}: {words}" if parts else "0 B"


def removed_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each run that is to be removed."""
    table = [("run", "disk"), *((str(row["run"]), size(row["bytes"])) for row in rows)]
    return "\n".join(columns(table, indent=0, right=frozenset({1})))
