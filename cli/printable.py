"""Makes text from outside safe for a terminal.

Rule: text from a user's code, a node, a store, a cloud or a file passes here before it is shown. It
cannot move the cursor, change colour, title or reading order, or imitate other text.
"""

import unicodedata

_LAYOUT = "\n\t"


def printable(text: str) -> str:
    """The text with escapes for what could control a terminal; lines, tabs and spaces stay."""
    if text.isascii() and text.translate(_WITHOUT_LAYOUT).isprintable():
        return text
    return "".join(one if _is_harmless(one) else ascii(one)[1:-1] for one in text)


_WITHOUT_LAYOUT = dict.fromkeys(map(ord, _LAYOUT))


def _is_harmless(one: str) -> bool:
    return one in _LAYOUT or one.isprintable() or unicodedata.category(one) == "Zs"
