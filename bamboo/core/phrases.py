"""Words that several decisions share: bytes, grids, why a layout is another one.

Rule: a reason that names a grid names the one that was taken, not the one that was meant once.
"""

from bamboo.topology.grid import Grid

ENOUGH = "there are nodes for it"
"""Why a layout is wanted for which there are nodes; which one, is known when it is taken."""


def size(count: float) -> str:
    """Bytes in binary units: `812 B`, `3.4 MiB`, `1.2 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def sent_words(count: int) -> str:
    """`3.4 MiB were sent`, `nothing was sent`."""
    return f"{size(count)} were sent" if count else "nothing was sent"


def grid_words(grid: Grid) -> str:
    """`2 x 4`: pipelines and stages."""
    return f"{grid.pipelines} x {grid.stages}"


def why_words(why: str, grid: Grid) -> str:
    """Why all go on, or are to go on, on this grid."""
    return f"there are nodes for {grid_words(grid)}" if why == ENOUGH else why
