"""Phrases that the reasons of several decisions share: bytes, grids, and why the layout changes.

Rule: a reason names the grid that is taken, not one that was intended earlier.
"""

from bamboo.topology.grid import Grid

ENOUGH = "there are nodes for it"
"""The reason for a layout that there are nodes for. Its grid is known only when it is taken."""


def size(count: float) -> str:
    """Write bytes in binary units: `812 B`, `3.4 MiB`, `1.2 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def sent_words(count: int) -> str:
    """Say how much was sent: `3.4 MiB were sent`, `nothing was sent`."""
    return f"{size(count)} were sent" if count else "nothing was sent"


def grid_words(grid: Grid) -> str:
    """Write a grid as pipelines and stages: `2 x 4`."""
    return f"{grid.pipelines} x {grid.stages}"


def why_words(why: str, grid: Grid) -> str:
    """Say why all go on, or will go on, on this grid."""
    return f"there are nodes for {grid_words(grid)}" if why == ENOUGH else why
