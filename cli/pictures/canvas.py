"""A figure as the bytes of an SVG file.

Rule: the same drawing gives the same bytes. So the user's settings of matplotlib are ignored, text
is drawn as outlines, and the file contains neither date nor chance. Nothing here needs a display.
"""

import warnings
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bamboo import extras
from bamboo.errors import InputError
from cli.echo import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREEN = "#2f7d4f"
RED = "#c0392b"
AMBER = "#d98e04"
GREY = "#7a848c"


def check_name(path: Path) -> None:
    """Check the name of a picture before it is drawn. Raises InputError for a name that is not an
    SVG file's, or where nothing can be drawn."""
    if path.suffix.lower() != ".svg":
        raise InputError(f"--plot {path}: the picture is SVG; give a name that ends in .svg")
    extras.need("plot", what=f"--plot {path}")


def title_of(text: str) -> str:
    """The text as one line that can be drawn: the name of a file may contain anything."""
    return printable(" ".join(text.split()))


def to_svg(
    draw: Callable[["Figure"], None],
    *,
    width_in: float,
    height_in: float,
    settings: Mapping[str, Any] | None = None,
) -> bytes:
    """What `draw` draws on a figure of that size, with a layout that leaves room for labels.
    `settings` are matplotlib's, in addition to those of all pictures."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(), warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box, without a warning.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        mpl.rcdefaults()
        mpl.rc("svg", hashsalt="bamboo", fonttype="path")
        mpl.rc("font", family=["DejaVu Sans"], size=9)
        mpl.rc("text", parse_math=False)
        mpl.rc("axes", grid=True, axisbelow=True)
        mpl.rc("axes.spines", top=False, right=False)
        mpl.rc("grid", color="#e3e6e8", linewidth=0.6)
        mpl.rc("legend", frameon=False)
        more: Any = settings or {}  # its type has hundreds of names
        mpl.rcParams.update(more)
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        out = BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": "bamboo"})
    return out.getvalue()
